"""Who holds which blocks, a row for each chat."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from chatpaged.engine.block_pool import NULL_BLOCK, BlockState, states_of
from chatpaged.engine.sequence import SequenceStatus
from chatpaged.engine.snapshot import EngineSnapshot, SequenceSnapshot


class RowState(enum.Enum):
    """What a chat's request is doing."""

    IDLE = "idle"
    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFacts:
    """What is known of a chat without the engine.

    Attributes:
        id: of the chat.
        title: shown as it is; never markup.
        request_id: its running request.
        cached_blocks: blocks that hold the beginning of its last sequence; see `LLMEngine.cached_blocks`.
        cached_tokens: prompt tokens of its last request that were found computed.
        is_pinned: its blocks are to stay in memory.
    """

    id: str
    title: str
    request_id: str | None = None
    cached_blocks: tuple[int, ...] = ()
    cached_tokens: int = 0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """One chat.

    Attributes:
        id: of the chat; empty for requests that belong to none.
        title: of the chat.
        state: what it is doing.
        percent: of what has to be computed before it can write, while it is reading.
        samples: answers it is generating.
        blocks: blocks its sequences hold, each once.
        kept: blocks of its last sequence that it does not hold, but that can still be found.
        own: blocks that one of its answers holds, and nobody else.
        shared: blocks that several answers hold, of this chat or of others; and what is kept for it because others hold it.
        cached: blocks kept for it that nobody uses.
        pinned: blocks of its own or kept for it that are never evicted, whoever has pinned them.
        cached_tokens: prompt tokens of its last request that were found computed.
        speed: tokens a second, of all its answers.
        is_pinned: its blocks are to stay in memory.
    """

    id: str
    title: str
    state: RowState
    percent: int
    samples: int
    blocks: frozenset[int]
    kept: frozenset[int]
    own: int
    shared: int
    cached: int
    pinned: int
    cached_tokens: int
    speed: float
    is_pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRows:
    """All rows of a snapshot.

    Attributes:
        chats: a row for each chat, in the order given.
        others: requests that belong to no chat, as one row; None when there are none.
    """

    chats: tuple[ChatRow, ...]
    others: ChatRow | None

    @classmethod
    def of(cls, snapshot: EngineSnapshot, chats: Sequence[ChatFacts]) -> ChatRows:
        """Sorts the sequences of a snapshot by chats."""
        requests: dict[str, list[SequenceSnapshot]] = {}
        for sequence in snapshot.sequences:
            requests.setdefault(sequence.request_id, []).append(sequence)
        states, pinned = snapshot.block_states, frozenset(snapshot.pinned)
        drafts = [_Draft(chat, requests.pop(chat.request_id, []) if chat.request_id is not None else [], states, pinned) for chat in chats]
        rest = [sequence for sequences in requests.values() for sequence in sequences]
        other = _Draft(ChatFacts(id="", title=""), rest, states, pinned)
        return cls(chats=tuple(draft.row() for draft in drafts), others=other.row() if rest else None)

    @property
    def all(self) -> tuple[ChatRow, ...]:
        """The chats, and the requests of none."""
        return (*self.chats, self.others) if self.others is not None else self.chats


class _Draft:
    """A row in the making."""

    def __init__(self, chat: ChatFacts, sequences: list[SequenceSnapshot], states: bytes, pinned: frozenset[int]) -> None:
        self.chat = chat
        self.sequences = sequences
        self.states = states
        self.pinned = pinned
        tables = [sequence.blocks for sequence in sequences]
        self.blocks = frozenset(tables[0] if len(tables) == 1 else (block for table in tables for block in table))
        self.kept = _findable(chat.cached_blocks, states) - self.blocks

    def row(self) -> ChatRow:
        """The row."""
        held = states_of(self.blocks, self.states)
        cached = states_of(self.kept, self.states).count(BlockState.CACHED)
        state, percent = _state(self.sequences)
        return ChatRow(
            id=self.chat.id,
            title=self.chat.title,
            state=state,
            percent=percent,
            samples=len(self.sequences),
            blocks=self.blocks,
            kept=self.kept,
            own=held.count(BlockState.USED),
            shared=held.count(BlockState.SHARED) + len(self.kept) - cached,
            cached=cached,
            pinned=len(self.pinned & self.blocks) + len(self.pinned & self.kept),
            cached_tokens=self.sequences[0].cached_tokens if self.sequences else self.chat.cached_tokens,
            speed=sum(sequence.tokens_per_second for sequence in self.sequences),
            is_pinned=self.chat.is_pinned,
        )


def _findable(blocks: tuple[int, ...], states: bytes) -> frozenset[int]:
    """What a chat says of the cache may be a moment old: blocks that are free by now are nobody's."""
    if blocks and min(blocks) > NULL_BLOCK and max(blocks) < len(states) and BlockState.FREE not in states_of(blocks, states):
        return frozenset(blocks)  # the usual case, without a loop in Python
    return frozenset(block for block in blocks if NULL_BLOCK < block < len(states) and states[block] != BlockState.FREE)


def _state(sequences: Sequence[SequenceSnapshot]) -> tuple[RowState, int]:
    """What a request is doing, and how far reading is: its most advanced answer speaks for it."""
    running = [sequence for sequence in sequences if sequence.state == SequenceStatus.RUNNING.value]
    # One token short of all known tokens, the next step draws a token.
    if any(sequence.num_tokens - sequence.num_computed_tokens == 1 for sequence in running):
        return RowState.WRITING, 100
    if running:
        return RowState.READING, max(100 * sequence.num_computed_tokens // sequence.num_tokens for sequence in running)
    if any(sequence.state == SequenceStatus.PREEMPTED.value for sequence in sequences):
        return RowState.PREEMPTED, 0
    return (RowState.WAITING if sequences else RowState.IDLE), 0
