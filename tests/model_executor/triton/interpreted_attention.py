"""The kernels in Triton's interpreter against torch's attention in float64. Run by `test_triton.py`, in a process of its own."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from chatpaged.engine.model_executor.attention import triton_kernels as kernels
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.attention.triton_kernels import IS_INTERPRETED, Launch, Scores
from chatpaged.engine.model_executor.attention.triton_paged import TritonPagedAttention
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput

CPU = torch.device("cpu")
SMALL = Launch(rows=16, tile=16, warps=4, stages=2)
MIXED = ((1, 69), (7, 10), (20, 0), (1, 0), (3, 61))
"""Tokens to compute and tokens computed before: decodes, chunks that go on, prompts that begin."""
DECODES = ((1, 69), (1, 3), (1, 0), (1, 32))
LAYER = 1
PLAIN = AttentionOptions()


@dataclass(frozen=True, kw_only=True)
class Case:
    """Shapes and options of one layer's attention, and how it is cut up."""

    options: AttentionOptions = PLAIN
    rows: Sequence[tuple[int, int]] = MIXED
    kv_heads: int = 2
    groups: int = 4
    key_dim: int = 16
    value_dim: int = 16
    block_size: int = 16
    chunk: int = 32
    launch: Launch | None = SMALL
    dtype: torch.dtype = torch.float32
    wider: int = 0


