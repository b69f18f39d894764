"""The dense decoder's Triton kernels, interpreted, against its torch operations. Run by `test_triton.py`, in a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.utils._python_dispatch import TorchDispatchMode

from chatpaged.engine.model_executor.attention import triton_kernels
from chatpaged.engine.model_executor.attention.base import AttentionOptions, PagedAttention
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.attention.triton_paged import TritonPagedAttention
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout, LayerKV
from chatpaged.engine.model_executor.models import fused_kernels as kernels
from chatpaged.engine.model_executor.models.dense import DenseModel, load_dense_model
from chatpaged.engine.model_executor.models.dense_ops import rms_norm
from chatpaged.engine.model_executor.models.rope_table import rotate
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput
from tests.model_executor.dense_cases import CASES, FAMILY_CASES, save_case

CPU = torch.device("cpu")
BLOCK_SIZE = 4
CHUNK = 8
TABLES = ((7, 2, 5, 9), (3, 8))
STEPS = (((0, 9), (0, 1)), ((9, 1), (1, 2)))
"""Of each step, for both sequences: tokens computed before, and tokens to compute. Longer than the models' windows of 8."""
KERNEL_TOLERANCE = {torch.float32: 2e-6, torch.float16: 0.0, torch.bfloat16: 2**-5}
"""Of numbers of order one. In float16 all bits are equal; the interpreter cuts off what bfloat16 has no room for, and does not round."""
MODEL_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 0.15}
"""Of the standard deviation of the logits."""
SAME_KERNELS = {"llama-linear", "llama-llama3", "qwen2-yarn", "qwen2-last-layers", "phi3-longrope", "gemma3-linear", "gemma2-untied"}
"""Cases that differ from others in nothing but numbers in tables, windows, or the output layer."""

Place = Callable[[str], Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Directory of a case's tiny model."""
    root = tmp_path_factory.mktemp("fused")
    return cache(lambda name: save_case(name, root))


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=KERNEL_TOLERANCE[expected.dtype], atol=KERNEL_TOLERANCE[expected.dtype])


DTYPES = [*((dtype, wide) for dtype in (torch.float16, torch.bfloat16) for wide in (False, True)), (torch.float32, False)]
"""Types of activations, and whether norm weights and tables are wider than that."""


@pytest.mark.parametrize(("dtype", "wide"), DTYPES)
def test_residual(dtype: torch.dtype, wide: bool) -> None:
    x, change = (numbers(seed, 3, 80).to(dtype)[:, :40] for seed in (0, 1))  # rows of something wider
    first, second = (1 + 0.3 * numbers(seed, 40).to(torch.float32 if wide else dtype) for seed in (2, 3))
    for change_norm, norm, scale in product((None, first), (None, second), (1.0, 0.22)):
        total, normed = kernels.add_and_norm(x, change, change_norm, norm, 1e-5, scale)
        added = change if change_norm is None else rms_norm(change, change_norm, 1e-5)
        expected = x + (added if scale == 1.0 else added * scale)
        close(total, expected)
        close(normed, expected if norm is None else rms_norm(total, norm, 1e-5))
    unchanged, normed = kernels.add_and_norm(x, None, None, first, 1e-5)
    assert unchanged is x
    close(normed, rms_norm(x, first, 1e-5))


@pytest.mark.parametrize("dtype", KERNEL_TOLERANCE)
@pytest.mark.parametrize("width", [24, 1030])
def test_activation(dtype: torch.dtype, width: int) -> None:
    gate_up = (3 * numbers(0, 2, 2 * width)).to(dtype)
    gate_up[0, :4] = torch.tensor([1e4, -1e4, 0.0, -20.0])
    gate, up = gate_up.chunk(2, dim=1)
    close(kernels.activate(gate_up, "silu"), F.silu(gate) * up)
    # Whose tanh rounds in another place than ours.
    torch.testing.assert_close(
        kernels.activate(gate_up, "gelu_tanh").float(),
        (F.gelu(gate, approximate="tanh") * up).float(),
        rtol=max(KERNEL_TOLERANCE[dtype], 2 * torch.finfo(dtype).eps),
        atol=max(KERNEL_TOLERANCE[dtype], 1e-5),
    )


