from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.block_pool import BlockState
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.sequence import SequenceStatus
from chatpaged.engine.snapshot import GraphCounters, StepTiming, take_snapshot
from chatpaged.engine_rows import ChatFacts, RowState
from chatpaged.engine_view import STEP_PARTS, Cell, EngineView
from tests.engine.test_llm_engine import engine_of
from tests.engine.workload import act, random_harness

SYSTEM = "s" * 32  # two blocks
ENDLESS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


def view_of(engine: Any, *chats: ChatFacts, in_view: str | None = None) -> EngineView:
    view = EngineView.of(engine.snapshot(), chats, in_view=in_view)
    view.check()
    return view


def chat(name: str, request: str | None = None, **more: Any) -> ChatFacts:
    return ChatFacts(id=name, title=name.title(), request_id=request, **more)


def test_chats_that_share_a_system_prompt_add_up() -> None:
    engine = engine_of()
    rested = tuple((SYSTEM + "rested" * 8).encode())
    engine.generate(rested)
    engine.add_request(SYSTEM + "a" * 20, ENDLESS, request_id="a")
    engine.add_request(SYSTEM + "b" * 40, ENDLESS, request_id="b")
    engine.add_request(SYSTEM + "nobody's", ENDLESS, request_id="job")
    for _ in range(4):
        engine.step()
    cached = engine.cached_blocks(rested)
    view = view_of(engine, chat("a", "a"), chat("b", "b"), chat("idle", cached_blocks=cached, cached_tokens=7), in_view="a")
    a, b, idle = view.rows
    assert [(row.state, row.samples) for row in view.rows] == [(RowState.WRITING, 1), (RowState.WRITING, 1), (RowState.IDLE, 0)]
    # 52 + 4 tokens and 72 + 4 tokens, two blocks of them read once for all.
    assert [(row.own, row.shared, row.cached) for row in (a, b, idle)] == [(2, 2, 0), (3, 2, 0), (0, 2, 3)]
    assert (a.cached_tokens, idle.cached_tokens, idle.title) == (32, 7, "Idle")
    others = view.others
    assert others is not None
    assert (others.own, others.shared, others.state, others.id) == (1, 2, RowState.WRITING, "")
    assert (view.sums.own, view.sums.shared, view.sums.repeated_shared, view.sums.unclaimed) == (6, 2, 6, 0)
    assert view.blocks_in_use == 8
    assert view.saved_bytes == 4
    assert view.speed == sum(row.speed for row in view.everyone) > 0
    assert view.count(SequenceStatus.RUNNING) == 3


def test_a_cell_says_what_a_block_is_for_the_chat_that_is_looked_at() -> None:
    engine = engine_of()
    rested = tuple((SYSTEM + "rested" * 8).encode())
    engine.generate(rested)
    engine.add_request(SYSTEM + "a" * 20, ENDLESS, request_id="a")
    engine.add_request(SYSTEM + "b" * 40, ENDLESS, request_id="b")
    for _ in range(4):
        engine.step()
    view = view_of(engine, chat("a", "a"), chat("b", "b"), chat("idle", cached_blocks=engine.cached_blocks(rested)), in_view="a")
    a, b, idle = view.rows
    cells, of_idle, of_none = view.cells(), view.cells("idle"), EngineView.of(view.snapshot, ()).cells()
    assert cells[0] == Cell.NULL
    assert {cells[block] for block in a.blocks - b.blocks} == {Cell.CHAT_USED}
    assert {cells[block] for block in a.blocks & b.blocks} == {Cell.CHAT_SHARED}
    assert {cells[block] for block in b.blocks - a.blocks} == {Cell.USED}
    assert {cells[block] for block in idle.kept - a.blocks} == {Cell.CACHED}
    assert {of_idle[block] for block in idle.kept - a.blocks} == {Cell.CHAT_CACHED}
    assert {of_none[block] for block in a.blocks & b.blocks} == {Cell.SHARED}
    assert of_none.count(Cell.FREE) == view.snapshot.free_blocks
    assert view.cells("no such chat") == of_none
    block = next(iter(a.blocks & b.blocks))
    assert {row.id for row in view.holders([block])} == {"a", "b", "idle"}
    assert view.holders([0]) == ()


def test_what_is_kept_for_a_chat_and_used_by_another_is_shared_with_it() -> None:
    engine = engine_of()
    rested = tuple((SYSTEM + "rested" * 8).encode())
    engine.generate(rested)
    engine.add_request(SYSTEM + "a" * 20, ENDLESS, request_id="a")
    engine.step()
    view = view_of(engine, chat("a", "a"), chat("idle", cached_blocks=engine.cached_blocks(rested)), in_view="idle")
    a, idle = view.rows
    assert (idle.own, idle.shared, idle.cached) == (0, 2, 3)
    cells = view.cells()
    assert {cells[block] for block in idle.kept & a.blocks} == {Cell.CHAT_SHARED}
    assert cells.count(Cell.CHAT_USED) == 0


