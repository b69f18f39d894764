"""Random work must never show a sequence someone else's memory; and bugs that would do so must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from chatpaged.engine import prefix_chains
from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_pool import BlockPool, BlockPrefix, chain
from chatpaged.engine.scheduler import Scheduler
from chatpaged.engine.sequence import Sequence
from tests.engine.shadow_kv import VOCABULARY, FakeTier, Harness, ShadowError
from tests.engine.workload import run_workload


@pytest.mark.parametrize("seed", range(40))
def test_random_work_never_mixes_sequences(seed: int) -> None:
    run_workload(seed, 150)


def test_random_work_reaches_every_mechanism() -> None:
    totals: dict[str, int] = {}
    for seed in range(40):
        scheduler = run_workload(seed, 150).scheduler
        for counters in (scheduler.counters, scheduler.blocks.counters):
            for name in counters.__slots__:
                totals[name] = totals.get(name, 0) + getattr(counters, name)
    del totals["refusals"]  # prompts of the workload always fit
    assert all(count > 10 for count in totals.values()), totals


class EngineMachine(RuleBasedStateMachine):
    """The same, with inputs that hypothesis can shrink."""

    @initialize(
        num_blocks=st.integers(3, 10),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 4),
        spare_tokens=st.integers(0, 12),
        caching=st.booleans(),
        tier_slots=st.none() | st.integers(0, 6),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, spare_tokens: int, caching: bool, tier_slots: int | None) -> None:
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=24,
            caching=caching,
            tier=None if tier_slots is None else FakeTier(tier_slots),
        )
        self.longest = min(23, self.harness.scheduler.blocks.capacity)

    @rule(
        length=st.integers(1, 23),
        tail=st.lists(st.integers(0, VOCABULARY - 1), max_size=3),
        max_tokens=st.integers(1, 8),
        n=st.integers(1, 3),
        priority=st.integers(0, 2),
        interactive=st.booleans(),
    )
    def add(self, length: int, tail: list[int], max_tokens: int, n: int, priority: int, interactive: bool) -> None:
        prompt = ([0, 1] * length)[:length] + tail
        self.harness.add(prompt[: self.longest], max_tokens=max_tokens, n=n, priority=priority, interactive=interactive)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    @precondition(lambda self: self.harness.scheduler.has_unfinished)
    @rule(which=st.integers(0, 10))
    def abort(self, which: int) -> None:
        groups = self.harness.scheduler.groups()
        self.harness.scheduler.abort(groups[which % len(groups)].request_id)
        self.harness.scheduler.check_invariants()

    @precondition(lambda self: self.harness.scheduler.has_unfinished)
    @rule(which=st.integers(0, 10), priority=st.integers(0, 2))
    def change_priority(self, which: int, priority: int) -> None:
        groups = self.harness.scheduler.groups()
        self.harness.scheduler.set_priority(groups[which % len(groups)].request_id, priority, interactive=True)

    @rule()
    def empty_cache(self) -> None:
        self.harness.scheduler.blocks.forget_cached()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.run()


EngineMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_engine_machine = pytest.mark.filterwarnings("default")(EngineMachine.TestCase)


# --- bugs put in on purpose: tests of the test ---------------------------------------------------------------------------


def _no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    append_slots = BlockManager.append_slots

    def broken(self: BlockManager, sequence: Sequence, num_tokens: int) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.pool, "ref_count", lambda _: 1)
            return append_slots(self, sequence, num_tokens)

    patch.setattr(BlockManager, "append_slots", broken)


def _fork_without_reference(patch: pytest.MonkeyPatch) -> None:
    fork = BlockManager.fork

    def broken(self: BlockManager, parent: Sequence, child: Sequence) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.pool, "acquire", lambda _: None)
            fork(self, parent, child)

    patch.setattr(BlockManager, "fork", broken)


def _hash_without_parent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefix_chains, "chain", lambda _, token_ids, index, **private: chain(b"", token_ids, index, **private))


def _publish_before_compute(patch: pytest.MonkeyPatch) -> None:
    append_slots = BlockManager.append_slots

    def broken(self: BlockManager, sequence: Sequence, num_tokens: int) -> bool:
        done = append_slots(self, sequence, num_tokens)
        if done:
            sequence.num_computed_tokens += num_tokens
            self.publish(sequence)
            sequence.num_computed_tokens -= num_tokens
        return done

    patch.setattr(BlockManager, "append_slots", broken)


def _leak(patch: pytest.MonkeyPatch) -> None:
    release = BlockManager.release

    def broken(self: BlockManager, sequence: Sequence) -> None:
        table = self._tables.get(sequence.seq_id)
        if table is not None and len(table.blocks) > 2:
            table.blocks.pop()
        release(self, sequence)

    patch.setattr(BlockManager, "release", broken)


def _hash_alone(patch: pytest.MonkeyPatch) -> None:
    """Keys of one byte collide; without a comparison of ids that is somebody else's memory."""

    def short(parent_key: bytes, token_ids: tuple[int, ...], index: int, *, is_private: bool) -> BlockPrefix:
        prefix = chain(parent_key, token_ids, index, is_private=is_private)
        return replace(prefix, key=prefix.key[:1] + bytes(15))

    patch.setattr(prefix_chains, "chain", short)
    patch.setattr(BlockPool, "lookup", lambda self, prefix: self._by_key.get(prefix.key))


def _operations_out_of_order(patch: pytest.MonkeyPatch) -> None:
    take = BlockManager.take_operations
    patch.setattr(BlockManager, "take_operations", lambda self: tuple(reversed(take(self))))


def _repeated_token(patch: pytest.MonkeyPatch) -> None:
    """Preemption after which the last token counts twice."""
    preempt = Scheduler._preempt

    def broken(self: Scheduler, sequence: Sequence, plan: object) -> None:
        preempt(self, sequence, plan)  # type: ignore[arg-type]
        if sequence.num_output_tokens:
            sequence.token_ids.append(sequence.token_ids[-1])

    patch.setattr(Scheduler, "_preempt", broken)


def _free_too_early(patch: pytest.MonkeyPatch) -> None:
    """A hit that is not taken out of the eviction queue before blocks are allocated."""
    patch.setattr(BlockPool, "acquire", lambda self, block: self._ref_counts.__setitem__(block, self._ref_counts[block] + 1))


def run_many_workloads() -> None:
    for seed in range(400):
        run_workload(seed, 150)


BUGS = [
    _no_copy_on_write,
    _fork_without_reference,
    _hash_without_parent,
    _publish_before_compute,
    _leak,
    _hash_alone,
    _operations_out_of_order,
    _repeated_token,
    _free_too_early,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_seeded_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((ShadowError, RuntimeError, KeyError)):
        run_many_workloads()


@pytest.mark.parametrize("bug", [_no_copy_on_write, _hash_without_parent, _publish_before_compute, _hash_alone], ids=lambda b: b.__name__)
def test_bug_is_caught_by_the_shadow_itself(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """These leave the books in order: only the contents of memory show them."""
    bug(monkeypatch)
    with pytest.raises(ShadowError):
        run_many_workloads()


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_short_random_runs_end(seed: int, num_actions: int) -> None:
    run_workload(seed, num_actions)


def test_same_seed_same_run() -> None:
    first, second = run_workload(7, 100), run_workload(7, 100)
    assert first.outputs == second.outputs
