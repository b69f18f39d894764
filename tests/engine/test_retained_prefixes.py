"""What is in view goes last, what is pinned stays; with a manager that computes blocks of four tokens."""

from __future__ import annotations

from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.retained_prefixes import PinResult
from tests.engine.shadow_kv import FakeTier, Harness
from tests.engine.test_block_manager import BLOCK, compute, make, sequence_of


def say(manager: BlockManager, tokens: list[int]) -> None:
    """A request that comes and goes."""
    sequence = sequence_of(tokens)
    compute(manager, sequence)
    manager.forget(sequence)
    manager.take_operations()
    manager.check_invariants()


def kept(manager: BlockManager, tokens: list[int]) -> int:
    return len(manager.cached_blocks(manager.prefix_keys(tokens)))


def test_the_chat_in_view_goes_last() -> None:
    manager = make(8)
    chat, other = list(range(16)), list(range(50, 66))
    say(manager, chat)
    manager.look_at(manager.prefix_keys(chat))
    say(manager, other)
    say(manager, list(range(100, 116)))  # room for one of them: not the oldest, which is in view
    assert (kept(manager, chat), kept(manager, other)) == (4, 0)
    manager.look_at(None)
    say(manager, list(range(200, 216)))
    assert kept(manager, chat) == 4  # it was looked at later than the other one was said
    say(manager, list(range(300, 316)))
    assert kept(manager, chat) == 0


def test_the_chat_in_view_goes_when_nothing_else_is_left() -> None:
    manager = make(8)
    chat = list(range(16))
    say(manager, chat)
    manager.look_at(manager.prefix_keys(chat))
    say(manager, list(range(100, 128)))
    assert kept(manager, chat) == 1  # its end went first
    manager.check_invariants()


def test_a_chat_that_is_looked_at_again_goes_after_those_that_are_not() -> None:  # B11
    manager = make(12)
    chats = [list(range(start, start + 16)) for start in (0, 100, 200)]
    for chat in chats:
        say(manager, chat)
    for chat in (chats[0], chats[2]):
        manager.look_at(manager.prefix_keys(chat))
    say(manager, list(range(300, 316)))
    assert [kept(manager, chat) for chat in chats] == [4, 0, 4]


def test_what_is_pinned_is_never_evicted() -> None:
    manager = make(16)
    chat = list(range(18))
    say(manager, chat)
    assert manager.retained.pin("chat", manager.prefix_keys(chat)) == PinResult(4, 4, 4, 4)
    assert manager.pool.num_free == 12
    for start in range(100, 1000, 40):
        say(manager, list(range(start, start + 40)))
    assert kept(manager, chat) == 4
    assert manager.pool.num_pinned == 4
    assert manager.retained.unpin("chat")
    assert not manager.retained.unpin("chat")
    assert (manager.pool.num_free, manager.pool.num_pinned) == (16, 0)
    manager.check_invariants()


def test_a_pin_waits_for_its_blocks() -> None:
    manager = make(16)
    chat = list(range(8))
    manager.retained.pin("chat", manager.prefix_keys(chat))
    assert (manager.pool.num_pinned, manager.retained.pins()) == (0, {"chat": 2})
    say(manager, chat)
    assert (manager.pool.num_pinned, manager.pool.num_free) == (2, 14)
    assert manager.extend_prefix(sequence_of([*chat, 1])) == 8
    manager.check_invariants()


def test_a_quarter_of_the_pool_may_be_pinned() -> None:
    manager = make(16)
    chat, other = list(range(12)), [*range(8), 50, 51, 52, 53, 54, 55, 56, 57]
    assert manager.retained.pin("chat", manager.prefix_keys(chat)) == PinResult(3, 3, 3, 4)
    # The first two blocks are there already and cost nothing.
    assert manager.retained.pin("other", manager.prefix_keys(other)) == PinResult(4, 3, 4, 4)
    assert manager.retained.pin("third", manager.prefix_keys([9] * 8)) == PinResult(2, 0, 4, 4)
    assert manager.retained.pins() == {"chat": 3, "other": 3}
    assert manager.retained.pin("chat", manager.prefix_keys([9] * 8)) == PinResult(2, 1, 4, 4)