@pytest.mark.parametrize(("dtype", "wide"), DTYPES)
@pytest.mark.parametrize("norm", ["none", "head", "full"])
def test_heads(norm: str, dtype: torch.dtype, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TILE_ELEMENTS", 32)  # four heads, so that a tile has queries and keys, another keys and values
    dim, num_heads, kv_heads = 6, 6, 3
    wider = torch.float32 if wide else dtype
    qkv = numbers(0, 4, 2 * (num_heads + 2 * kv_heads) * dim).to(dtype)[:, : (num_heads + 2 * kv_heads) * dim]
    positions, slots = torch.tensor([3, 0, 9, 1]), torch.tensor([5, -1, 11, 16])
    weights: list[torch.Tensor | None] = [None, None, None]
    if norm != "none":
        weights[:2] = [1 + 0.3 * numbers(1, dim if norm == "head" else heads * dim).to(wider) for heads in (num_heads, kv_heads)]
    for turned in (0, 4, dim):
        angles = numbers(2, 12, turned // 2)
        rotation = (angles.cos().to(wider), angles.sin().to(wider))
        pool = torch.full((5, 2, 2, BLOCK_SIZE, kv_heads, dim), torch.nan, dtype=dtype)
        expected_pool = pool.clone()
        keys, values = pool[:, 1].unbind(1)
        queries = kernels.store_heads(
            *(qkv, LayerKV(keys, values), slots, positions),
            num_heads=num_heads,
            q_norm=weights[0],
            k_norm=weights[1],
            norm=norm,
            eps=1e-5,
            rotation=rotation if turned else None,
        )
        parts = list(torch.split(qkv.view(4, -1, dim), [num_heads, kv_heads, kv_heads], dim=1))
        for which, weight in enumerate(weights[:2]):
            if weight is not None:
                parts[which] = rms_norm(parts[which].reshape(4, -1, len(weight)), weight, 1e-5).view(4, -1, dim)
            parts[which] = rotate(parts[which], *(table[positions].unsqueeze(1) for table in rotation))
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                for which in (0, 1):
                    expected_pool[slot // BLOCK_SIZE, 1, which, slot % BLOCK_SIZE] = parts[1 + which][token]
        close(queries, parts[0])
        assert torch.equal(pool.isnan(), expected_pool.isnan())  # it stores where it should, and nowhere else
        close(pool.nan_to_num(), expected_pool.nan_to_num())


def test_nothing_to_compute() -> None:
    empty, weight = torch.empty(0, 8), torch.ones(8)
    total, normed = kernels.add_and_norm(empty, empty, None, weight, 1e-5)
    assert total.shape == normed.shape == (0, 8)
    assert kernels.activate(empty, "silu").shape == (0, 4)


def load(directory: Path, dtype: torch.dtype, *, fused: bool) -> DenseModel:
    return load_dense_model(directory, dtype, CPU, None, fused=fused)


def make_kv_cache(model: DenseModel, dtype: torch.dtype) -> KVCache:
    geometry = model.geometry()
    layout = KVLayout(
        num_layers=geometry.num_layers, block_size=BLOCK_SIZE, kv_heads=geometry.kv_heads, head_dim=geometry.head_dim, dtype=dtype
    )
    kv_cache = KVCache(layout, 10, CPU)
    kv_cache.pool.fill_(torch.nan)
    return kv_cache


def make_batch(step: Sequence[tuple[int, int]]) -> InputBatch:
    """Tokens follow from sequence and position."""
    rows = tuple(
        ScheduledRow(seq, tuple((7 * at + 31 * seq + 3) % 90 for at in range(start, start + count)), start, _table(seq, start + count), ())
        for seq, (start, count) in enumerate(step)
    )
    return InputBatch.build(SchedulerOutput(0, rows, ()), BLOCK_SIZE, CPU)


def _table(seq: int, length: int) -> tuple[int, ...]:
    return TABLES[seq][: -(-length // BLOCK_SIZE)]


def logits(model: DenseModel, dtype: torch.dtype, attend: Callable[[InputBatch, KVCache], PagedAttention]) -> torch.Tensor:
    """Of all tokens of all steps."""
    kv_cache = make_kv_cache(model, dtype)
    parts = []
    for step in STEPS:
        batch = make_batch(step)
        with torch.inference_mode(), forward_context(attend(batch, kv_cache)):
            parts.append(model.forward(batch.input_ids, batch.positions, torch.arange(len(batch.input_ids))))
    return torch.cat(parts)


class StoredTorchAttention(TorchPagedAttention):
    """Torch's attention over what was stored: with it, nothing but the operations that are compared differs."""

    def __init__(self, batch: InputBatch, kv_cache: KVCache) -> None:
        super().__init__(batch, kv_cache)
        self._slots = batch.slot_blocks * BLOCK_SIZE + batch.slot_offsets
        self._whole = kv_cache.pool

    def places(self, layer: int) -> tuple[LayerKV, torch.Tensor]:
        keys, values = self._whole[:, layer].unbind(1)
        return LayerKV(keys, values), self._slots

    def attend_stored(self, layer: int, query: torch.Tensor, options: AttentionOptions, kv_heads: int, value_dim: int) -> torch.Tensor:
        stored, slots = self.places(layer)
        places = (slots // BLOCK_SIZE, slots % BLOCK_SIZE)
        return self.attend(layer, query, stored.keys[places], stored.values[places], options)


def triton_attention(batch: InputBatch, kv_cache: KVCache) -> TritonPagedAttention:
    return TritonPagedAttention(StepRows.build(batch, BLOCK_SIZE), kv_cache, CHUNK)


def check(name: str, dtype: torch.dtype, place: Place) -> None:
    directory = place(name)
    fused = logits(load(directory, dtype, fused=True), dtype, StoredTorchAttention)
    plain = logits(load(directory, dtype, fused=False), dtype, TorchPagedAttention)
    assert fused.dtype == plain.dtype
    error = (fused.double() - plain.double()).abs().max() / plain.double().std()
    assert float(error) < MODEL_TOLERANCE[dtype], (name, dtype)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SAME_KERNELS])
def test_gives_the_logits_of_torch_operations(name: str, place: Place) -> None:
    check(name, torch.float32, place)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float16) for name in FAMILY_CASES), *((name, torch.bfloat16) for name in ("qwen3", "gemma2", "olmo2"))],
)
def test_other_types_agree_as_far_as_they_go(name: str, dtype: torch.dtype, place: Place) -> None:
    check(name, dtype, place)


