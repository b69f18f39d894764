from __future__ import annotations

from itertools import count

import pytest

from chatpaged.engine.block_manager import Admission, BlockManager
from chatpaged.engine.block_pool import BlockPool, BlockPrefix
from chatpaged.engine.block_tiers import BlockTier
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.sequence import Sequence, SequenceGroup
from tests.engine.shadow_kv import FakeTier

BLOCK = 4
_ids = count()


def make(num_blocks: int = 8, *, caching: bool = True, tier: BlockTier | None = None) -> BlockManager:
    return BlockManager(BlockPool(num_blocks + 1), BLOCK, enable_prefix_caching=caching, tier=tier)


def sequence_of(tokens: list[int], salt: bytes = b"") -> Sequence:
    group = SequenceGroup("r", tuple(tokens), SamplingParams(), seed=0, salt=salt)
    sequence = Sequence(next(_ids), group, 0, list(tokens))
    group.sequences.append(sequence)
    return sequence


def compute(manager: BlockManager, sequence: Sequence, num_tokens: int | None = None) -> None:
    """Admits the sequence if need be, and computes tokens."""
    manager.extend_prefix(sequence)
    num_tokens = sequence.num_uncomputed_tokens if num_tokens is None else num_tokens
    assert manager.append_slots(sequence, num_tokens)
    sequence.num_computed_tokens += num_tokens
    manager.publish(sequence)


def test_blocks_are_taken_as_tokens_are_computed() -> None:
    manager = make()
    sequence = sequence_of(list(range(10)))
    compute(manager, sequence, 3)
    assert manager.table(sequence) == (1,)
    compute(manager, sequence, 6)
    assert manager.table(sequence) == (1, 2, 3)
    manager.check_invariants()


def test_slots_are_all_or_nothing() -> None:
    manager = make(2)
    sequence = sequence_of(list(range(20)))
    manager.extend_prefix(sequence)
    assert not manager.append_slots(sequence, 9)
    assert manager.table(sequence) == ()
    assert manager.pool.num_free == 2
    assert manager.append_slots(sequence, 8)


def test_admission_says_ok_later_or_never() -> None:
    manager = make(4)
    running = sequence_of(list(range(8)))
    assert manager.admission(running) is Admission.OK
    compute(manager, running, 4)
    assert manager.admission(sequence_of([9] * 8)) is Admission.OK
    assert manager.admission(sequence_of([9] * 8), reserve=1) is Admission.LATER
    # One free block is promised to the sequence that has read half its prompt.
    assert manager.admission(sequence_of([9] * 12)) is Admission.LATER
    assert manager.admission(sequence_of([9] * 17)) is Admission.NEVER
    assert manager.capacity == 16


def test_admission_counts_shared_blocks_in_use_once_and_cached_ones_as_free() -> None:
    manager = make(4)
    first = sequence_of(list(range(12)))
    compute(manager, first)
    same = sequence_of([*range(12), 99])
    assert manager.admission(same) is Admission.OK  # 3 of 4 blocks are in use by the first, and shared
    manager.release(first)
    assert manager.admission(same, reserve=0) is Admission.OK
    assert manager.admission(same, reserve=1) is Admission.LATER  # the 3 cached blocks are taken out of the free ones


