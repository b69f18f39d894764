"""One step of attention over a paged pool, with what it has to give by the formula: shared by this script and the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import plain_attention
from chatpaged.engine.model_executor.attention.triton_paged import TritonPagedAttention, choose_chunk
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout

PADDING = -1
"""Instead of the tokens stored before: tokens of this sequence belong to nobody, are stored nowhere and get zeros."""
LAYER = 1
NUM_LAYERS = 2

Counts = Sequence[tuple[int, int]]
"""Of each sequence: tokens to compute, and tokens stored before or PADDING."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What kernels are compiled for.

    Attributes:
        kv_heads: heads of keys and values.
        groups: query heads to each of them.
        key_dim: dimensions of queries and keys.
        value_dim: dimensions of values; 0 is those of keys.
        block_size: tokens a block holds.
        window: see `AttentionOptions`, like the rest.
        softcap: likewise.
        sinks: whether there are any.
        min_elements: the pool has at least so many, and blocks of its end are used: their addresses need more than 32 bits.
    """

    kv_heads: int
    groups: int
    key_dim: int
    value_dim: int = 0
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    min_elements: int = 0

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.groups

    @property
    def widest(self) -> int:
        """Dimensions of a head in the pool."""
        return max(self.key_dim, self.value_dim)


class PagedStep:
    """A pool that is NaN but for what sequences have stored, and a step over them; all numbers are random.

    Attributes:
        kv_cache: the pool.
        tables: the blocks of each sequence, `[blocks]`.
        rows: the step, as kernels are told of it.
        query: `[T, heads, key_dim]`.
        key: `[T, kv_heads, key_dim]`.
        value: `[T, kv_heads, value_dim]`.
    """

    def __init__(self, shape: Shape, counts: Counts, dtype: torch.dtype, device: torch.device) -> None:
        self._shape, self._counts, self._device = shape, counts, device
        self._value_dim = shape.value_dim or shape.key_dim
        self._random = torch.Generator(device).manual_seed(1)
        layout = KVLayout(
            num_layers=NUM_LAYERS,
            block_size=shape.block_size,
            kv_heads=shape.kv_heads,
            head_dim=max(shape.key_dim, self._value_dim),
            dtype=dtype,
        )
        self._lengths = [count + start if start >= 0 else 0 for count, start in counts]
        needed = [-(-length // shape.block_size) for length in self._lengths]
        elements = layout.block_bytes // dtype.itemsize
        num_blocks = max(2 * sum(needed) + 2, -(-shape.min_elements // elements))
        self.kv_cache = KVCache(layout, num_blocks, device)
        self.kv_cache.pool.fill_(torch.nan)
        # In no order, among twice as many at the pool's end.
        ids = torch.randperm(2 * sum(needed) + 1, generator=torch.Generator().manual_seed(1))[: sum(needed)]
        self.tables = list(torch.split((num_blocks - 1 - ids).to(device), needed))
        self._keys = [self._draw(length, shape.kv_heads, shape.key_dim, dtype) for length in self._lengths]
        self._values = [self._draw(length, shape.kv_heads, self._value_dim, dtype) for length in self._lengths]
        self.query = self._draw(sum(count for count, _ in counts), shape.heads, shape.key_dim, dtype)
        self.key, self.value = (self._new_tokens(numbers) for numbers in (self._keys, self._values))
        sinks = torch.randn(shape.heads, generator=self._random, device=device) * 2 if shape.sinks else None
        self._options = AttentionOptions(scale=None, window=shape.window, softcap=shape.softcap, sinks=sinks)
        self._store()
        self.rows = self._build_rows()

    def _draw(self, tokens: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(tokens, heads, dim, generator=self._random, device=self._device).to(dtype)

    def _new_tokens(self, numbers: list[torch.Tensor]) -> torch.Tensor:
        """Those that the step computes, of all sequences."""
        parts = []
        for (count, start), stored in zip(self._counts, numbers, strict=True):
            parts.append(stored[start:] if start >= 0 else stored.new_full((count, *stored.shape[1:]), 1e4))
        return torch.cat(parts)

    def _store(self) -> None:
        """Puts what was computed before the step where the tables say."""
        keys, values = self.kv_cache.pool[:, LAYER].unbind(1)
        for (_, start), table, key, value in zip(self._counts, self.tables, self._keys, self._values, strict=True):
            at = torch.arange(max(start, 0), device=self._device)
            block, slot = table[at // self._shape.block_size], at % self._shape.block_size
            keys[block, slot, :, : key.shape[2]] = key[: len(at)]
            values[block, slot, :, : value.shape[2]] = value[: len(at)]

    def _build_rows(self) -> StepRows:
        size, device = self._shape.block_size, self._device
        slots = []
        for (count, start), table in zip(self._counts, self.tables, strict=True):
            at = torch.arange(start, start + count, device=device) if start >= 0 else None
            slots.append(torch.full((count,), -1, device=device) if at is None else table[at // size] * size + at % size)
        width = 1 << (max(1, *(len(table) for table in self.tables)) - 1).bit_length()
        # What lies beyond a sequence's end is never read: nonsense there would show.
        block_table = torch.full((len(self._counts), width), 2**31 - 1, dtype=torch.int32, device=device)
        for place, table in enumerate(self.tables):
            block_table[place, : len(table)] = table
        begins = torch.tensor([0, *(count for count, _ in self._counts)]).cumsum(0)
        return StepRows(
            cu_q=begins.to(device, torch.int32),
            seq_lens=torch.tensor(self._lengths, dtype=torch.int32, device=device),
            block_table=block_table,
            slots=torch.cat(slots).to(torch.int64),
            only_single=all(count <= 1 for count, _ in self._counts),
        )

    def attend(self) -> torch.Tensor:
        """What Triton's kernels give, `[T, heads, value_dim]`; they store the step's keys and values first."""
        longest = max(self._lengths)
        attention = TritonPagedAttention(self.rows, self.kv_cache, choose_chunk(longest))
        return attention.attend(LAYER, self.query, self.key, self.value, self._options)

    def expected(self) -> torch.Tensor:
        """What the formula gives, in float64."""
        sinks = self._options.sinks
        options = AttentionOptions(scale=None, softcap=self._options.softcap, sinks=None if sinks is None else sinks.double())
        parts = []
        queries = torch.split(self.query, [count for count, _ in self._counts])
        for (count, start), query, key, value in zip(self._counts, queries, self._keys, self._values, strict=True):
            if start < 0 or count == 0:
                parts.append(query.new_zeros(count, self._shape.heads, self._value_dim, dtype=torch.float64))
                continue
            positions = torch.arange(start, start + count, device=self._device).unsqueeze(1)
            keys = torch.arange(start + count, device=self._device)
            hidden = keys > positions
            if self._options.window is not None:
                hidden |= keys <= positions - self._options.window
            bias = torch.zeros(hidden.shape, dtype=torch.float64, device=self._device).masked_fill_(hidden, -torch.inf)
            wide = [tensor.double().transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)]
            parts.append(plain_attention(wide[0], wide[1], wide[2], bias, options).squeeze(0).transpose(0, 1))
        return torch.cat(parts)

    def attention_error(self) -> float:
        """The largest difference between the two, in units of the result where that is above 1. NaN if the kernels gave one."""
        expected = self.expected()
        return float(((self.attend().double() - expected).abs() / expected.abs().clamp_min(1)).max())

    def wrong_slots(self) -> int:
        """After `attend`: numbers in the pool that are not what was stored there, and numbers where none belong."""
        size, pool = self._shape.block_size, self.kv_cache.pool
        wrong = stored = 0
        for length, table, key, value in zip(self._lengths, self.tables, self._keys, self._values, strict=True):
            at = torch.arange(length, device=self._device)
            block, slot = table[at // size], at % size
            for which, numbers in enumerate((key, value)):
                wrong += int((pool[block, LAYER, which, slot][..., : numbers.shape[2]] != numbers).sum())
                stored += numbers.numel()
        numbers_there = sum(int(piece.isfinite().sum()) for piece in torch.split(pool, max(1, 2**28 // pool[0].numel())))
        return wrong + abs(numbers_there - stored)