def test_an_emptied_cache_has_nothing_pinned() -> None:
    manager = make(16)
    say(manager, list(range(16)))
    manager.retained.pin("chat", manager.prefix_keys(list(range(8))))
    manager.look_at(manager.prefix_keys(list(range(16))))
    manager.forget_cached()
    assert (manager.pool.num_free, manager.pool.num_pinned) == (16, 0)
    manager.check_invariants()


def test_the_state_of_a_chat_in_view_and_pinned() -> None:
    manager = make(16)
    chat = list(range(16))
    say(manager, chat)
    manager.look_at(manager.prefix_keys(chat))
    manager.retained.pin("chat", manager.prefix_keys(chat[:8]))
    assert manager.pool.num_free == 14
    manager.retained.unpin("chat")
    assert manager.pool.num_free == 16
    say(manager, list(range(100, 148)))  # all that is left
    assert kept(manager, chat) == 4
    manager.check_invariants()


def test_the_chat_in_view_comes_up_before_anybody_asks() -> None:
    manager = make(8, tier=FakeTier(32))
    chat = list(range(16))
    say(manager, chat)
    for start in (100, 200):
        say(manager, list(range(start, start + 32)))
    assert kept(manager, chat) == 0
    manager.look_at(manager.prefix_keys([*chat, 50, 51, 52, 53]))
    assert [operation.kind.value for operation in manager.traffic.bring_up(3)].count("swap_in") == 3
    assert [operation.kind.value for operation in manager.traffic.bring_up(3)].count("swap_in") == 1
    assert manager.traffic.bring_up(3) == ()
    assert kept(manager, chat) == 4
    assert manager.pool.num_spare == 4
    manager.check_invariants()


def test_nothing_comes_up_where_all_blocks_are_in_use() -> None:
    manager = make(8, tier=FakeTier(32))
    chat = list(range(16))
    say(manager, chat)
    holder = sequence_of(list(range(100, 132)))
    compute(manager, holder)
    manager.take_operations()
    manager.look_at(manager.prefix_keys(chat))
    assert manager.traffic.bring_up(3) == ()
    manager.look_at(None)
    manager.forget(holder)
    assert manager.traffic.bring_up(3) == ()


# --- with a scheduler ----------------------------------------------------------------------------------------------------


def pinned_harness() -> Harness:
    harness = Harness(num_blocks=8, max_model_len=64)
    harness.add(list(range(8)), max_tokens=1)
    harness.run()
    blocks = harness.scheduler.blocks
    assert blocks.retained.pin("chat", blocks.prefix_keys(list(range(8)))).pinned == 2
    return harness


def test_pins_give_way_to_a_request_that_needs_the_whole_pool() -> None:
    harness = pinned_harness()
    harness.add([4] * 30, max_tokens=1)  # all eight blocks
    harness.run()
    blocks = harness.scheduler.blocks
    assert blocks.retained.pin_yields == 2
    harness.add(list(range(8)), max_tokens=1)
    harness.run()
    assert blocks.pool.num_pinned == 2  # again, as soon as they are computed again
    assert blocks.pool.num_free == 6


def test_pins_give_way_to_an_answer_that_grows_over_the_whole_pool() -> None:
    harness = pinned_harness()
    harness.add([4] * 4, max_tokens=28)
    harness.run()
    assert harness.scheduler.blocks.retained.pin_yields == 2


def test_pins_do_not_give_way_while_others_can() -> None:
    harness = pinned_harness()
    for token in range(4):
        harness.add([token] * BLOCK, max_tokens=16)
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    assert harness.scheduler.blocks.retained.pin_yields == 0
    assert harness.scheduler.blocks.pool.num_pinned == 2
