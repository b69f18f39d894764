"""One layer's attention of some sequences, step after step, against torch's in float64: for any backend on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from chatpaged.engine.model_executor.attention.base import AttentionBackend, AttentionOptions
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput

CPU = torch.device("cpu")
LAYER = 1
# How many tokens of each sequence a step computes: prompts that begin, chunks and decodes together, decodes only, one of each alone.
STEPS = ((33, 5, 0, 1), (7, 1, 20, 1), (1, 1, 3, 1), (1, 1, 1, 1), (0, 0, 6, 0), (0, 1, 0, 0), (1, 0, 1, 0))
PLAIN = AttentionOptions()
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-6}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Shapes and options of a layer. `wider` is room that another layer needs."""

    options: AttentionOptions = PLAIN
    kv_heads: int = 2
    groups: int = 2
    key_dim: int = 16
    value_dim: int = 16
    wider: int = 0
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16


def sinks(heads: int = 4) -> torch.Tensor:
    return torch.randn(heads, generator=torch.Generator().manual_seed(9)) * 2


CASES = {
    "plain": Case(),
    "scale": Case(options=AttentionOptions(scale=0.3)),
    "window 1": Case(options=AttentionOptions(window=1)),
    "window 5": Case(options=AttentionOptions(window=5)),
    "window 32": Case(options=AttentionOptions(window=32)),
    "softcap": Case(options=AttentionOptions(softcap=1.5)),
    "sinks": Case(options=AttentionOptions(sinks=sinks())),
    "sinks and window": Case(options=AttentionOptions(window=6, scale=0.7, sinks=sinks())),
    "all": Case(options=AttentionOptions(window=6, scale=0.7, softcap=2.0, sinks=sinks())),
    "no groups": Case(kv_heads=3, groups=1),
    "three groups, 80 dimensions": Case(groups=3, key_dim=80, value_dim=80),
    "dimensions of no multiple": Case(key_dim=12, value_dim=12, options=AttentionOptions(window=9)),
    "narrow values": Case(key_dim=24, value_dim=6, wider=2),
    "wide values": Case(key_dim=8, value_dim=20, wider=8, options=AttentionOptions(sinks=sinks())),
    "another layer is wider": Case(wider=8),
    "another layer is wider by little": Case(wider=3),
}


def largest_error(case: Case, backend: AttentionBackend, device: torch.device = CPU) -> float:
    """Runs all steps. Returns how far off the results are, at most; what is stored has to be the same to the bit."""
    layout = KVLayout(
        num_layers=2,
        block_size=case.block_size,
        kv_heads=case.kv_heads + case.wider,
        head_dim=max(case.key_dim, case.value_dim) + case.wider,
        dtype=case.dtype,
    )
    num_blocks = sum(-(-length // case.block_size) for length in _lengths()) + 3
    ours, exact = KVCache(layout, num_blocks, device), KVCache(replace(layout, dtype=torch.float64), num_blocks, CPU)
    ours.pool.fill_(torch.nan)
    exact.pool.fill_(torch.nan)
    tables = _tables(case.block_size, num_blocks)
    options = case.options
    given = replace(options, sinks=options.sinks.to(device) if options.sinks is not None else None)
    wide = replace(options, sinks=options.sinks.double() if options.sinks is not None else None)
    generator = torch.Generator().manual_seed(3)
    error, starts = 0.0, [0] * len(tables)
    for counts in STEPS:
        output = _output(starts, counts, tables, case.block_size)
        query, key, value = (
            torch.randn(sum(counts), heads, dim, generator=generator).to(case.dtype)
            for heads, dim in (
                (case.kv_heads * case.groups, case.key_dim),
                (case.kv_heads, case.key_dim),
                (case.kv_heads, case.value_dim),
            )
        )
        reference = TorchPagedAttention(InputBatch.build(output, case.block_size, CPU), exact, plain=True)
        expected = reference.attend(LAYER, query.double(), key.double(), value.double(), wide)
        step = backend.step(InputBatch.build(output, case.block_size, device), ours)
        # As transformers hands them over: heads before tokens.
        turned = [tensor.to(device).transpose(0, 1).contiguous().transpose(0, 1) for tensor in (query, key, value)]
        attended = step.attend(LAYER, turned[0], turned[1], turned[2], given)
        assert attended.dtype == case.dtype
        assert attended.shape == expected.shape
        difference = (attended.cpu().double() - expected).abs().max()
        error = max(error, float(difference) if bool(difference.isfinite()) else torch.inf)
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    torch.testing.assert_close(ours.pool.cpu().double(), exact.pool, rtol=0, atol=0, equal_nan=True)
    return error


def _lengths() -> list[int]:
    return [sum(counts) for counts in zip(*STEPS, strict=True)]


def _tables(block_size: int, num_blocks: int) -> list[tuple[int, ...]]:
    free = (torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(1)) + 1).tolist()
    tables = []
    for length in _lengths():
        needed = -(-length // block_size)
        tables.append(tuple(free[:needed]))
        free = free[needed:]
    return tables


def _output(starts: Sequence[int], counts: Sequence[int], tables: Sequence[tuple[int, ...]], block_size: int) -> SchedulerOutput:
    rows = []
    for i, (start, count, table) in enumerate(zip(starts, counts, tables, strict=True)):
        if count:
            rows.append(ScheduledRow(i, (0,) * count, start, table[: -(-(start + count) // block_size)], ()))
    return SchedulerOutput(0, tuple(rows), ())
