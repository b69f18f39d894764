"""Snapshots are taken several times a second, so they are computed with short cuts: proved here against the plain way."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_pool import NULL_BLOCK, BlockPool, BlockState
from chatpaged.engine.scheduler import Scheduler
from chatpaged.engine.snapshot import EngineSnapshot, GraphCounters, take_snapshot
from tests.engine.test_llm_engine import engine_of
from tests.engine.workload import act, random_harness


def plain_state(pool: BlockPool, block: int) -> BlockState:
    if block == NULL_BLOCK:
        return BlockState.NULL
    if pool.ref_count(block):
        return BlockState.SHARED if pool.ref_count(block) > 1 else BlockState.USED
    return BlockState.CACHED if pool.prefix(block) is not None else BlockState.FREE


def plain_live_tokens(blocks: BlockManager) -> int:
    filled: dict[int, int] = {}
    for sequence, table in blocks.tables():
        for i, block in enumerate(table):
            count = min(blocks.block_size, sequence.num_computed_tokens - i * blocks.block_size)
            filled[block] = max(filled.get(block, 0), count)
    return sum(filled.values())


def check_against_the_plain_way(snapshot: EngineSnapshot, scheduler: Scheduler) -> None:
    blocks = scheduler.blocks
    pool = blocks.pool
    states = [plain_state(pool, block) for block in range(pool.num_blocks)]
    assert list(snapshot.block_states) == states
    counts = (snapshot.free_blocks, snapshot.cached_blocks, snapshot.used_blocks, snapshot.shared_blocks)
    assert counts == tuple(states.count(state) for state in (BlockState.FREE, BlockState.CACHED, BlockState.USED, BlockState.SHARED))
    assert snapshot.saved_blocks == sum(max(0, pool.ref_count(block) - 1) for block in range(pool.num_blocks))
    assert snapshot.live_tokens == plain_live_tokens(blocks)
    for told, sequence in zip(snapshot.sequences, (*scheduler.running, *scheduler.waiting), strict=True):
        table = blocks.table(sequence)
        assert told.blocks == table
        assert told.shared_blocks == sum(pool.ref_count(block) > 1 for block in table)
        assert told.own_blocks == len(table) - told.shared_blocks


@given(st.integers(0, 2**32), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_a_snapshot_is_what_the_plain_way_finds(seed: int, num_actions: int) -> None:
    rng = random.Random(seed)
    harness = random_harness(rng)
    for _ in range(num_actions):
        act(harness, rng)
        snapshot = take_snapshot(harness.scheduler, code="", block_bytes=0, steps=(), speeds={}, graphs=GraphCounters())
        check_against_the_plain_way(snapshot, harness.scheduler)
        assert snapshot.tier_blocks == harness.scheduler.blocks.traffic.tier.num_blocks


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_the_blocks_of_a_beginning_are_those_that_a_prompt_would_find(seed: int, num_actions: int) -> None:
    rng = random.Random(seed)
    harness = random_harness(rng)
    for _ in range(num_actions):
        act(harness, rng)
        for sequence in (*harness.scheduler.running, *harness.scheduler.waiting):
            blocks = harness.scheduler.blocks
            order = list(blocks.pool._free)
            found = blocks.cached_blocks(blocks.prefix_keys(sequence.token_ids, sequence.group.salt))
            published = [blocks.pool.prefix(block) for block in found]
            assert [token for prefix in published if prefix for token in prefix.token_ids] == sequence.token_ids[
                : len(found) * blocks.block_size
            ]
            # One more is not there: the run ends at the first block that nobody has.
            start = len(found) * blocks.block_size
            following = tuple(sequence.token_ids[start : start + blocks.block_size])
            parent = published[-1].key if published and published[-1] else None
            assert len(following) < blocks.block_size or not any(
                prefix is not None and prefix.parent_key == parent and prefix.token_ids == following for prefix in blocks.pool._prefixes
            )
            assert list(blocks.pool._free) == order


def test_a_chat_that_rests_is_still_found_and_may_be_asked_for_with_a_handle() -> None:
    engine = engine_of(num_blocks=9)
    prompt = tuple(b"x" * 40)
    engine.generate(prompt)
    before = engine.snapshot().counters
    assert len(engine.cached_blocks(prompt)) == 2
    assert engine.cached_blocks(engine.prefix_keys(prompt)) == engine.cached_blocks(prompt)
    assert engine.cached_blocks(prompt, salt=b"private") == ()
    assert engine.cached_blocks(prompt[:15]) == ()
    assert engine.snapshot().counters == before
    assert set(engine.cached_blocks(prompt)) == {i for i, state in enumerate(engine.snapshot().block_states) if state == BlockState.CACHED}
    engine.forget_cached()
    assert engine.cached_blocks(prompt) == ()


def test_a_pool_without_a_tier_says_so() -> None:
    assert engine_of().snapshot().tier_blocks == 0
