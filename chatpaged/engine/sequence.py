"""A sequence of tokens being generated, and the group of samples that one request asked for."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field

from chatpaged.engine.sampling_params import SamplingParams


class SequenceStatus(enum.Enum):
    """Where a sequence is. Only a running one holds blocks."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Keep(enum.Enum):
    """Which blocks of a request are worth a file, where block files are kept.

    `FILE`: all, since the next turn of a chat wants them again. `SHARED`: those that were found a second time, and those of a sequence that
    had to give way. `MEMORY`: none; they never reach a disk.
    """

    FILE = "file"
    SHARED = "shared"
    MEMORY = "memory"


@dataclass(slots=True)
class GroupCounters:
    """What the engine did for one request."""

    cached_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    cow: int = 0
    swap_out: int = 0
    swap_in: int = 0
    peak_blocks: int = 0


class Sequence:
    """Token ids, and how many of them have their keys and values in the KV pool.

    There are no phases: a prompt to read, a chunk of it, one token to decode and recomputation after preemption are all
    the gap between `num_tokens` and `num_computed_tokens`.
    """

    __slots__ = ("group", "has_waited", "index", "num_computed_tokens", "num_known_tokens", "seq_id", "status", "token_ids")

    def __init__(self, seq_id: int, group: SequenceGroup, index: int, token_ids: list[int]) -> None:
        self.seq_id = seq_id
        self.group = group
        self.index = index
        self.token_ids = token_ids
        self.num_computed_tokens = 0
        self.num_known_tokens = 0
        """Tokens that were computed at least once, or found computed: below it, work is done again after preemption."""
        self.status = SequenceStatus.WAITING
        self.has_waited = False
        """Whether it has waited for somebody else to read the beginning of its prompt."""

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return len(self.token_ids) - self.group.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """The gap that scheduling closes; at least 1 while the sequence is not finished."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def precedence(self) -> tuple[int, int, int]:
        """Sort key, most urgent first: priority, then arrival, then sample."""
        return (self.group.priority, self.group.arrival, self.index)

    @property
    def samples_wanted(self) -> int:
        """Answers to draw when the last known token is computed: n before the group has forked, then 1."""
        return self.group.params.n if self.group.is_unforked else 1

    def __repr__(self) -> str:
        return f"Sequence({self.seq_id}, {self.status.value}, {self.num_computed_tokens}/{self.num_tokens})"


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The `n` samples of one request. One sequence computes the prompt; the others are forked from it.

    Attributes:
        request_id: the caller's name for the request.
        prompt_token_ids: the prompt.
        params: sampling parameters.
        seed: the seed of sample 0.
        priority: lower is more urgent; 0 is the chat in view.
        arrival: number of the request in order of arrival.
        interactive: somebody reads along, so the gap between two tokens matters.
        salt: separates prefix caches: only requests with the same salt share blocks, which never reach a disk.
        keep: which of its blocks are worth a file.
        end_token_ids: every id that would end an answer, for as long as that is too early.
        thinking: whether the prompt leaves the model inside its reasoning; None when reasoning is not told from the answer.
        sequences: the samples that exist so far.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    priority: int = 0
    arrival: int = 0
    interactive: bool = False
    salt: bytes = b""
    keep: Keep = Keep.FILE
    end_token_ids: tuple[int, ...] = ()
    thinking: bool | None = None
    sequences: list[Sequence] = field(default_factory=list)
    counters: GroupCounters = field(default_factory=GroupCounters)
    generators: tuple[random.Random, ...] = field(init=False)
    """One generator a sample, kept through preemption: a seeded answer does not depend on its batch mates."""

    def __post_init__(self) -> None:
        self.generators = tuple(random.Random(self.seed + i) for i in range(self.params.n))  # noqa: S311 - sampling, no secrets

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt_token_ids)

    @property
    def is_unforked(self) -> bool:
        """Whether the other samples have still to be made."""
        return len(self.sequences) < self.params.n

    @property
    def is_finished(self) -> bool:
        """Whether every sample has ended."""
        return not self.is_unforked and all(s.status is SequenceStatus.FINISHED for s in self.sequences)