def test_a_prefix_is_found_block_by_block() -> None:
    manager = make()
    first = sequence_of([1, 2, 3, 4, 5, 6, 7, 8, 9])
    compute(manager, first)
    second = sequence_of([1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert manager.extend_prefix(second) == 8
    assert second.num_computed_tokens == 8
    assert manager.table(second) == manager.table(first)[:2]
    third = sequence_of([1, 2, 3, 4, 0, 6, 7, 8, 10])
    assert manager.extend_prefix(third) == 4
    manager.check_invariants()


def test_one_token_is_always_left_to_compute() -> None:
    manager = make()
    first = sequence_of(list(range(8)))
    compute(manager, first)
    assert manager.extend_prefix(sequence_of(list(range(8)))) == 4
    assert manager.extend_prefix(sequence_of(list(range(9)))) == 8


def test_only_computed_full_blocks_are_found() -> None:
    manager = make()
    first = sequence_of(list(range(12)))
    compute(manager, first, 7)
    assert manager.extend_prefix(sequence_of(list(range(12)))) == 4


def test_reading_goes_on_with_blocks_that_another_has_computed_meanwhile() -> None:
    manager = make()
    first, second = sequence_of(list(range(13))), sequence_of(list(range(13)))
    compute(manager, first, 4)
    compute(manager, second, 4)
    compute(manager, first, 8)
    assert manager.extend_prefix(second) == 4
    assert second.num_computed_tokens == 12
    compute(manager, second, 1)
    manager.check_invariants()


def test_reading_in_the_middle_of_a_block_does_not_look() -> None:
    manager = make()
    first, second = sequence_of(list(range(13))), sequence_of(list(range(13)))
    manager.extend_prefix(second)
    assert manager.append_slots(second, 2)
    second.num_computed_tokens = 2
    compute(manager, first)
    assert manager.extend_prefix(second) == 0


@pytest.mark.parametrize(("mine", "yours", "found"), [(b"", b"", 4), (b"a", b"a", 4), (b"a", b"b", 0), (b"a", b"", 0)])
def test_a_salt_separates_caches(mine: bytes, yours: bytes, found: int) -> None:
    manager = make()
    compute(manager, sequence_of(list(range(6)), mine))
    assert manager.extend_prefix(sequence_of(list(range(6)), yours)) == found


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = make(caching=False)
    first = sequence_of(list(range(9)))
    compute(manager, first)
    manager.release(first)
    assert manager.extend_prefix(sequence_of(list(range(9)))) == 0
    assert manager.pool.num_cached == 0


def test_fork_takes_no_memory_and_appending_copies_the_partial_block_once() -> None:
    manager = make()
    parent = sequence_of(list(range(6)))
    compute(manager, parent)
    child = Sequence(next(_ids), parent.group, 1, list(range(6)))
    free = manager.pool.num_free
    manager.fork(parent, child)
    assert manager.pool.num_free == free
    for sequence in (parent, child):
        sequence.token_ids.append(sequence.index)
        compute(manager, sequence)
    copies = manager.take_operations()
    assert copies == (BlockOperation(BlockOperationKind.COPY, 2, 3),)
    assert manager.table(parent) == (1, 3)
    assert manager.table(child) == (1, 2)
    assert (manager.counters.copies, parent.group.counters.cow) == (1, 1)
    manager.check_invariants()


def test_fork_at_a_block_boundary_copies_nothing() -> None:
    manager = make()
    parent = sequence_of(list(range(8)))
    compute(manager, parent)
    child = Sequence(next(_ids), parent.group, 1, list(range(8)))
    manager.fork(parent, child)
    for sequence in (parent, child):
        sequence.token_ids.append(sequence.index)
        compute(manager, sequence)
    assert manager.take_operations() == ()
    assert manager.table(parent)[:2] == manager.table(child)[:2]


def test_copies_need_free_blocks_too() -> None:
    manager = make(2)
    parent = sequence_of(list(range(6)))
    compute(manager, parent)
    child = Sequence(next(_ids), parent.group, 1, [*range(6), 9])
    manager.fork(parent, child)
    assert not manager.append_slots(child, 1)
    assert manager.table(child) == (1, 2)


def test_a_copy_of_the_first_block() -> None:
    manager = make(3)
    parent = sequence_of([1, 2])
    compute(manager, parent)
    child = Sequence(next(_ids), parent.group, 1, [1, 2, 3])
    manager.fork(parent, child)
    assert manager.append_slots(child, 1)
    assert manager.take_operations() == (BlockOperation(BlockOperationKind.COPY, 1, 2),)


def test_beginnings_outlive_ends() -> None:
    manager = make(4)
    first = sequence_of(list(range(12)))
    compute(manager, first)
    manager.release(first)
    compute(manager, sequence_of([99] * 8))  # takes the free block and evicts one
    assert manager.extend_prefix(sequence_of([*range(12), 0])) == 8
    assert manager.counters.evictions == 1


def test_release_and_forget_may_be_called_for_anyone() -> None:
    manager = make()
    sequence = sequence_of([1, 2])
    manager.release(sequence)
    compute(manager, sequence)
    manager.forget(sequence)
    manager.forget(sequence)
    assert manager.table(sequence) == ()
    assert manager.pool.num_free == 8


def test_peak_blocks_count_shared_ones_once() -> None:
    manager = make()
    parent = sequence_of(list(range(8)))
    compute(manager, parent)
    child = Sequence(next(_ids), parent.group, 1, [*range(8), 5])
    parent.group.sequences.append(child)
    manager.fork(parent, child)
    compute(manager, child)
    assert manager.num_blocks_of(parent.group.sequences) == 3
    manager.release(child)
    assert parent.group.counters.peak_blocks == 3


def test_forgetting_the_cache_lets_running_sequences_publish_again() -> None:
    manager = make()
    first = sequence_of(list(range(9)))
    compute(manager, first, 8)
    assert manager.forget_cached() == 2
    assert manager.extend_prefix(sequence_of(list(range(9)))) == 0
    compute(manager, first)
    assert manager.extend_prefix(sequence_of(list(range(9)))) == 8


def test_the_audit_compares_tables_with_counts() -> None:
    manager = make()
    sequence = sequence_of([1])
    compute(manager, sequence)
    manager._tables[sequence.seq_id].blocks.append(5)
    with pytest.raises(RuntimeError, match=r"\(5, 1, 0\)"):
        manager.check_invariants()


# --- lower tiers -----------------------------------------------------------------------------------------------------


def evict_all(manager: BlockManager) -> None:
    other = sequence_of([77] * (manager.capacity - 1) + [78])
    compute(manager, other)
    manager.forget(other)
    manager.take_operations()


def test_an_evicted_block_comes_back_from_the_lower_tier() -> None:
    manager = make(4, tier=FakeTier(8))
    first = sequence_of(list(range(9)))
    compute(manager, first)
    manager.forget(first)
    evict_all(manager)
    assert manager.counters.swap_out >= 2
    again = sequence_of(list(range(9)))
    assert manager.admission(again) is Admission.OK
    assert manager.extend_prefix(again) == 8
    kinds = [operation.kind for operation in manager.take_operations()]
    assert kinds.count(BlockOperationKind.SWAP_IN) == 2
    assert (manager.counters.swap_in, again.group.counters.swap_in) == (2, 2)
    assert manager.extend_prefix(sequence_of(list(range(9)))) == 8  # published again on the device
    manager.check_invariants()


class ForgetfulTier(FakeTier):
    """Says it has a block, and then has not."""

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        return None


def test_a_block_that_the_tier_has_lost_is_computed_again() -> None:
    manager = make(5, tier=ForgetfulTier(8))
    first = sequence_of(list(range(13)))
    compute(manager, first)
    # The middle block goes down, its neighbours stay.
    middle = manager.table(first)[1]
    manager.forget(first)
    while manager.pool.prefix(middle) is not None:
        manager.pool._free.move_to_end(middle, last=False)
        other = sequence_of([50])
        compute(manager, other)
        if manager.pool.ref_count(middle):
            manager.forget(other)
    again = sequence_of(list(range(13)))
    assert len(manager._find(again)) == 3
    assert manager.extend_prefix(again) == 4
    manager.check_invariants()


def test_nothing_is_brought_up_without_a_free_block() -> None:
    manager = make(3, tier=FakeTier(8))
    first = sequence_of(list(range(9)))
    compute(manager, first)
    manager.forget(first)
    evict_all(manager)
    holder = sequence_of([5] * 12)
    compute(manager, holder)
    assert manager.extend_prefix(sequence_of(list(range(9)))) == 0
    manager.check_invariants()