def test_blocks_of_a_lower_tier_come_last() -> None:
    snapshot = replace(engine_of(num_blocks=5).snapshot(), tier_blocks=3)
    view = EngineView.of(snapshot, ())
    view.check()
    assert view.cells() == bytes([Cell.NULL] + [Cell.FREE] * 4 + [Cell.LOWER] * 3)


def test_pinned_blocks_that_nobody_uses_have_a_cell_of_their_own() -> None:
    engine = engine_of()
    rested = tuple((SYSTEM + "rested" * 8).encode())
    engine.generate(rested)
    assert engine.pin("idle", rested).pinned == 5
    engine.add_request(SYSTEM + "a" * 20, ENDLESS, request_id="a")
    engine.step()
    idle_facts = chat("idle", cached_blocks=engine.cached_blocks(rested), is_pinned=True)
    view = view_of(engine, chat("a", "a"), idle_facts, in_view="a")
    a, idle = view.rows
    # The two blocks of the system prompt are in use.
    assert (a.pinned, a.is_pinned, idle.pinned, idle.is_pinned, idle.cached) == (2, False, 5, True, 3)
    assert len(view.idle_pinned) == 3
    assert {view.cells()[block] for block in view.idle_pinned} == {Cell.PINNED}
    of_idle = view.cells("idle")
    assert {of_idle[block] for block in view.idle_pinned} == {Cell.CHAT_PINNED}
    assert of_idle.count(Cell.CHAT_SHARED) == 2
    for wrong in (
        (*view.snapshot.pinned, view.snapshot.pinned[0]),
        (*view.snapshot.pinned, view.snapshot.block_states.index(BlockState.FREE)),
    ):
        with pytest.raises(RuntimeError, match="pinned blocks"):
            EngineView.of(replace(view.snapshot, pinned=wrong), (idle_facts,), in_view="idle").check()


def test_samples_of_a_request_are_one_row_with_each_block_once() -> None:
    engine = engine_of()
    engine.add_request("x" * 40, SamplingParams(n=3, max_tokens=50, ignore_eos=True), request_id="r")
    for _ in range(3):
        engine.step()
    (row,) = view_of(engine, chat("a", "r")).rows
    # Two full blocks of the prompt, and the last one three times.
    assert (row.own, row.shared, row.samples) == (3, 2, 3)
    assert row.own + row.shared == engine.snapshot().used_blocks + engine.snapshot().shared_blocks


def test_what_a_chat_said_of_the_cache_may_be_out_of_date() -> None:
    engine = engine_of(num_blocks=9)
    (row,) = view_of(engine, chat("a", cached_blocks=(0, 1, 2, 8, 9, 77))).rows
    assert (row.kept, row.cached, row.shared) == (frozenset(), 0, 0)


def test_reading_tells_how_far_it_is_and_a_request_that_has_ended_is_idle() -> None:
    engine = engine_of(ScriptedExecutor([97], num_blocks=65, vocab_size=258, max_num_batched_tokens=32))
    engine.add_request("x" * 128, SamplingParams(max_tokens=2), request_id="r")
    assert view_of(engine, chat("a", "r")).rows[0].state is RowState.WAITING
    engine.step()
    (row,) = view_of(engine, chat("a", "r")).rows
    assert (row.state, row.percent) == (RowState.READING, 25)
    while engine.has_unfinished:
        engine.step()
    assert view_of(engine, chat("a", "r")).rows[0].state is RowState.IDLE


def test_a_long_prompt_beside_a_stream_is_seen_to_progress() -> None:
    """Case C6."""
    engine = engine_of(ScriptedExecutor([97], num_blocks=600, vocab_size=258))
    engine.add_request("tell me a story", SamplingParams(max_tokens=2000, ignore_eos=True), request_id="a", interactive=True)
    for _ in range(5):
        engine.step()
    engine.add_request(" a" * 2000, ENDLESS, request_id="b", interactive=True)
    percents: list[int] = []
    while not percents or percents[-1] < 100:
        before = engine.snapshot().sequences[0].num_tokens
        engine.step()
        view = view_of(engine, chat("a", "a"), chat("b", "b"))
        assert view.rows[0].state is RowState.WRITING
        assert engine.snapshot().sequences[0].num_tokens == before + 1
        percents.append(view.rows[1].percent)
    assert percents == sorted(percents)
    assert len(set(percents)) > 10


def test_six_chats_with_room_for_two_add_up_at_every_step() -> None:
    """Case C16."""
    engine = engine_of(num_blocks=33, max_num_seqs=2)
    for i in range(6):
        engine.add_request(SYSTEM + "abcdef"[i] * 40, SamplingParams(max_tokens=30, ignore_eos=True), request_id=f"r{i}")
    chats = [chat(f"c{i}", f"r{i}") for i in range(6)]
    seen = set()
    while engine.has_unfinished:
        engine.step()
        view = view_of(engine, *chats, in_view="c0")
        assert view.count(SequenceStatus.RUNNING) <= 2
        seen |= {row.state for row in view.rows}
    assert seen == {RowState.WAITING, RowState.WRITING, RowState.IDLE}


