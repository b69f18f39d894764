"""Logits of three sequences, as transformers computes them and as steps of this engine do: whole prompts, chunks and decode mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput
from tests.model_executor.architectures import VOCAB_SIZE, build_config

hf: Any = transformers
CPU = torch.device("cpu")
TOLERANCE = 1e-5
"""Of the standard deviation of the logits, in float32."""
BLOCK_SIZE = 4
STEPS: tuple[dict[int, int], ...] = ({0: 17, 1: 11}, {0: 1, 1: 9, 2: 5}, {0: 1, 1: 1, 2: 7}, {0: 2, 1: 13, 2: 1}, {0: 1, 1: 1, 2: 1})
"""Tokens that each of three sequences computes in each step."""
LENGTHS = {seq: sum(step.get(seq, 0) for step in STEPS) for seq in (0, 1, 2)}

Rows = dict[int, torch.Tensor]
Distort = Callable[[int, InputBatch], tuple[InputBatch, type[TorchPagedAttention]]]


class Model(Protocol):
    """What `HFModel` and `DenseModel` have in common."""

    def geometry(self) -> KVGeometry: ...

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor: ...


def randomize(model: Any) -> None:
    """Weights with which logits are of order one, attention is neither flat nor a copy, and no bias or norm is without effect."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_table = any(part in name for part in ("embed", "wte", "wpe", "lm_head"))
            if "norm" in name or ".ln_" in name:
                parameter.add_(0.3 * noise)
            elif parameter.ndim < 2:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise if is_table else noise * parameter.shape[-1] ** -0.5)


def save(model_type: str, options: dict[str, Any], directory: Path, *, model_class: str | None = None) -> Path:
    """Writes a tiny model with random weights."""
    config = build_config(model_type, options)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32) if model_class is None else getattr(hf, model_class)(config)
    randomize(model)
    model.save_pretrained(directory)
    return directory


@cache
def sequences() -> dict[int, list[int]]:
    generator = torch.Generator().manual_seed(3)
    return {seq: torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for seq, length in LENGTHS.items()}


def reference(directory: Path, dtype: torch.dtype = torch.float32) -> Rows:
    """Logits of all tokens as transformers computes them, one whole sequence after another."""
    model = hf.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=dtype).eval()
    with torch.no_grad():
        return {seq: model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for seq, ids in sequences().items()}


def undistorted(_: int, batch: InputBatch) -> tuple[InputBatch, type[TorchPagedAttention]]:
    return batch, TorchPagedAttention


def computed(model: Model, dtype: torch.dtype = torch.float32, distort: Distort = undistorted) -> Rows:
    """Logits of all tokens but the first of each step, computed step by step on blocks in no order."""
    geometry = model.geometry()
    layout = KVLayout(
        num_layers=geometry.num_layers, block_size=BLOCK_SIZE, kv_heads=geometry.kv_heads, head_dim=geometry.head_dim, dtype=dtype
    )
    kv_cache = KVCache(layout, 40, CPU)
    kv_cache.pool.fill_(torch.nan)
    free = iter((torch.randperm(39, generator=torch.Generator().manual_seed(1)) + 1).tolist())
    tables = {seq: [next(free) for _ in range(-(-length // BLOCK_SIZE))] for seq, length in LENGTHS.items()}
    done = dict.fromkeys(LENGTHS, 0)
    logits: dict[int, list[torch.Tensor]] = {seq: [] for seq in LENGTHS}
    for number, step in enumerate(STEPS):
        rows = [scheduled_row(seq, done[seq], count, tables[seq]) for seq, count in step.items()]
        batch, attention = distort(number, InputBatch.build(SchedulerOutput(number, tuple(rows), ()), BLOCK_SIZE, CPU))
        wanted = torch.arange(1, len(batch.input_ids))
        with torch.inference_mode(), forward_context(attention(batch, kv_cache)):
            some = model.forward(batch.input_ids, batch.positions, wanted)
        assert some.shape == (len(wanted), VOCAB_SIZE)
        every = torch.cat((torch.full_like(some[:1], torch.nan), some))
        for (seq, count), part in zip(step.items(), torch.split(every, list(step.values())), strict=True):
            logits[seq].append(part)
            done[seq] += count
    return {seq: torch.cat(parts) for seq, parts in logits.items()}


def scheduled_row(seq: int, start: int, count: int, table: Sequence[int], block_size: int = BLOCK_SIZE) -> ScheduledRow:
    return ScheduledRow(seq, tuple(sequences()[seq][start : start + count]), start, tuple(table[: -(-(start + count) // block_size)]), ())


def error(ours: Rows, theirs: Rows) -> float:
    """The largest difference in standard deviations of their logits."""
    one, other = (torch.cat(list(rows.values())).double() for rows in (ours, theirs))
    asked = ~one.isnan().all(dim=1)
    assert int(asked.sum()) == sum(LENGTHS.values()) - len(STEPS)  # nothing else is NaN
    return float((one - other)[asked].abs().max() / other[asked].std())
