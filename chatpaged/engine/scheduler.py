"""Who takes part in the next step, with how many tokens.

A step hands out a token budget to close gaps between known and computed tokens: running sequences first (decodes take one
each, prompts that are partly read go on in chunks), then waiting ones. Order is priority, then arrival. When a running
sequence needs a block and none is free, another one gives its blocks back and waits; its tokens are kept, and what the prefix
cache and the tiers below still hold of it is found again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from chatpaged.engine.block_manager import Admission, BlockManager
from chatpaged.engine.config import SchedulerConfig
from chatpaged.engine.limits import check_prompt_fits
from chatpaged.engine.sample_rows import sample_row
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.engine.sequence import Sequence, SequenceGroup, SequenceStatus
from chatpaged.engine.step_plan import StepPlan
from chatpaged.engine.tier_policy import TierPolicy
from chatpaged.engine.token_budget import TokenBudget
from chatpaged.errors import PromptTooLongError


@dataclass(slots=True)
class SchedulerCounters:
    """What happened since the start."""

    requests: int = 0
    refusals: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_waits: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    recovered_tokens: int = 0
    recomputed_tokens: int = 0


class Scheduler:
    """Owner of the queues. Calls alternate: `schedule`, then `update` with what was sampled."""

    def __init__(
        self, config: SchedulerConfig, blocks: BlockManager, budget: TokenBudget | None = None, policy: TierPolicy | None = None
    ) -> None:
        self.config = config
        self.blocks = blocks
        self.budget = budget if budget is not None else TokenBudget(config.max_num_batched_tokens)
        self.policy = policy if policy is not None else TierPolicy(blocks.block_size)
        self.counters = SchedulerCounters()
        self.waiting: list[Sequence] = []
        """Sorted by precedence; preempted sequences wait here too."""
        self.running: list[Sequence] = []
        self._groups: dict[str, SequenceGroup] = {}
        self._by_id: dict[int, Sequence] = {}
        self._next_seq_id = 0
        self._next_arrival = 0
        self._step = 0

    # --- requests come and go ------------------------------------------------------------------------------------------

    @property
    def max_tokens(self) -> int:
        """The longest sequence that context and KV pool allow, prompt and answer."""
        # The last token of an answer is never computed, so it needs no slot.
        return min(self.config.max_model_len, self.blocks.capacity + 1)

    @property
    def has_unfinished(self) -> bool:
        """Whether there is work to do."""
        return bool(self._groups)

    def groups(self) -> list[SequenceGroup]:
        """All requests that are not finished, in order of arrival."""
        return list(self._groups.values())

    def group(self, request_id: str) -> SequenceGroup | None:
        """An unfinished request."""
        return self._groups.get(request_id)

    def add(self, group: SequenceGroup) -> None:
        """Queues a request.

        Raises:
            PromptTooLongError: the prompt leaves no room for an answer in the context, or can never fit the KV pool.
        """
        try:
            check_prompt_fits(
                group.num_prompt_tokens,
                context=self.config.max_model_len,
                num_blocks=self.blocks.pool.num_usable,
                block_size=self.blocks.block_size,
            )
        except PromptTooLongError:
            self.counters.refusals += 1
            raise
        self.counters.requests += 1
        group.arrival = self._next_arrival
        self._next_arrival += 1
        self._groups[group.request_id] = group
        self._enqueue(self._new_sequence(group, list(group.prompt_token_ids)))

    def set_priority(self, request_id: str, priority: int, *, interactive: bool) -> None:
        """Changes how urgent a request is, at any moment."""
        group = self._groups.get(request_id)
        if group is not None:
            group.priority, group.interactive = priority, interactive
            self.waiting.sort(key=_precedence)

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends a request between two steps; its blocks are free at once. Returns the sequences that were not finished."""
        group = self._groups.get(request_id)
        if group is None:
            return []
        unfinished = [sequence for sequence in group.sequences if sequence.status is not SequenceStatus.FINISHED]
        for sequence in unfinished:
            self._retire(sequence)
        del self._groups[request_id]
        return unfinished

    def finish(self, sequence: Sequence) -> None:
        """Ends one sequence whose answer is complete."""
        self._retire(sequence)
        if sequence.group.is_finished:
            del self._groups[sequence.group.request_id]

    def _retire(self, sequence: Sequence) -> None:
        (self.running if sequence.status is SequenceStatus.RUNNING else self.waiting).remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.blocks.forget(sequence)
        del self._by_id[sequence.seq_id]
        if not self.running:
            self.blocks.restore_pins()

    def _new_sequence(self, group: SequenceGroup, token_ids: list[int]) -> Sequence:
        sequence = Sequence(self._next_seq_id, group, len(group.sequences), token_ids)
        self._next_seq_id += 1
        self._by_id[sequence.seq_id] = sequence
        group.sequences.append(sequence)
        return sequence

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_precedence)

    # --- the step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decides the next step. Without work the output is empty; while sequences load it may consist of block moves alone."""
        decoding = any(s.group.interactive and s.num_uncomputed_tokens == 1 for s in self.running)
        interactive = any(group.interactive for group in self._groups.values())
        plan = StepPlan(self.config.max_num_batched_tokens, self.budget.max_prefill_tokens(decoding=decoding, interactive=interactive))
        seconds = self.budget.move_seconds(decoding=decoding, interactive=interactive)
        self.blocks.begin_step(max(1, int(seconds / self.policy.block_seconds)) if seconds is not None else None)
        # Decodes first: a prompt that is being read must not use up the budget of a stream that is being read along.
        reading = [sequence for sequence in self.running if sequence.num_uncomputed_tokens > 1]
        self._schedule_running(plan, (sequence for sequence in self.running if sequence.num_uncomputed_tokens == 1))
        # Then the most urgent: whoever waits comes before less urgent prompts that are partly read.
        for priority in sorted({sequence.group.priority for sequence in (*reading, *self.waiting)}):
            self._schedule_running(plan, (sequence for sequence in reading if sequence.group.priority == priority))
            self._schedule_waiting(plan, priority)
        return self._output(plan)

    def _schedule_running(self, plan: StepPlan, sequences: Iterable[Sequence]) -> None:
        for sequence in sorted(sequences, key=_precedence):
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted for the sake of one before it
            if sequence.num_uncomputed_tokens > 1:
                self._extend_prefix(sequence)
            if self.blocks.is_loading(sequence):
                continue
            num_tokens = plan.offer(sequence)
            if num_tokens and self._take_slots(sequence, num_tokens, plan):
                plan.add(sequence, num_tokens)

    def _take_slots(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> bool:
        """Gets the blocks for a running sequence, from others if need be; False when it had to give way itself."""
        while not self.blocks.append_slots(sequence, num_tokens):
            # Never a more urgent sequence, and never the first of all, so that somebody always gets on.
            first = min(self.running, key=_precedence)
            candidates = [s for s in self.running if s.group.priority >= sequence.group.priority and s is not first]
            if not candidates:
                if self.blocks.retained.yield_pins():
                    continue
                raise RuntimeError(f"{sequence} does not fit the pool although it has it for itself")
            victim = max(candidates, key=self._expendability)
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        plan.remove(sequence)
        self.running.remove(sequence)
        self.blocks.preempt(sequence)
        sequence.num_computed_tokens = 0
        sequence.status = SequenceStatus.PREEMPTED
        sequence.group.counters.preemptions += 1
        self.counters.preemptions += 1
        self._enqueue(sequence)

    def _expendability(self, sequence: Sequence) -> tuple[int, int, tuple[int, int, int]]:
        """Who gives way first: the lowest priority, then the fewest tokens to compute again, then the last to arrive."""
        return (sequence.group.priority, -self.blocks.tokens_to_redo(sequence), sequence.precedence)

    def _schedule_waiting(self, plan: StepPlan, priority: int) -> None:
        """Admits waiting sequences that are at least this urgent.

        One that begins like a prompt that is being read waits until that is read, and lets others pass meanwhile.
        """
        passed = 0
        while passed < min(len(self.waiting), self.config.max_num_seqs) and not plan.has_preempted and plan.offer(self.waiting[passed]):
            sequence = self.waiting[passed]
            if sequence.group.priority > priority:
                break
            if self._is_being_read(sequence):
                passed += 1
                continue
            if not self._make_room(sequence, plan):
                break
            self.waiting.remove(sequence)
            self._admit(sequence, plan)

    def _is_being_read(self, sequence: Sequence) -> bool:
        """Whether somebody who is as urgent is reading what this sequence would read next, which would be done twice."""
        readers = (s for s in self.running if s.num_uncomputed_tokens > 1 and s.group.priority <= sequence.group.priority)
        if not any(self.blocks.is_reading_for(reader, sequence) for reader in readers):
            return False
        if not sequence.has_waited:
            sequence.has_waited = True
            self.counters.prefix_waits += 1
        return True

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Whether the sequence can start now; less urgent sequences give way to it."""
        seats = min(sequence.samples_wanted, self.config.max_num_seqs)
        while (
            len(self.running) + seats > self.config.max_num_seqs
            or self.blocks.admission(sequence, reserve=len(self.running)) is not Admission.OK
        ):
            less_urgent = [s for s in self.running if s.group.priority > sequence.group.priority]
            if less_urgent:
                self._preempt(max(less_urgent, key=self._expendability), plan)
            elif self.running or not self.blocks.retained.yield_pins():
                return False
        return True

    def _admit(self, sequence: Sequence, plan: StepPlan) -> None:
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)
        if sequence.num_known_tokens == 0:
            self.counters.prefix_queries += 1
            self.counters.prefix_query_tokens += sequence.num_tokens
        self._extend_prefix(sequence)
        if self.blocks.is_loading(sequence):
            return
        num_tokens = plan.offer(sequence)
        if not self.blocks.append_slots(sequence, num_tokens):
            raise RuntimeError(f"{sequence} was admitted without blocks for {num_tokens} tokens")
        plan.add(sequence, num_tokens)

    def _extend_prefix(self, sequence: Sequence) -> None:
        found = self.blocks.extend_prefix(sequence)
        new = max(0, sequence.num_computed_tokens - sequence.num_known_tokens)
        sequence.num_known_tokens += new
        sequence.group.counters.cached_tokens += new
        self.counters.prefix_hit_tokens += new
        self.counters.recovered_tokens += found - new

    def _output(self, plan: StepPlan) -> SchedulerOutput:
        rows = tuple(self._row(sequence, num_tokens) for sequence, num_tokens in plan.grants.items())
        output = SchedulerOutput(self._step, rows, self.blocks.take_operations())
        self._step += 1
        return output

    def _row(self, sequence: Sequence, num_tokens: int) -> ScheduledRow:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        samples: tuple[SampleRow, ...] = ()
        if end == sequence.num_tokens:
            samples = tuple(sample_row(sequence, sequence.index + i) for i in range(sequence.samples_wanted))
        return ScheduledRow(sequence.seq_id, tuple(sequence.token_ids[start:end]), start, self.blocks.table(sequence), samples)

    # --- after the step ------------------------------------------------------------------------------------------------

    def update(self, output: SchedulerOutput, sampled: Iterable[tuple[int, ...]]) -> list[Sequence]:
        """Takes the results of a step in: tokens become computed, full blocks findable, sampled tokens known.

        Args:
            output: the step that was carried out.
            sampled: for each of its rows the tokens drawn, one for each of the row's samples.

        Returns:
            The sequences that have got a new token, which is the last of their `token_ids`.
        """
        grown: list[Sequence] = []
        for row, tokens in zip(output.rows, sampled, strict=True):
            sequence = self._by_id[row.seq_id]
            self._count(sequence, row)
            sequence.num_computed_tokens = row.end
            sequence.num_known_tokens = max(sequence.num_known_tokens, row.end)
            self.blocks.publish(sequence)
            if tokens:
                children = [self._fork(sequence) for _ in tokens[1:]]
                for member, token in zip((sequence, *children), tokens, strict=True):
                    member.token_ids.append(token)
                    grown.append(member)
        return grown

    def _count(self, sequence: Sequence, row: ScheduledRow) -> None:
        again = min(max(0, sequence.num_known_tokens - row.start), len(row.token_ids))
        prompt = max(0, min(row.end, sequence.group.num_prompt_tokens) - row.start - again)
        sequence.group.counters.recomputed_tokens += again
        sequence.group.counters.prefill_tokens += prompt
        self.counters.recomputed_tokens += again
        self.counters.prefill_tokens += prompt
        self.counters.decode_tokens += len(row.token_ids) - again - prompt

    def _fork(self, parent: Sequence) -> Sequence:
        """Makes the next sample of a group. Without a seat it waits, and finds the prompt in the prefix cache later."""
        child = self._new_sequence(parent.group, list(parent.group.prompt_token_ids))
        child.num_known_tokens = parent.num_known_tokens
        if len(self.running) < self.config.max_num_seqs:
            self.blocks.fork(parent, child)
            child.status = SequenceStatus.RUNNING
            self.running.append(child)
        else:
            self._enqueue(child)
        return child

    def check_invariants(self) -> None:
        """Audits queues and blocks.

        Raises:
            RuntimeError: something does not add up.
        """
        if any(s.status is not SequenceStatus.RUNNING for s in self.running):
            raise RuntimeError("a sequence in the running queue is not running")
        if any(s.status not in {SequenceStatus.WAITING, SequenceStatus.PREEMPTED} for s in self.waiting):
            raise RuntimeError("a sequence in the waiting queue is not waiting")
        if {s.seq_id for s in (*self.running, *self.waiting)} != self._by_id.keys():
            raise RuntimeError("the queues and the list of sequences disagree")
        if {s.seq_id for s, _ in self.blocks.tables()} != {s.seq_id for s in self.running}:
            raise RuntimeError("not exactly the running sequences have block tables")
        self.blocks.check_invariants()


def _precedence(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.precedence
