"""Paged attention against attention of one dense sequence after another, computed in the plainest way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatpaged.engine.model_executor.attention import torch_paged
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention, plain_attention
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput

CPU = torch.device("cpu")
NUM_LAYERS = 2


@dataclass(frozen=True)
class Geometry:
    """Shapes of one layer's attention."""

    kv_heads: int = 2
    groups: int = 2
    key_dim: int = 4
    value_dim: int = 4


@dataclass
class DenseSequence:
    """All keys and values of one sequence, of both layers, and how far they are in the pool."""

    keys: torch.Tensor
    values: torch.Tensor
    table: list[int]
    computed: int = 0


@dataclass
class World:
    """Some sequences in one pool, which is NaN wherever none of their tokens is stored."""

    geometry: Geometry
    block_size: int
    generator: torch.Generator
    wider: int = 0
    sequences: list[DenseSequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Another layer may need more room than this one.
        shape = {
            "kv_heads": self.geometry.kv_heads + self.wider,
            "head_dim": max(self.geometry.key_dim, self.geometry.value_dim) + self.wider,
        }
        layout = KVLayout(num_layers=NUM_LAYERS, block_size=self.block_size, dtype=torch.float64, **shape)
        self.kv_cache = KVCache(layout, 200 // self.block_size * 2, CPU)
        self.kv_cache.pool.fill_(torch.nan)
        self.free = (torch.randperm(self.kv_cache.num_blocks - 1, generator=self.generator) + 1).tolist()

    def random(self, *shape: int) -> torch.Tensor:
        """Numbers of a size at which attention is sharp."""
        return 2 * torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def add(self, num_tokens: int) -> DenseSequence:
        """A new sequence, of which nothing is computed."""
        shape = (NUM_LAYERS, num_tokens, self.geometry.kv_heads)
        num_blocks = -(-num_tokens // self.block_size)
        table, self.free = self.free[:num_blocks], self.free[num_blocks:]
        sequence = DenseSequence(self.random(*shape, self.geometry.key_dim), self.random(*shape, self.geometry.value_dim), table)
        self.sequences.append(sequence)
        return sequence

    def step(self, grants: Sequence[tuple[DenseSequence, int]], options: AttentionOptions) -> None:
        """Computes more tokens of sequences together, in each layer, and checks every result."""
        rows = []
        for i, (sequence, count) in enumerate(grants):
            table = tuple(sequence.table[: -(-(sequence.computed + count) // self.block_size)])
            rows.append(ScheduledRow(i, (0,) * count, sequence.computed, table, ()))
        batch = InputBatch.build(SchedulerOutput(0, tuple(rows), ()), self.block_size, CPU)
        attention = TorchPagedAttention(batch, self.kv_cache)
        heads = self.geometry.kv_heads * self.geometry.groups
        for layer in range(NUM_LAYERS):
            query = self.random(sum(count for _, count in grants), heads, self.geometry.key_dim)
            spans = [(sequence, slice(sequence.computed, sequence.computed + count)) for sequence, count in grants]
            key = torch.cat([sequence.keys[layer, span] for sequence, span in spans])
            value = torch.cat([sequence.values[layer, span] for sequence, span in spans])
            result = attention.attend(layer, query, key, value, options)
            parts = torch.split(query, [count for _, count in grants])
            expected = torch.cat(
                [
                    dense(part, sequence.keys[layer], sequence.values[layer], span.start, options)
                    for (sequence, span), part in zip(spans, parts, strict=True)
                ]
            )
            assert result.shape == expected.shape
            torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)
        for sequence, count in grants:
            sequence.computed += count


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, options: AttentionOptions) -> torch.Tensor:
    """Attention of tokens `start`, `start + 1`, ... of one sequence: one query and one head at a time."""
    length, heads, dim = query.shape
    groups = heads // keys.shape[1]
    scale = options.scale if options.scale is not None else 1 / math.sqrt(dim)
    output = query.new_zeros(length, heads, values.shape[2])
    for i in range(length):
        position = start + i
        first = 0 if options.window is None else max(0, position - options.window + 1)
        for head in range(heads):
            scores = keys[first : position + 1, head // groups] @ query[i, head] * scale
            if options.softcap is not None:
                scores = options.softcap * torch.tanh(scores / options.softcap)
            weights = torch.exp(scores - scores.max())
            total = weights.sum()
            if options.sinks is not None:
                total = total + torch.exp(options.sinks[head] - scores.max())
            output[i, head] = weights / total @ values[first : position + 1, head // groups]
    return output


def world(seed: int = 0, geometry: Geometry | None = None, block_size: int = 4, wider: int = 0) -> World:
    """A world without sequences."""
    return World(geometry or Geometry(), block_size, torch.Generator().manual_seed(seed), wider)


OPTIONS = {
    "plain": AttentionOptions(),
    "scaled": AttentionOptions(scale=0.3),
    "window 1": AttentionOptions(window=1),
    "window 5": AttentionOptions(window=5),
    "window 16": AttentionOptions(window=16),
    "softcap": AttentionOptions(softcap=1.5),
    "sinks": AttentionOptions(sinks=torch.tensor([0.5, -1.0, 3.0, 0.0], dtype=torch.float64)),
    "all": AttentionOptions(scale=0.7, window=6, softcap=2.0, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0], dtype=torch.float64)),
}


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_one_of_each_kind(options: AttentionOptions, block_size: int) -> None:
    # Prompts that begin, one of a single token; chunks that go on, at and off block edges; decodes of very different lengths.
    here = world(block_size=block_size)
    sequences = [here.add(length) for length in (3, 1, 40, 21, 18, 34, 60, 2)]
    begun, single, chunk, edge, *decodes = sequences
    here.step([(chunk, 10), (edge, 16), (decodes[0], 15)], options)
    here.step([(decodes[1], 33), (decodes[2], 59), (decodes[3], 1), (decodes[0], 2)], options)
    here.step(
        [(begun, 3), (decodes[0], 1), (chunk, 29), (single, 1), (decodes[1], 1), (edge, 4), (decodes[2], 1), (decodes[3], 1)], options
    )
    here.step([(edge, 1), (chunk, 1)], options)
    assert [sequence.computed for sequence in sequences] == [len(sequence.keys[0]) for sequence in sequences]


@pytest.mark.parametrize("value_dim", [2, 4, 7])
@pytest.mark.parametrize(("kv_heads", "groups"), [(1, 4), (4, 1), (2, 3)])
def test_shapes(kv_heads: int, groups: int, value_dim: int) -> None:
    here = world(geometry=Geometry(kv_heads, groups, 4, value_dim), wider=3)
    first, second = here.add(9), here.add(12)
    for options in (AttentionOptions(), AttentionOptions(softcap=2.0, window=3)):
        first.computed = second.computed = 0
        here.step([(first, 5), (second, 7)], options)
        here.step([(second, 4), (first, 3)], options)
        here.step([(second, 1), (first, 1)], options)


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_ragged_batches(data: st.DataObject) -> None:
    here = world(data.draw(st.integers(0, 2**20)), block_size=data.draw(st.sampled_from([1, 2, 16])))
    sinks = data.draw(st.sampled_from([None, OPTIONS["sinks"].sinks]))
    window = data.draw(st.sampled_from([None, None, 1, 3, 8]))
    options = AttentionOptions(window=window, softcap=data.draw(st.sampled_from([None, None, 1.0])), sinks=sinks)
    waiting = [here.add(length) for length in data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))]
    while waiting:
        chosen = data.draw(st.lists(st.sampled_from(waiting), unique_by=id, min_size=1))
        gaps = [(sequence, sequence.keys.shape[1] - sequence.computed) for sequence in chosen]
        here.step([(sequence, data.draw(st.one_of(st.just(1), st.integers(1, gap)))) for sequence, gap in gaps], options)
        waiting = [sequence for sequence in waiting if sequence.computed < sequence.keys.shape[1]]


@pytest.mark.parametrize("options", [AttentionOptions(), AttentionOptions(window=5)], ids=["full", "window"])
def test_many_decodes_of_all_lengths(options: AttentionOptions) -> None:
    # More groups than one, and rows that are padded in each.
    here = world(block_size=2)
    sequences = [here.add(length) for length in (2, 3, 5, 6, 8, 9, 13, 30, 31, 44, 60)]
    here.step([(sequence, sequence.keys.shape[1] - 1) for sequence in sequences], options)
    here.step([(sequence, 1) for sequence in sequences], options)


def test_layers_with_different_windows_share_a_batch() -> None:
    here = world()
    sequence = here.add(20)
    rows = (ScheduledRow(0, (0,) * 20, 0, tuple(sequence.table), ()),)
    attention = TorchPagedAttention(InputBatch.build(SchedulerOutput(0, rows, ()), here.block_size, CPU), here.kv_cache)
    query = here.random(20, 4, 4)
    for layer, window in ((0, None), (1, 3), (0, 3), (1, None)):
        options = AttentionOptions(window=window)
        result = attention.attend(layer, query, sequence.keys[layer], sequence.values[layer], options)
        torch.testing.assert_close(result, dense(query, sequence.keys[layer], sequence.values[layer], 0, options))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 0.02), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("name", ["plain", "window 5", "softcap", "sinks"])
def test_smaller_types(dtype: torch.dtype, tolerance: float, name: str) -> None:
    options = OPTIONS[name]
    here = world()
    exact = here.add(30)
    sinks = None if options.sinks is None else options.sinks.to(dtype)
    small = AttentionOptions(window=options.window, softcap=options.softcap, sinks=sinks)
    layout = KVLayout(num_layers=1, block_size=4, kv_heads=2, head_dim=4, dtype=dtype)
    kv_cache = KVCache(layout, 100, CPU)
    kv_cache.pool.fill_(torch.nan)
    query, keys, values = (tensor.to(dtype) for tensor in (here.random(30, 4, 4), exact.keys[0], exact.values[0]))
    for span in (slice(0, 20), slice(20, 29), slice(29, 30)):
        table = tuple(exact.table[: -(-span.stop // 4)])
        rows = (ScheduledRow(0, (0,) * (span.stop - span.start), span.start, table, ()),)
        attention = TorchPagedAttention(InputBatch.build(SchedulerOutput(0, rows, ()), 4, CPU), kv_cache)
        result = attention.attend(0, query[span], keys[span], values[span], small)
        expected = dense(query[span].double(), keys.double(), values.double(), span.start, options)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["plain", "softcap", "sinks", "all"])
def test_long_score_matrices_are_computed_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_paged, "_MAX_SCORES", 100)
    here = world()
    sequence = here.add(33)
    here.step([(sequence, 17)], OPTIONS[name])
    here.step([(sequence, 16)], OPTIONS[name])


def test_plain_attention_equals_torchs() -> None:
    here = world()
    query, key, value = here.random(2, 4, 5, 4), here.random(2, 2, 9, 4), here.random(2, 2, 9, 3)
    bias = here.random(2, 1, 5, 9)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=True)
    torch.testing.assert_close(plain_attention(query, key, value, bias, AttentionOptions()), expected)
