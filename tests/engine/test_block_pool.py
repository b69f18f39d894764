from __future__ import annotations

import pytest

from chatpaged.engine.block_pool import KEY_BYTES, BlockPool, BlockPrefix, NoFreeBlockError, chain, root_key


def prefix_of(*tokens: int, parent: bytes = b"root") -> BlockPrefix:
    return chain(parent, tokens)


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert [pool.allocate()[0] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(NoFreeBlockError, match="all 3 blocks"):
        pool.allocate()


def test_a_pool_needs_a_usable_block() -> None:
    with pytest.raises(ValueError, match="null block"):
        BlockPool(1)


def test_counts_add_up() -> None:
    pool = BlockPool(6)
    blocks = [pool.allocate()[0] for _ in range(4)]
    pool.publish(blocks[0], prefix_of(1))
    for block in blocks[:2]:
        pool.release(block)
    assert (pool.num_usable, pool.num_free, pool.num_cached) == (5, 3, 1)
    pool.check_invariants()


def test_released_blocks_keep_their_prefix_until_they_are_allocated_again() -> None:
    pool = BlockPool(3)
    first, _ = pool.allocate()
    pool.publish(first, prefix_of(1, 2))
    pool.release(first)
    assert pool.lookup(prefix_of(1, 2)) == first
    assert pool.allocate() == (2, None)  # never used, so it goes before one that is worth keeping
    assert pool.allocate() == (first, prefix_of(1, 2))
    assert pool.lookup(prefix_of(1, 2)) is None


def test_eviction_takes_the_longest_unused_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate()[0] for _ in range(3)]
    for block in blocks:
        pool.publish(block, prefix_of(block))
    for block in (2, 3, 1):
        pool.release(block)
    pool.acquire(2)  # a hit takes it out of the middle of the queue
    pool.release(2)
    assert [pool.allocate()[0] for _ in range(3)] == [3, 1, 2]


def test_unpublished_blocks_are_used_up_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate()[0] for _ in range(3)]
    pool.publish(blocks[0], prefix_of(1))
    for block in blocks:
        pool.release(block)
    assert [pool.allocate()[0] for _ in range(3)] == [3, 2, 1]


def test_the_next_block_is_preferred_when_nothing_is_lost() -> None:
    pool = BlockPool(6)
    first, _ = pool.allocate()
    pool.allocate()
    assert pool.allocate(after=4) == (5, None)
    assert pool.allocate(after=first)[0] == 3  # 2 is taken
    pool.publish(5, prefix_of(5))
    pool.release(5)
    assert pool.allocate(after=4)[0] == 4  # 5 is cached: worth more than contiguity


def test_a_hit_compares_token_ids_and_parent_not_the_key_alone() -> None:
    pool = BlockPool(3)
    block, _ = pool.allocate()
    real = prefix_of(1, 2)
    pool.publish(block, real)
    assert pool.lookup(BlockPrefix(real.key, real.parent_key, (1, 3))) is None
    assert pool.lookup(BlockPrefix(real.key, b"other", (1, 2))) is None
    assert pool.lookup(real) == block


def test_the_first_of_two_equal_blocks_stays_published() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate()[0], pool.allocate()[0]
    pool.publish(first, prefix_of(1))
    pool.publish(second, prefix_of(1))
    assert pool.lookup(prefix_of(1)) == first
    assert pool.prefix(second) is None


def test_a_block_cannot_be_released_more_often_than_taken() -> None:
    pool = BlockPool(3)
    block, _ = pool.allocate()
    pool.acquire(block)
    pool.release(block)
    pool.release(block)
    with pytest.raises(RuntimeError, match="more often"):
        pool.release(block)


def test_forgetting_leaves_users_alone() -> None:
    pool = BlockPool(4)
    used, cached = pool.allocate()[0], pool.allocate()[0]
    pool.publish(used, prefix_of(1))
    pool.publish(cached, prefix_of(2))
    pool.release(cached)
    assert pool.forget_cached() == 2
    assert (pool.num_cached, pool.ref_count(used), pool.lookup(prefix_of(1))) == (0, 1, None)
    pool.check_invariants()


def test_keys_depend_on_everything() -> None:
    root = root_key(b"model", b"salt")
    keys = {
        chain(root, (1, 2)).key,
        chain(root, (2, 1)).key,
        chain(chain(root, (1,)).key, (2,)).key,
        chain(root_key(b"models", b"alt"), (1, 2)).key,
        chain(root_key(b"model", b""), (1, 2)).key,
        chain(root, (2**40, 2)).key,
    }
    assert len(keys) == 6
    assert {len(key) for key in keys} == {KEY_BYTES}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._free.pop(2), "block 2 has 0 users but is not free"),
        (lambda pool: pool._ref_counts.__setitem__(2, 1), "block 2 has 1 users but is free"),
        (lambda pool: pool._ref_counts.__setitem__(0, 1), "null block"),
        (lambda pool: pool._states.__setitem__(2, 3), "the states and the blocks disagree"),
        (lambda pool: pool._by_key.clear(), "disagree"),
        (lambda pool: pool._pinned.update({3: pool._free.pop(3)}), "another queue"),
    ],
)
def test_the_audit_finds_damage(damage: object, message: str) -> None:
    pool = BlockPool(4)
    pool.publish(pool.allocate()[0], prefix_of(1))
    pool.check_invariants()
    assert callable(damage)
    damage(pool)
    with pytest.raises(RuntimeError, match=message):
        pool.check_invariants()