def test_a_small_pool_shows_who_gave_way() -> None:
    engine = engine_of(num_blocks=13, max_num_seqs=4)
    for i in range(3):
        engine.add_request("abc"[i] * 40, SamplingParams(max_tokens=90, ignore_eos=True), request_id=f"r{i}")
    seen = set()
    while engine.has_unfinished:
        engine.step()
        view = view_of(engine, *(chat(f"c{i}", f"r{i}") for i in range(3)))
        seen |= {row.state for row in view.rows}
    assert RowState.PREEMPTED in seen
    assert view.snapshot.counters["preemptions"] > 0


def test_parts_of_a_step_and_series() -> None:
    parts = dict(zip(STEP_PARTS, (1.0, 0.0, 1.0, 6.0, 1.0, 1.0), strict=True))
    step = StepTiming(**parts, num_seqs=2, num_tokens=5, num_decode_tokens=1)
    snapshot = replace(engine_of().snapshot(), steps=tuple(replace(step, num_tokens=i) for i in range(100)))
    view = EngineView.of(snapshot, ())
    assert view.time_split == {"schedule": 0.1, "operations": 0.0, "prepare": 0.1, "forward": 0.6, "sample": 0.1, "process": 0.1}
    assert view.token_series == tuple(range(40, 100))
    assert view.batch_series == (2,) * 60
    assert EngineView.of(engine_of().snapshot(), ()).time_split == {}


def test_where_steps_are_quick_no_peak_between_two_looks_is_lost() -> None:
    parts = dict.fromkeys(STEP_PARTS, 0.0001)
    step = StepTiming(**parts, num_seqs=2, num_tokens=2, num_decode_tokens=2)
    steps = [step] * 128
    steps[10] = replace(step, num_tokens=256)
    view = EngineView.of(replace(engine_of().snapshot(), steps=tuple(steps)), ())
    assert len(view.token_series) == 60
    assert sorted(view.token_series)[-2:] == [2, 256]


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_whatever_the_engine_does_it_adds_up(seed: int, num_actions: int) -> None:
    rng = random.Random(seed)
    harness = random_harness(rng)
    for _ in range(num_actions):
        act(harness, rng)
        groups = harness.scheduler.groups()
        chats = [chat(group.request_id, group.request_id) for group in groups if rng.random() < 0.8]
        # Idle ones, whose blocks are those of anybody: what was cached a moment ago may have gone by now.
        num_blocks = harness.scheduler.blocks.pool.num_blocks
        chats += [chat(f"idle{i}", cached_blocks=tuple(rng.sample(range(num_blocks), num_blocks // 2))) for i in range(3)]
        retained = harness.scheduler.blocks.retained
        if groups and rng.random() < 0.5:
            sequence = rng.choice(groups).sequences[0]
            retained.pin(f"pin{rng.randrange(3)}", harness.scheduler.blocks.prefix_keys(sequence.token_ids))
        snapshot = take_snapshot(harness.scheduler, code="", block_bytes=1, steps=(), speeds={}, graphs=GraphCounters())
        view = EngineView.of(snapshot, chats, in_view=rng.choice(chats).id)
        view.check()
        for row in view.rows:
            held = [snapshot.block_states[block] for block in row.blocks]
            assert all(state in (BlockState.USED, BlockState.SHARED) for state in held)
            cells = view.cells(row.id)
            used, shared, cached, pinned = map(cells.count, (Cell.CHAT_USED, Cell.CHAT_SHARED, Cell.CHAT_CACHED, Cell.CHAT_PINNED))
            assert (used, shared, cached + pinned) == (row.own, row.shared, row.cached), "the map and the table say the same"
            assert pinned <= row.pinned


@pytest.mark.parametrize("number", ["free_blocks", "cached_blocks", "used_blocks", "shared_blocks"])
def test_numbers_that_do_not_add_up_are_found(number: str) -> None:
    engine = engine_of()
    engine.generate("x" * 40)
    engine.add_request("y" * 40, ENDLESS, request_id="r")
    engine.step()
    snapshot = engine.snapshot()
    wrong = replace(snapshot, **{number: getattr(snapshot, number) + 1})
    with pytest.raises(RuntimeError, match="all blocks: "):
        EngineView.of(wrong, (chat("a", "r"),)).check()
    view = EngineView.of(snapshot, (chat("a", "r"),))
    for column in ("own", "shared", "cached", "unclaimed", "repeated_shared", "repeated_cached"):
        with pytest.raises(RuntimeError):
            replace(view, sums=replace(view.sums, **{column: getattr(view.sums, column) + 1})).check()
    with pytest.raises(RuntimeError, match="less than never"):
        replace(view, sums=replace(view.sums, repeated_shared=-1)).check()
