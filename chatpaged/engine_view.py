"""The engine as whoever chats sees it: a snapshot told by conversations, in numbers that add up.

```text
                    own   shared   cached
Greeting  writing    12       40        -     own       held by one answer alone
Poem      reading     8       40        -     shared    held by several answers, of one chat or of several
Recipe    idle        -       40       30     cached    in the prefix cache, in nobody's use
other requests        3        -        -     work that belongs to no chat
no open chat          -        -       12     cached, but no open chat begins like it
counted twice         -      -80        -     what several chats have is there once: repeats are taken off again
all                  23       40       42     23 + 40 + 42 + free blocks + the null block = the pool
```
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chatpaged.engine.block_pool import BlockState, states_of
from chatpaged.engine.sequence import SequenceStatus
from chatpaged.engine.snapshot import EngineSnapshot, StepTiming
from chatpaged.engine_rows import ChatFacts, ChatRow, ChatRows

STEP_PARTS = ("schedule", "operations", "prepare", "forward", "sample", "process")
SERIES_STEPS = 60
_REFRESH_SECONDS = 0.25


class Cell(enum.IntEnum):
    """What one block is, for somebody who looks at a chat. The larger, the more it matters when several share a place."""

    NULL = 0
    FREE = 1
    LOWER = 2
    CACHED = 3
    PINNED = 4
    USED = 5
    SHARED = 6
    CHAT_CACHED = 7
    CHAT_PINNED = 8
    CHAT_USED = 9
    CHAT_SHARED = 10


_CELLS = bytes.maketrans(
    bytes([BlockState.NULL, BlockState.FREE, BlockState.CACHED, BlockState.USED, BlockState.SHARED]),
    bytes([Cell.NULL, Cell.FREE, Cell.CACHED, Cell.USED, Cell.SHARED]),
)
_LIT = bytes.maketrans(
    bytes([Cell.CACHED, Cell.PINNED, Cell.USED, Cell.SHARED]),
    bytes([Cell.CHAT_CACHED, Cell.CHAT_PINNED, Cell.CHAT_USED, Cell.CHAT_SHARED]),
)
_UNUSED = (Cell.CACHED, Cell.PINNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The lines below the chats: with them, each column adds up to what the pool says.

    Attributes:
        unclaimed: cached blocks that no open chat begins with.
        repeated_shared: how often blocks were counted in `shared` although they were counted before.
        repeated_cached: likewise in `cached`.
        own: blocks with one user.
        shared: blocks with several users.
        cached: blocks in nobody's use that can be found.
    """

    unclaimed: int
    repeated_shared: int
    repeated_cached: int
    own: int
    shared: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """A snapshot, by chats.

    Attributes:
        snapshot: what it was made from.
        rows: a row for each chat, in the order given.
        others: requests that belong to no chat, as one row; None when there are none.
        sums: what makes the columns add up.
        idle_pinned: pinned blocks that nobody uses; they are cached ones.
        in_view: the chat that is looked at.
        batch_series: sequences in each of the last steps, oldest first; where steps are quicker than anybody looks, the largest of several.
        token_series: tokens in them, likewise.
        time_split: each part of a step's share of the time of the last steps, 0 to 1; empty before the first step.
    """

    snapshot: EngineSnapshot
    rows: tuple[ChatRow, ...]
    others: ChatRow | None
    sums: Sums
    idle_pinned: tuple[int, ...]
    in_view: str | None
    batch_series: tuple[int, ...]
    token_series: tuple[int, ...]
    time_split: dict[str, float]
    _by_id: dict[str, ChatRow] = field(repr=False)

    @classmethod
    def of(cls, snapshot: EngineSnapshot, chats: Sequence[ChatFacts], *, in_view: str | None = None) -> EngineView:
        """Sorts a snapshot by chats.

        Args:
            snapshot: of the engine.
            chats: those that are open.
            in_view: id of the one that is looked at.
        """
        rows = ChatRows.of(snapshot, chats)
        steps = _steps_to_show(snapshot.steps)
        return cls(
            snapshot=snapshot,
            rows=rows.chats,
            others=rows.others,
            sums=_sums(snapshot, rows),
            idle_pinned=tuple(block for block in snapshot.pinned if snapshot.block_states[block] == BlockState.CACHED),
            in_view=in_view,
            batch_series=fold([step.num_seqs for step in steps], SERIES_STEPS),
            token_series=fold([step.num_tokens for step in steps], SERIES_STEPS),
            time_split=_time_split(snapshot.steps),
            _by_id={row.id: row for row in rows.chats},
        )

    # --- numbers -------------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return len(self.snapshot.block_states)

    @property
    def blocks_in_use(self) -> int:
        """Blocks that some request holds."""
        return self.snapshot.used_blocks + self.snapshot.shared_blocks

    @property
    def saved_bytes(self) -> int:
        """Bytes that more would be in use if every answer had blocks of its own."""
        return self.snapshot.saved_blocks * self.snapshot.block_bytes

    @property
    def speed(self) -> float:
        """Tokens a second of all answers: the sum of the rows."""
        return sum(row.speed for row in self.everyone)

    @property
    def everyone(self) -> tuple[ChatRow, ...]:
        """All rows that hold or find blocks."""
        return (*self.rows, self.others) if self.others is not None else self.rows

    def count(self, status: SequenceStatus) -> int:
        """Sequences with this status."""
        return sum(sequence.state == status.value for sequence in self.snapshot.sequences)

    # --- blocks --------------------------------------------------------------------------------------------------------

    def row(self, chat_id: str | None) -> ChatRow | None:
        """A chat's row."""
        return self._by_id.get(chat_id) if chat_id is not None else None

    def cells(self, chat_id: str | None = None) -> bytes:
        """A `Cell` for each block of the pool, then one for each block of the lower tier.

        Args:
            chat_id: the chat whose blocks are told from others; the one in view when it is missing.
        """
        cells = bytearray(self.snapshot.block_states.translate(_CELLS))
        for block in self.idle_pinned:
            cells[block] = Cell.PINNED
        row = self.row(chat_id if chat_id is not None else self.in_view)
        if row is not None:
            for block in row.blocks:
                cells[block] = _LIT[cells[block]]
            for block in row.kept:  # in use means by others
                cells[block] = _LIT[cells[block]] if cells[block] in _UNUSED else Cell.CHAT_SHARED
        return bytes(cells) + bytes([Cell.LOWER]) * self.snapshot.tier_blocks

    def holders(self, blocks: Sequence[int]) -> tuple[ChatRow, ...]:
        """The chats that hold one of these blocks, or for which one is kept; requests of no chat too."""
        return tuple(row for row in self.everyone if not (row.blocks.isdisjoint(blocks) and row.kept.isdisjoint(blocks)))

    # --- the audit -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Adds everything up.

        Raises:
            RuntimeError: numbers that are shown side by side disagree.
        """
        snapshot, sums = self.snapshot, self.sums
        states = Counter(snapshot.block_states)
        holders = Counter(block for row in self.everyone for block in row.blocks)
        shared = {block for block in holders if snapshot.block_states[block] == BlockState.SHARED}
        kept = {block for row in self.everyone for block in row.kept if snapshot.block_states[block] == BlockState.CACHED}
        cells = self.cells()
        pinned_in_use = sum(snapshot.block_states[block] in (BlockState.USED, BlockState.SHARED) for block in set(snapshot.pinned))
        claims = {
            "all blocks": (1 + snapshot.free_blocks + snapshot.cached_blocks + self.blocks_in_use, self.num_blocks),
            "free blocks": (states[BlockState.FREE], snapshot.free_blocks),
            "cached blocks": (states[BlockState.CACHED], snapshot.cached_blocks),
            "blocks with one user": (states[BlockState.USED], snapshot.used_blocks),
            "blocks with several users": (states[BlockState.SHARED], snapshot.shared_blocks),
            "blocks in use, by chats": (len(holders), self.blocks_in_use),
            "blocks that rows hold with others": (len(shared), sums.shared),
            "cached blocks, with and without a chat": (len(kept) + sums.unclaimed, sums.cached),
            "own blocks, added up": (sum(row.own for row in self.everyone), sums.own),
            "shared blocks, added up": (sum(row.shared for row in self.everyone) - sums.repeated_shared, sums.shared),
            "cached blocks, added up": (sum(row.cached for row in self.everyone) + sums.unclaimed - sums.repeated_cached, sums.cached),
            "the pool, added up": (sums.own + sums.shared + sums.cached + snapshot.free_blocks + 1, self.num_blocks),
            "blocks of the map": (len(cells), self.num_blocks + snapshot.tier_blocks),
            "pinned blocks, in use and not": (snapshot.pinned_blocks, pinned_in_use + len(self.idle_pinned)),
            "pinned blocks of the map": (cells.count(Cell.PINNED) + cells.count(Cell.CHAT_PINNED), len(self.idle_pinned)),
        }
        wrong = [f"{name}: {ours} and {theirs}" for name, (ours, theirs) in claims.items() if ours != theirs]
        if min(sums.unclaimed, sums.repeated_shared, sums.repeated_cached) < 0:
            wrong.append("something is counted less than never")
        if wrong:
            raise RuntimeError("; ".join(wrong))


def _sums(snapshot: EngineSnapshot, rows: ChatRows) -> Sums:
    kept: frozenset[int] = frozenset().union(*(row.kept for row in rows.all))
    claimed = states_of(kept, snapshot.block_states).count(BlockState.CACHED)
    return Sums(
        unclaimed=snapshot.cached_blocks - claimed,
        repeated_shared=sum(row.shared for row in rows.all) - snapshot.shared_blocks,
        repeated_cached=sum(row.cached for row in rows.all) - claimed,
        own=snapshot.used_blocks,
        shared=snapshot.shared_blocks,
        cached=snapshot.cached_blocks,
    )


def fold(series: Sequence[int], width: int) -> tuple[int, ...]:
    """At most `width` numbers. What is too many is folded together, and the largest is kept: no peak is lost."""
    if len(series) <= width or width < 1:
        return tuple(series)
    ends = [len(series) * (i + 1) // width for i in range(width)]
    return tuple(max(series[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def _steps_to_show(steps: Sequence[StepTiming]) -> Sequence[StepTiming]:
    """The last steps; all there are, where more than that are done between two looks."""
    last = steps[-SERIES_STEPS:]
    return last if sum(step.total for step in last) >= _REFRESH_SECONDS else steps


def _time_split(steps: Sequence[StepTiming]) -> dict[str, float]:
    total = sum(step.total for step in steps)
    if not total:
        return {}
    return {part: sum(getattr(step, part) for step in steps) / total for part in STEP_PARTS}
