"""How fast decode attention reads keys and values, against the fastest copies that the card does: kernels alone, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.models import NAMES, shape
from benchmarks.gpu.rows import Report

if TYPE_CHECKING:
    import torch

BATCHES, CONTEXTS = (1, 32, 128), (1024, 8192)
LEAST_PERCENT = 70
BOUND_BATCHES = (32, 128)
"""For these it is a bound."""
_MAX_BYTES = 24 * 2**30
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Decode:
    """Attention of one step in all layers.

    Attributes:
        config: the model's `config.json`.
        batch: sequences.
        context: tokens of each, the one that decodes included.
    """

    config: dict[str, Any]
    batch: int
    context: int

    @property
    def layer_bytes(self) -> int:
        """Keys and values of one layer, that a step has to read, in a type of two bytes."""
        return int(4 * self.batch * self.context * self.config["num_key_value_heads"] * self.config["head_dim"])

    @property
    def layers(self) -> int:
        """As many as the model has, or as memory holds. Each is read once in a turn, so that no cache holds it until the next."""
        return max(2, min(int(self.config["num_hidden_layers"]), _MAX_BYTES // self.layer_bytes))


def run(report: Report) -> None:
    """The part of this module."""
    import torch

    from benchmarks.gpu.timing import copy_bandwidth
    from chatpaged.engine.model_executor.attention.triton_paged import triton_problem

    settings = report.settings
    device = torch.device(settings.device)
    with torch.inference_mode():
        ceiling = copy_bandwidth(device)
        report.add("copies within the card's memory, read and written", ceiling, "GB/s")
        problem = triton_problem(device, torch.bfloat16)
        if problem is not None:
            report.leave_out("decode attention", problem)
            return
        batches, contexts = ((1, 3), (32,)) if settings.smoke else (BATCHES, CONTEXTS)
        for name, title in NAMES.items():
            for batch in batches:
                for context in contexts:
                    what = f"{title}'s decode attention, {batch} x {context}"
                    if report.has_time(what, 1):
                        with report.attempt(what):
                            decode = Decode(shape(name, smoke=settings.smoke), batch, context)
                            speed = decode.layers * decode.layer_bytes / attention_seconds(decode, device) / 1e9
                            tell(report, what, speed, ceiling, is_bound=batch in BOUND_BATCHES)
                        if device.type == "cuda":
                            torch.cuda.empty_cache()


def tell(report: Report, what: str, speed: float, ceiling: float, *, is_bound: bool, note: str = "") -> None:
    """A bandwidth in GB/s, as percent of the ceiling."""
    least = LEAST_PERCENT if is_bound and not report.settings.smoke else None
    note = f"{speed:,.0f} GB/s" + (f"; {note}" if note else "")
    report.add(what, 100 * speed / ceiling, "% of copies", least=least, note=note)


def attention_seconds(decode: Decode, device: torch.device) -> float:
    """Time of attention in all layers, recorded as one graph."""
    import torch

    from benchmarks.gpu.timing import recorded, seconds_of
    from chatpaged.engine.model_executor.attention import triton_kernels
    from chatpaged.engine.model_executor.attention.step_rows import StepRows
    from chatpaged.engine.model_executor.attention.triton_paged import choose_chunk
    from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout

    config, batch = decode.config, decode.batch
    kv_heads, dim, heads = config["num_key_value_heads"], config["head_dim"], config["num_attention_heads"]
    blocks = decode.context // _BLOCK_SIZE
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    layout = KVLayout(num_layers=decode.layers, block_size=_BLOCK_SIZE, kv_heads=kv_heads, head_dim=dim, dtype=dtype)
    kv_cache = KVCache(layout, batch * blocks + 1, device)
    kv_cache.pool.normal_()
    tables = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(0)) + 1
    rows = StepRows(
        cu_q=torch.arange(batch + 1, dtype=torch.int32, device=device),
        seq_lens=torch.full((batch,), decode.context, dtype=torch.int32, device=device),
        block_table=tables.view(batch, blocks).to(device, torch.int32),
        slots=torch.full((batch,), -1, device=device),
        only_single=True,
    )
    query = torch.randn(batch, heads, dim, device=device).to(dtype)
    scores = triton_kernels.Scores(scale=dim**-0.5)
    chunk = choose_chunk(max(CONTEXTS))

    def attend() -> None:
        for layer in range(decode.layers):
            keys, values = kv_cache.pool[:, layer].unbind(1)
            triton_kernels.attend(query, keys, values, rows, scores, kv_heads=kv_heads, value_dim=dim, chunk=chunk)

    return seconds_of(recorded(attend, device), device)