@pytest.mark.parametrize("name", ["qwen3", "gemma2-biases", "olmo2", "phi3-partial"])
def test_padding_changes_nothing(name: str, place: Place) -> None:
    model = load(place(name), torch.float16, fused=True)
    kv_cache = make_kv_cache(model, torch.float16)
    batch = make_batch(((0, 3), (0, 1)))
    count, extra = len(batch.input_ids), 3
    exact = StepRows.build(batch, BLOCK_SIZE)
    # As a graph is replayed for fewer tokens than it has room for.
    padded = StepRows(
        cu_q=torch.tensor([0, 3, count, count + extra], dtype=torch.int32),
        seq_lens=torch.tensor([3, 1, 0], dtype=torch.int32),
        block_table=torch.cat((exact.block_table, torch.full_like(exact.block_table[:1], 2**31 - 1))),
        slots=torch.cat((exact.slots, torch.full((extra,), -1))),
        only_single=False,
    )
    tokens = [torch.cat((tensor, torch.zeros(extra, dtype=torch.int64))) for tensor in (batch.input_ids, batch.positions)]
    found = []
    for rows, (ids, positions) in ((exact, (batch.input_ids, batch.positions)), (padded, tokens)):
        kv_cache.pool.fill_(torch.nan)
        with torch.inference_mode(), forward_context(TritonPagedAttention(rows, kv_cache, CHUNK)):
            found.append((model.forward(ids, positions, torch.arange(len(ids))), kv_cache.pool.clone()))
    (alone, pool), (together, pool_together) = found
    torch.testing.assert_close(together[:count], alone, rtol=1e-3, atol=1e-3)  # torch's own products may depend on the number of rows
    assert bool(together.isfinite().all())
    assert torch.equal(pool.isnan(), pool_together.isnan())
    torch.testing.assert_close(pool.nan_to_num(), pool_together.nan_to_num(), rtol=1e-3, atol=1e-3)


class _Launches(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not say
    """Counts what would be a kernel on a GPU, of torch and of ours."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in {"empty", "new_empty", "empty_like", "_unsafe_view", "detach"}:
            self.counts[name] += 1
        return func(*args, **kwargs or {})

    def watch(self, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Launches of a kernel are counted, and do nothing."""

        class Stub:
            def __getitem__(_, grid: tuple[int, ...]) -> Callable[..., None]:  # noqa: N805 - within `self` of the counter
                return lambda *tensors, **options: self.counts.update([kernel.__name__])

        for module in (kernels, triton_kernels):
            if hasattr(module, kernel.__name__):
                monkeypatch.setattr(module, kernel.__name__, Stub())


@pytest.mark.parametrize(("name", "step", "attention"), [("qwen3", ((4, 1), (2, 1)), 1), ("gemma2", ((14, 1), (2, 1)), 2)])
def test_launches_of_a_layer(name: str, step: Any, attention: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding takes four products and four kernels beside attention in each layer: what a step's time is made of in a graph."""
    model = load(place(name), torch.bfloat16, fused=True)
    num_layers = model.geometry().num_layers
    deeper = load(place(name), torch.bfloat16, fused=True)
    deeper._config = replace(deeper._config, num_layers=2 * num_layers)
    deeper._weights.layers *= 2
    deeper._ops._options *= 2  # type: ignore[attr-defined]
    deeper._ops._rotations *= 2  # type: ignore[attr-defined]
    launches = []
    for each in (model, deeper):
        kv_cache = make_kv_cache(deeper, torch.bfloat16)
        batch = make_batch(step)
        triton_rows = triton_attention(batch, kv_cache)
        counter = _Launches()
        with monkeypatch.context() as patch:
            for kernel in (kernels.residual_kernel, kernels.heads_kernel, kernels.activation_kernel):
                counter.watch(kernel, patch)
            for kernel in (triton_kernels.attention_kernel, triton_kernels.combine_kernel, triton_kernels.write_kernel):
                counter.watch(kernel, patch)
            with torch.inference_mode(), forward_context(triton_rows), counter:
                each.forward(batch.input_ids, batch.positions, batch.logits_rows)
        launches.append(counter.counts)
    more = {what: count / num_layers for what, count in (launches[1] - launches[0]).items()}
    expected = {"linear": 4, "residual_kernel": 2, "heads_kernel": 1, "activation_kernel": 1, "attention_kernel": 1}
    assert more == expected | ({"combine_kernel": 1} if attention == 2 else {})
    assert sum(more.values()) == 8 + attention
    assert sum(launches[0].values()) <= (8 + attention) * num_layers + 8