class Bench:
    """A pool that is NaN but for what sequences have stored, and a step over them, each sequence with numbers of its own."""

    def __init__(self, case: Case) -> None:
        self.case = case
        layout = KVLayout(
            num_layers=2,
            block_size=case.block_size,
            kv_heads=case.kv_heads + case.wider,
            head_dim=max(case.key_dim, case.value_dim) + case.wider,
            dtype=case.dtype,
        )
        self.kv_cache, self.wide = (KVCache(each, 600 // case.block_size, CPU) for each in (layout, replace(layout, dtype=torch.float64)))
        self.kv_cache.pool.fill_(torch.nan)
        free = (torch.randperm(self.kv_cache.num_blocks - 1, generator=torch.Generator().manual_seed(1)) + 1).tolist()
        self.rows = []
        parts: list[tuple[torch.Tensor, ...]] = []
        for i, (count, start) in enumerate(case.rows):
            num_blocks = -(-(count + start) // case.block_size)
            table, free = free[:num_blocks], free[num_blocks:]
            self.rows.append(ScheduledRow(i, (0,) * count, start, tuple(table), ()))
            key, value, query = self._numbers(i, count + start)
            for at in range(start):
                block = self.kv_cache.pool[table[at // case.block_size], LAYER, :, at % case.block_size]
                block[0, : case.kv_heads, : case.key_dim] = key[at]
                block[1, : case.kv_heads, : case.value_dim] = value[at]
            parts.append((query[start:], key[start:], value[start:]))
        self.parts = parts
        self.wide.pool.copy_(self.kv_cache.pool)

    def _numbers(self, seed: int, length: int) -> tuple[torch.Tensor, ...]:
        case, generator = self.case, torch.Generator().manual_seed(seed)
        shapes = ((case.kv_heads, case.key_dim), (case.kv_heads, case.value_dim), (case.kv_heads * case.groups, case.key_dim))
        return tuple(torch.randn(length, *shape, generator=generator).to(case.dtype) for shape in shapes)

    def step(self, chosen: Sequence[int]) -> tuple[InputBatch, list[torch.Tensor]]:
        """The batch of some of the sequences, and its queries, keys and values."""
        batch = InputBatch.build(SchedulerOutput(0, tuple(self.rows[i] for i in chosen), ()), self.case.block_size, CPU)
        return batch, [torch.cat([self.parts[i][which] for i in chosen]) for which in range(3)]

    def run(self, chosen: Sequence[int]) -> list[torch.Tensor]:
        """What the kernels make of some of the sequences together: the outputs of each."""
        batch, (query, key, value) = self.step(chosen)
        rows = StepRows.build(batch, self.case.block_size)
        attention = TritonPagedAttention(rows, self.kv_cache, self.case.chunk, self.case.launch)
        # As transformers hands them over: heads before tokens.
        query = query.transpose(0, 1).contiguous().transpose(0, 1)
        out = attention.attend(LAYER, query, key, value, self.case.options)
        return list(torch.split(out, [len(self.parts[i][0]) for i in chosen]))

    def expected(self) -> torch.Tensor:
        """What torch makes of all of them, in float64."""
        batch, tensors = self.step(range(len(self.rows)))
        sinks = self.case.options.sinks
        options = replace(self.case.options, sinks=sinks.double() if sinks is not None else None)
        query, key, value = (tensor.double() for tensor in tensors)
        return TorchPagedAttention(batch, self.wide).attend(LAYER, query, key, value, options)


def sinks(heads: int) -> torch.Tensor:
    return torch.randn(heads, generator=torch.Generator().manual_seed(9)) * 2


ALL = AttentionOptions(scale=0.3, window=9, softcap=5.0, sinks=sinks(8))
CASES = {
    "plain": Case(),
    "one chunk": Case(chunk=256),
    "decodes": Case(rows=DECODES),
    "window": Case(options=AttentionOptions(window=9)),
    "window 1": Case(options=AttentionOptions(window=1)),
    "window of a chunk": Case(options=AttentionOptions(window=32), rows=DECODES),
    "softcap": Case(options=AttentionOptions(softcap=5.0)),
    "sinks": Case(options=AttentionOptions(sinks=sinks(8))),
    "all": Case(options=ALL),
    "three groups, 80 dimensions": Case(groups=3, key_dim=80, value_dim=80, options=AttentionOptions(window=40)),
    "one head of keys": Case(kv_heads=1, groups=7),
    "no groups": Case(kv_heads=3, groups=1),
    "more groups than rows": Case(kv_heads=1, groups=20, launch=replace(SMALL, rows=32)),
    "narrow values": Case(key_dim=24, value_dim=6, wider=3),
    "wide values": Case(key_dim=6, value_dim=24, rows=MIXED[:3]),
    "blocks of 1": Case(block_size=1, rows=((1, 40), (9, 5))),
    "blocks larger than tiles": Case(block_size=64),
    "chosen launch": Case(launch=None, chunk=256, key_dim=128, value_dim=128, kv_heads=1),
    "256 dimensions": Case(launch=None, chunk=64, key_dim=256, value_dim=256, kv_heads=1, rows=((1, 69), (5, 64))),
}
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def test_the_kernels_are_interpreted() -> None:
    assert IS_INTERPRETED


HALVES = ("plain", "all", "decodes", "three groups, 80 dimensions")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in CASES), *((name, dtype) for name in HALVES for dtype in (torch.float16, torch.bfloat16))],
)
def test_equals_torch(name: str, dtype: torch.dtype, record_property: Callable[[str, object], None]) -> None:
    bench = Bench(replace(CASES[name], dtype=dtype))
    result, expected = torch.cat(bench.run(range(len(bench.rows)))), bench.expected()
    assert result.dtype == dtype
    assert result.shape == expected.shape
    error = float((result.double() - expected).abs().max())
    record_property("error", error)
    assert error <= TOLERANCE[dtype]
    torch.testing.assert_close(bench.kv_cache.pool.double(), bench.wide.pool, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), [("plain", torch.float32), ("all", torch.float16), ("all", torch.bfloat16)])
def test_a_sequence_is_the_same_to_the_bit_in_any_company(name: str, dtype: torch.dtype) -> None:
    # The width of the block table, and with it how many chunks there is room for, depends on who else is there.
    bench = Bench(replace(CASES[name], dtype=dtype))
    together = bench.run(range(len(bench.rows)))
    for company in ([0], [3], [2, 4], [1, 4, 2]):
        for sequence, alone in zip(company, bench.run(company), strict=True):
            assert torch.equal(alone, together[sequence]), f"sequence {sequence} in {company}"


@pytest.mark.parametrize("name", ["decodes", "window of a chunk"])
def test_how_many_programs_share_the_chunks_changes_no_bit(name: str) -> None:
    def attended(programs: int) -> torch.Tensor:
        bench = Bench(replace(CASES[name], launch=replace(SMALL, programs=programs)))
        return torch.cat(bench.run(range(len(bench.rows))))

    alone = attended(10**6)  # a chunk each
    assert torch.equal(attended(1), alone)
    assert torch.equal(attended(2 * 2 * len(DECODES)), alone)


@pytest.mark.parametrize("chunk", [32, 128])
@pytest.mark.parametrize("chosen", [DECODES, MIXED], ids=["decodes", "mixed"])
def test_padding_changes_nothing_and_gives_zeros(chunk: int, chosen: Sequence[tuple[int, int]]) -> None:
    bench = Bench(replace(CASES["all"], rows=chosen, chunk=chunk))
    batch, (query, key, value) = bench.step(range(len(chosen)))
    exact = StepRows.build(batch, bench.case.block_size)
    expected = bench.run(range(len(chosen)))
    count, tokens = len(chosen), len(query)
    # An empty sequence in the middle, one of several tokens without keys, and single ones; tables full of nonsense beyond their ends.
    counts = [*(size for size, _ in chosen[:2]), 0, *(size for size, _ in chosen[2:]), *(() if exact.only_single else (17,)), 1, 1]
    order = [0, 1, -1, *range(2, count), *(-1,) * (len(counts) - count - 1)]
    extra = sum(counts) - tokens
    table = torch.full((len(order), exact.block_table.shape[1] * 2), 2**31 - 1, dtype=torch.int32)
    for place, sequence in enumerate(order):
        used = len(bench.rows[sequence].block_table) if sequence >= 0 else 0
        table[place, :used] = exact.block_table[sequence, :used]
    rows = StepRows(
        cu_q=torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32),
        seq_lens=torch.tensor([int(exact.seq_lens[sequence]) if sequence >= 0 else 0 for sequence in order], dtype=torch.int32),
        block_table=table,
        slots=torch.cat((exact.slots, torch.full((extra,), -1))),
        only_single=exact.only_single,
    )
    before = bench.kv_cache.pool.clone()
    attention = TritonPagedAttention(rows, bench.kv_cache, bench.case.chunk, bench.case.launch)
    padded = [torch.cat((tensor, torch.full((extra, *tensor.shape[1:]), 1e4))) for tensor in (query, key, value)]
    out = attention.attend(LAYER, padded[0], padded[1], padded[2], bench.case.options)
    assert torch.equal(out[:tokens], torch.cat(expected))
    assert torch.equal(out[tokens:], torch.zeros_like(out[tokens:]))
    torch.testing.assert_close(bench.kv_cache.pool, before, rtol=0, atol=0, equal_nan=True)


