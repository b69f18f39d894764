"""A picture of the engine between two steps: everything a memory panel needs, as plain values."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import asdict, dataclass

from chatpaged.engine.block_pool import BlockState, states_of
from chatpaged.engine.block_traffic import BlockCounters
from chatpaged.engine.scheduler import Scheduler, SchedulerCounters
from chatpaged.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Seconds of each part of one step, and its size.

    Attributes:
        schedule: deciding what to compute.
        operations: block copies and moves.
        prepare: building the input tensors.
        forward: the model.
        sample: drawing tokens.
        process: detokenizing, stopping, publishing blocks.
        num_seqs: sequences in the step (the batch size).
        num_tokens: tokens computed.
        num_decode_tokens: of these, tokens of sequences that were decoding.
    """

    schedule: float
    operations: float
    prepare: float
    forward: float
    sample: float
    process: float
    num_seqs: int
    num_tokens: int
    num_decode_tokens: int

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.schedule + self.operations + self.prepare + self.forward + self.sample + self.process


@dataclass(slots=True)
class GraphCounters:
    """How steps were launched since the start.

    Attributes:
        graph_steps: steps computed by replaying a recorded graph.
        eager_steps: steps launched operation by operation, where there are graphs: they were too large for all.
        graph_padding: tokens that replays computed beside those of their steps.
    """

    graph_steps: int = 0
    eager_steps: int = 0
    graph_padding: int = 0

    def count(self, padding: int | None) -> None:
        """Takes a step; see `StepResult.padding`."""
        if padding is not None:
            self.graph_steps += 1
            self.graph_padding += padding
        elif self.graph_steps:
            self.eager_steps += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSnapshot:
    """One sequence.

    Attributes:
        request_id: its request.
        index: which sample of the request.
        state: waiting, running or preempted.
        num_tokens: prompt and answer so far.
        num_prompt_tokens: prompt.
        num_computed_tokens: tokens with keys and values in the pool.
        cached_tokens: prompt tokens of the request that were found computed.
        blocks: its block ids, in order.
        own_blocks: blocks that no other sequence uses.
        shared_blocks: blocks that others use as well.
        tokens_per_second: answer tokens by time since the first one; 0 before.
    """

    request_id: str
    index: int
    state: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    cached_tokens: int
    blocks: tuple[int, ...]
    own_blocks: int
    shared_blocks: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """The whole engine.

    `free_blocks + cached_blocks + used_blocks + shared_blocks + 1` (the null block) is the length of `block_states`, and the
    blocks of the sequences are exactly the used and the shared ones.

    Attributes:
        code: what the model runs on; see `ModelCode`.
        block_size: tokens a block holds.
        block_bytes: bytes a block takes on the device.
        block_states: a `BlockState` for each block.
        free_blocks: blocks that hold nothing.
        cached_blocks: blocks without a user whose contents can still be found.
        used_blocks: blocks with one user.
        shared_blocks: blocks with several users.
        live_tokens: tokens in used and shared blocks, those in shared blocks counted once.
        saved_blocks: further blocks that would be in use if nothing were shared.
        pinned: blocks that are never evicted, in use or not.
        tier_blocks: blocks whose contents host memory below the device holds.
        sequences: all unfinished sequences, running ones first.
        counters: what happened since the start; see `SchedulerCounters`, `BlockCounters` and `GraphCounters`.
        steps: the last steps, oldest first.
    """

    code: str
    block_size: int
    block_bytes: int
    block_states: bytes
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    shared_blocks: int
    live_tokens: int
    saved_blocks: int
    pinned: tuple[int, ...]
    tier_blocks: int
    sequences: tuple[SequenceSnapshot, ...]
    counters: dict[str, int]
    steps: tuple[StepTiming, ...]

    @property
    def pinned_blocks(self) -> int:
        """How many blocks are never evicted."""
        return len(self.pinned)

    @property
    def batch_size(self) -> int:
        """Sequences in the last step."""
        return self.steps[-1].num_seqs if self.steps else 0

    @property
    def step_tokens(self) -> int:
        """Tokens in the last step."""
        return self.steps[-1].num_tokens if self.steps else 0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of all prompt tokens that were found computed, 0 to 1."""
        return self.counters["prefix_hit_tokens"] / max(1, self.counters["prefix_query_tokens"])


def take_snapshot(
    scheduler: Scheduler, *, code: str, block_bytes: int, steps: Items[StepTiming], speeds: dict[int, float], graphs: GraphCounters
) -> EngineSnapshot:
    """Looks at everything between two steps. Cheap enough to be asked several times a second: no loop over blocks in Python.

    Args:
        scheduler: the queues, and through them the blocks.
        code: what the model runs on.
        block_bytes: bytes a block takes on the device.
        steps: the last steps.
        speeds: tokens a second for each `seq_id`.
        graphs: how steps were launched.
    """
    blocks = scheduler.blocks
    states = blocks.pool.states
    used, shared = states.count(BlockState.USED), states.count(BlockState.SHARED)
    return EngineSnapshot(
        code=code,
        block_size=blocks.block_size,
        block_bytes=block_bytes,
        block_states=states,
        free_blocks=states.count(BlockState.FREE),
        cached_blocks=states.count(BlockState.CACHED),
        used_blocks=used,
        shared_blocks=shared,
        live_tokens=blocks.live_tokens(),
        saved_blocks=blocks.num_references - used - shared,
        pinned=blocks.pool.pinned,
        tier_blocks=blocks.traffic.tier.num_blocks,
        sequences=tuple(
            _sequence(sequence, blocks.table(sequence), states, speeds.get(sequence.seq_id, 0.0))
            for sequence in (*scheduler.running, *scheduler.waiting)
        ),
        counters={**merged_counters(scheduler.counters, blocks.counters), **blocks.other_counts(), **asdict(graphs)},
        steps=tuple(steps),
    )


def merged_counters(scheduler: SchedulerCounters, blocks: BlockCounters) -> dict[str, int]:
    """All counters under their names."""
    return {**asdict(scheduler), **asdict(blocks)}


def _sequence(sequence: Sequence, table: tuple[int, ...], states: bytes, speed: float) -> SequenceSnapshot:
    shared = states_of(table, states).count(BlockState.SHARED)
    return SequenceSnapshot(
        request_id=sequence.group.request_id,
        index=sequence.index,
        state=sequence.status.value,
        num_tokens=sequence.num_tokens,
        num_prompt_tokens=sequence.group.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        cached_tokens=sequence.group.counters.cached_tokens,
        blocks=table,
        own_blocks=len(table) - shared,
        shared_blocks=shared,
        tokens_per_second=speed,
    )
