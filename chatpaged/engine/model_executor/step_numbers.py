"""One step as numbers in the host's memory, whatever they are for: a transfer to a device, or buffers that are there already."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt

from chatpaged.engine.scheduler_output import ScheduledRow


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Where one row lies in the batch.

    Attributes:
        begin: index of its first token.
        length: tokens it computes.
        start: tokens of the sequence computed before.
        block_table: blocks of all its tokens up to the last one computed here.
    """

    begin: int
    length: int
    start: int
    block_table: tuple[int, ...]

    @property
    def num_keys(self) -> int:
        """Tokens its last token attends to, itself included."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """What is known of each of T tokens.

    Attributes:
        columns: int64 `[4, T]`: the token, its position, the block where its keys and values go, its place in that block.
        logits_rows: int64 `[R]`, indices of tokens whose logits are needed.
        spans: the rows.
    """

    columns: npt.NDArray[np.int64]
    logits_rows: npt.NDArray[np.int64]
    spans: tuple[RowSpan, ...]

    @classmethod
    def lay_out(cls, rows: Sequence[ScheduledRow], block_size: int) -> TokenNumbers:
        """The tokens of all rows one after another."""
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        logits_rows: list[int] = []
        spans: list[RowSpan] = []
        for row in rows:
            start, table, length = row.start, row.block_table, len(row.token_ids)
            spans.append(RowSpan(len(ids), length, start, table))
            ids += row.token_ids
            if length == 1:
                positions.append(start)
                blocks.append(table[start // block_size])
            else:
                positions += range(start, start + length)
                blocks += _slot_blocks(start, length, table, block_size)
            if row.samples:
                logits_rows.append(len(ids) - 1)
        columns = np.empty((4, len(ids)), np.int64)
        columns[0], columns[1], columns[2] = ids, positions, blocks
        np.remainder(columns[1], block_size, out=columns[3])
        return cls(columns, np.array(logits_rows, np.int64), tuple(spans))


def _slot_blocks(start: int, length: int, table: tuple[int, ...], block_size: int) -> Iterable[int]:
    """The block of each of some tokens that follow each other."""
    first = start // block_size
    part = table[first : (start + length - 1) // block_size + 1]
    each = list(chain.from_iterable(map(repeat, part, repeat(block_size))))
    return each[start - first * block_size :][:length]


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """What is known of each of N rows.

    Attributes:
        cu_q: int32 `[N + 1]`, where each row's tokens begin.
        seq_lens: int32 `[N]`, stored tokens, those of this step included.
        block_table: int32 `[N, M]`; beyond a row's end lies the null block. M is a power of two: few sizes come up.
    """

    cu_q: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_table: npt.NDArray[np.int32]

    @classmethod
    def lay_out(cls, spans: Sequence[RowSpan], num_tokens: int) -> RowNumbers:
        """The rows of a batch of so many tokens."""
        longest = max((len(span.block_table) for span in spans), default=1)
        width = 1 << (longest - 1).bit_length()
        table = np.zeros((len(spans), width), np.int32)
        room = table.view(np.uint8).data if spans else memoryview(b"")
        for i, span in enumerate(spans):
            # A tenth of the time that filling an array from a list takes.
            struct.pack_into(f"={len(span.block_table)}i", room, i * width * table.itemsize, *span.block_table)
        return cls(
            np.array([*(span.begin for span in spans), num_tokens], np.int32), np.array([span.num_keys for span in spans], np.int32), table
        )


@dataclass(frozen=True)
class StepNumbers:
    """A step.

    Attributes:
        tokens: all of them.
        block_size: tokens of a KV block.
    """

    tokens: TokenNumbers
    block_size: int

    @classmethod
    def lay_out(cls, rows: Sequence[ScheduledRow], block_size: int) -> StepNumbers:
        """Those of these rows."""
        return cls(TokenNumbers.lay_out(rows, block_size), block_size)

    @property
    def spans(self) -> tuple[RowSpan, ...]:
        """Where the rows lie."""
        return self.tokens.spans

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.tokens.columns.shape[1])

    @cached_property
    def rows(self) -> RowNumbers:
        """The rows for kernels. Where attention reads the spans, nobody needs them."""
        return RowNumbers.lay_out(self.spans, self.num_tokens)

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """Where keys and values of each token go, int64 `[T]`: blocks have `block_size` slots, one after another."""
        slots: npt.NDArray[np.int64] = self.tokens.columns[2] * self.block_size + self.tokens.columns[3]
        return slots