def test_blocks_further_away_than_32_bits_can_say(tmp_path: Path) -> None:
    block_size, dim, stride = 16, 16, 2**30
    size = 3 * stride + 2 * block_size * dim
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 2 * size)  # takes no room on the disk
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        # Of the whole, torch sees only the first block, and thinks that there are no others; the stride is what kernels go by.
        first = torch.frombuffer(memory, dtype=torch.float16, count=2 * block_size * dim)
        keys, values = first.view(2, 1, block_size, 1, dim).as_strided((2, 1, block_size, 1, dim), (block_size * dim, stride, dim, dim, 1))
        numbers = torch.randn(3, 40, 1, dim, generator=torch.Generator().manual_seed(3)).half()
        slots = torch.cat([torch.arange(block_size) + block * block_size for block in (3, 1, 2)])[:40]
        slots[5] = -1
        kernels.write(keys, values, numbers[1], numbers[2], slots)
        far = torch.frombuffer(memory, dtype=torch.float16, count=block_size * dim, offset=2 * 3 * stride).view(block_size, 1, dim)
        stored = numbers[1, :block_size].clone()
        stored[5] = 0
        assert torch.equal(far, stored)
        slots[5] = 3 * block_size + 5
        kernels.write(keys, values, numbers[1], numbers[2], slots)
        for count in (1, 40):
            rows = StepRows(
                cu_q=torch.tensor([0, count], dtype=torch.int32),
                seq_lens=torch.tensor([40], dtype=torch.int32),
                block_table=torch.tensor([[3, 1, 2]], dtype=torch.int32),
                slots=slots,
                only_single=count == 1,
            )
            out = kernels.attend(
                numbers[0, -count:], keys, values, rows, Scores(scale=0.25), kv_heads=1, value_dim=dim, chunk=16, launch=SMALL
            )
            query, key, value = (tensor.double().transpose(0, 1) for tensor in numbers)
            scores = (query[:, -count:] @ key.transpose(1, 2) * 0.25).masked_fill(torch.ones(40, 40).triu(1)[-count:].bool(), -torch.inf)
            torch.testing.assert_close(out.double().transpose(0, 1), scores.softmax(-1) @ value, rtol=0, atol=2e-3)
        del first, keys, values, far


def test_nothing_is_read_beyond_a_table(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        table = torch.frombuffer(memory, dtype=torch.int32, count=1, offset=mmap.PAGESIZE - 4).view(1, 1)
        table[0] = 1
        os.truncate(path, mmap.PAGESIZE)  # reading beyond the table is now the end of the process
        pool = torch.zeros(2, 2, 4, 1, 16)
        for count in (1, 2):
            rows = StepRows(
                cu_q=torch.tensor([0, count], dtype=torch.int32),
                seq_lens=torch.tensor([count], dtype=torch.int32),
                block_table=table,
                slots=torch.full((count,), -1),
                only_single=count == 1,
            )
            out = kernels.attend(
                torch.ones(count, 1, 16), pool[:, 0], pool[:, 1], rows, Scores(scale=1.0), kv_heads=1, value_dim=16, chunk=64
            )
            assert torch.equal(out, torch.zeros_like(out))
        del table
