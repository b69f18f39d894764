"""What the engine is told of chats: which one is looked at, and which are to stay in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatpaged.chat import Chat
from chatpaged.chat_memory import price
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.retained_prefixes import PinResult
from chatpaged.engine_host import HostState
from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.session_model import SessionOptions
from chatpaged.workspace_events import Notice
from tests.byte_tokenizer import END, START
from tests.scripted_backend import ScriptedBackend
from tests.test_workspace import World, run

HEADER = (START, *b"assistant\n")
LONG = "The answer takes a few blocks, as it is a little longer than others. "


def engine_of(world: World) -> LLMEngine:
    assert world.backend.llm is not None
    return world.backend.llm


def ids_of(chat: Chat) -> tuple[int, ...]:
    assert chat.session is not None
    assert chat.session.last_turn is not None
    return chat.session.last_turn.token_ids


async def num_pinned(world: World) -> int:
    """Between two steps."""
    snapshot = await world.workspace.host.snapshot()
    assert snapshot is not None
    return snapshot.pinned_blocks


async def until_pinned(world: World, count: int) -> None:
    async def wait() -> None:
        while await num_pinned(world) != count:  # noqa: ASYNC110 - a test waits for whatever it likes
            await asyncio.sleep(0.002)

    await asyncio.wait_for(wait(), 60)


async def said(world: World, *texts: str, system: str | None = None) -> Chat:
    chat = world.workspace.new_chat(system=system)
    world.workspace.look_at([chat.id])
    for text in texts:
        world.workspace.send(chat, text)
        await world.idle(chat)
    return chat


class Looks(list[tuple[tuple[int, ...] | None, bytes]]):
    """What an engine is told to look at."""

    def __init__(self, llm: LLMEngine) -> None:
        super().__init__()
        tell = llm.look_at

        def look_at(token_ids: Sequence[int] | None, salt: bytes = b"") -> None:
            tell(token_ids, salt)
            self.append((tuple(token_ids) if token_ids is not None else None, salt))

        llm.look_at = look_at  # type: ignore[method-assign, assignment]  # of prefix keys nobody tells here

    @property
    def last(self) -> tuple[int, ...] | None:
        return self[-1][0] if self else None


# --- the chat in view ------------------------------------------------------------------------------------------------------


def test_the_engine_knows_the_chat_in_view_and_each_of_its_turns() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        looks = Looks(engine_of(world))
        chat = await said(world, "hello")
        await world.until(lambda: looks.last == ids_of(chat))
        assert chat.reply is not None
        assert [ids for ids, _ in looks if ids] == [chat.reply.draft.prompt.token_ids, ids_of(chat)]
        world.workspace.send(chat, "again")
        await world.idle(chat)
        await world.until(lambda: looks.last == ids_of(chat))
        other = await said(world, "another")
        await world.until(lambda: looks.last == ids_of(other))
        count = len(looks)
        world.workspace.look_at([other.id])
        world.workspace.look_at([chat.id, other.id])
        await world.until(lambda: looks.last == ids_of(chat))
        assert len(looks) == count + 1
        world.workspace.look_at([])
        await world.until(lambda: looks.last is None)

    run(scenario)


def test_private_chats_are_looked_at_with_their_salt() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        looks = Looks(engine_of(world))
        chat = await said(world, "hello" * 10)
        await world.until(lambda: looks.last == ids_of(chat))
        assert {salt for _, salt in looks} == {b"secret"}
        await world.workspace.memory.pin(chat)
        llm = engine_of(world)
        blocks = await world.workspace.host.engine.call(lambda llm: llm.cached_blocks(ids_of(chat), b"secret"))
        assert blocks
        assert set(llm.scheduler.blocks.pool.pinned) == set(blocks)

    run(scenario, options=SessionOptions(salt=b"secret", leave_out=True))


def test_what_is_computed_of_the_chat_in_view_goes_last() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = await said(world, "first " * 16)
        world.workspace.look_at([chat.id])
        for number in range(12):
            other = world.workspace.new_chat()
            world.workspace.send(other, f"{number} " * 50)
            await world.idle(other)
        found = await world.workspace.host.engine.call(lambda llm: llm.cached_blocks(ids_of(chat)))
        assert len(found) == len(ids_of(chat)) // 16
        assert engine_of(world).snapshot().counters["evictions"] > 20

    run(scenario, ScriptedBackend(num_blocks=33))


def test_of_a_chat_from_the_store_the_engine_gets_what_its_next_prompt_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ids: list[str] = []

    async def before(world: World) -> None:
        await world.ready()
        ids.extend([(await said(world, text * 9, "more", system="Be brief.")).id for text in ("one", "two", "three")])

    async def scenario(world: World) -> None:
        await world.ready()
        looks = Looks(engine_of(world))
        chats = [await world.workspace.open_chat(chat_id) for chat_id in ids]
        for chat in chats:  # leafing through
            world.workspace.look_at([chat.id])
        await world.until(lambda: looks.last)
        assert len([ids for ids, _ in looks if ids]) == 1, "nobody works out the ids of what is in view for a moment"
        known = looks.last or ()
        chat = chats[-1]
        assert known[-8:] == (*b"Hello.", END, *b"\n")
        world.workspace.send(chat, "and now")
        await world.until(lambda: chat.reply is not None)
        assert chat.reply is not None
        assert chat.reply.draft.prompt.token_ids[: len(known)] == known
        await world.idle(chat)
        # Back to where this process has computed only what stood before.
        whole = ids_of(chat)
        await world.until(lambda: looks.last == whole)
        world.workspace.branch(chat, chat.conversation.path()[1].id)
        await world.until(lambda: looks.last != whole)
        assert (looks.last or ()) == known[: len(looks.last or ())]
        # A question without an answer is sent as it is.
        world.workspace.branch(chat, chat.conversation.path()[0].id)
        await world.until(lambda: (looks.last or ())[-len(HEADER) :] == HEADER)

    run(before, path=path)
    run(scenario, path=path)


def test_without_an_engine_nothing_is_told_and_another_one_is_told_again() -> None:
    backend = ScriptedBackend()
    backend.fail = ModelError("no such model")

    async def scenario(world: World) -> None:
        await world.until(lambda: world.workspace.host.state is HostState.FAILED)
        chat = world.workspace.new_chat()
        world.workspace.look_at([chat.id])
        with pytest.raises(InvalidRequestError, match="no engine yet"):
            await world.workspace.memory.pin(chat)
        assert not await world.workspace.memory.unpin(chat)
        world.backend.fail = None
        await world.workspace.reload()
        await world.ready()
        world.workspace.send(chat, "hello " * 9)
        await world.idle(chat)
        await world.workspace.memory.pin(chat)
        await world.workspace.use_model(ScriptedBackend("Other.", name="other"))
        await world.ready()
        llm = await world.workspace.host.engine.call(lambda llm: llm)
        looks = Looks(llm)
        assert not await num_pinned(world)
        world.workspace.send(chat, "hello again")
        await world.idle(chat)
        await world.until(lambda: looks.last == ids_of(chat))
        await until_pinned(world, len(ids_of(chat)) // 16)

    run(scenario, backend)


def test_an_engine_that_dies_meanwhile_ends_nothing_else() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = await said(world, "hello")
        world.backend.pace.crash = RuntimeError("broken")
        world.workspace.send(chat, "again")
        world.workspace.look_at([])
        world.workspace.look_at([chat.id])
        await world.idle(chat)
        await world.until(lambda: world.workspace.host.state is HostState.DEAD)
        assert not world.workspace.memory._tasks or await drained(world)

    async def drained(world: World) -> bool:
        await world.until(lambda: not world.workspace.memory._tasks)
        return True

    run(scenario)


# --- pins --------------------------------------------------------------------------------------------------------------------


def test_a_pinned_chat_stays_and_grows_with_its_turns() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = world.workspace.new_chat()
        with pytest.raises(InvalidRequestError, match="nothing of this chat has been computed"):
            await world.workspace.memory.pin(chat)
        chat = await said(world, "hi" * 20)
        first = len(ids_of(chat)) // 16
        assert await world.workspace.memory.pin(chat) == f"pinned {first} blocks ({first * 720 / 1024:.1f} MiB), {first} of at most 64"
        assert chat.in_memory
        world.workspace.send(chat, "and then? " * 10)
        await world.idle(chat)
        more = len(ids_of(chat)) // 16
        assert more > first
        await until_pinned(world, more)
        other = await said(world, "other " * 10)
        view = await world.workspace.look()
        assert view is not None
        view.check()
        row, other_row = view.row(chat.id), view.row(other.id)
        assert row is not None
        assert other_row is not None
        assert (row.is_pinned, row.pinned, row.cached) == (True, more, more)
        assert (other_row.is_pinned, other_row.pinned < other_row.cached) == (False, True)
        assert [entry.id for entry in world.workspace.shelf.entries() if entry.in_memory] == [chat.id]
        assert await world.workspace.memory.unpin(chat)
        assert not await world.workspace.memory.unpin(chat)
        assert not await num_pinned(world)

    run(scenario)


def test_a_chat_that_is_being_answered_can_be_pinned() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        chat = world.workspace.new_chat()
        world.workspace.look_at([chat.id])
        world.workspace.send(chat, "x" * 60)
        await world.until(lambda: chat.reply is not None)
        world.backend.pace.let(1)
        pinning = world.workspace.memory.pin(chat)
        world.backend.pace.free()
        assert (await pinning).startswith("pinned ")
        await world.idle(chat)
        await until_pinned(world, len(ids_of(chat)) // 16)

    run(scenario, ScriptedBackend(LONG))


def test_what_does_not_fit_a_quarter_of_the_pool_is_said() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        small = await said(world, "s" * 60)
        large = await said(world, "l" * 60)
        told = await world.workspace.memory.pin(small)
        assert "of at most 8" in told
        assert "first" not in told
        assert (await world.workspace.memory.pin(large)).endswith("8 of at most 8: a quarter of the pool")
        third = await said(world, "t" * 60)
        with pytest.raises(InvalidRequestError, match="no room: 8 of at most 8 blocks are pinned"):
            await world.workspace.memory.pin(third)
        assert not third.in_memory
        await world.workspace.memory.unpin(large)
        # It grows beyond what there is room for: that is said once.
        for _ in range(3):
            world.workspace.send(small, "more " * 10)
            await world.idle(small)
        await world.until(lambda: [notice for notice in world.heard(Notice) if "outgrown" in notice.text])
        assert [notice.severity for notice in world.heard(Notice) if "outgrown" in notice.text] == ["warning"]
        assert await num_pinned(world) == 8

    run(scenario, ScriptedBackend(num_blocks=33))


def test_a_chat_shorter_than_a_block_has_nothing_to_pin() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = await said(world, "hi")
        assert len(ids_of(chat)) < 64
        with pytest.raises(InvalidRequestError, match="a block of 64 tokens"):
            await world.workspace.memory.pin(chat)

    run(scenario, ScriptedBackend("H", config=EngineConfig(block_size=64)))


def test_without_a_prefix_cache_nothing_can_be_pinned() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = await said(world, "hi" * 20)
        with pytest.raises(InvalidRequestError, match="--no-prefix-caching"):
            await world.workspace.memory.pin(chat)

    run(scenario, ScriptedBackend(config=EngineConfig(enable_prefix_caching=False)))


def test_a_deleted_chat_keeps_nothing_and_one_that_is_taken_back_keeps_it_again() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = await said(world, "hi" * 20)
        await world.workspace.memory.pin(chat)
        pinned = await num_pinned(world)
        world.workspace.shelf.throw_away(chat.id)
        await until_pinned(world, 0)
        world.workspace.shelf.take_back()
        await until_pinned(world, pinned)

    run(scenario)


def test_a_price_in_words() -> None:
    assert price(PinResult(12, 12, 12, 128), 358_400) == "pinned 12 blocks (4.1 MiB), 12 of at most 128"
    assert price(PinResult(1, 1, 5, 128), 1024) == "pinned 1 block (1.0 KiB), 5 of at most 128"
    assert price(PinResult(40, 7, 8, 8), 1024) == "pinned the first 7 of 40 blocks (7.0 KiB), 8 of at most 8: a quarter of the pool"
