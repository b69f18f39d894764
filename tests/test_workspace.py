"""Many chats on one engine: sent, streamed, stopped, kept, and what those hear who show them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chatpaged.chat import Chat, ChatState
from chatpaged.conversation import NodeState
from chatpaged.engine_host import HostState
from chatpaged.errors import ModelError, StoreError
from chatpaged.session_model import SessionOptions
from chatpaged.store import Store
from chatpaged.store_background import BackgroundStore
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import AnswerEnded, AnswerGrew, Notice, Returned, WorkspaceEvent
from tests.cli.runner import DEADLINE
from tests.scripted_backend import CONTEXT, ScriptedBackend


class World:
    """A workspace, and what was heard of it."""

    def __init__(self, backend: ScriptedBackend, path: Path | None, options: SessionOptions | None = None) -> None:
        self.backend = backend
        self.failures: list[StoreError] = []
        self.store = BackgroundStore(path, on_error=self.failures.append) if path is not None else None
        self.events: list[WorkspaceEvent] = []
        self.workspace = Workspace(backend, self.store, options=options)
        self.workspace.subscribe(self.events.append)

    async def until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 - a test waits for whatever it likes
                await asyncio.sleep(0.002)

        await asyncio.wait_for(wait(), DEADLINE)

    async def ready(self) -> None:
        await self.until(lambda: self.workspace.host.state is HostState.READY)

    async def idle(self, chat: Chat) -> None:
        await self.until(lambda: not chat.is_busy and not chat.queue)

    def heard(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def text_of(self, chat: Chat) -> str:
        return "".join(event.text for event in self.heard(AnswerGrew) if event.chat_id == chat.id and event.index == 0)


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    backend: ScriptedBackend | None = None,
    path: Path | None = None,
    options: SessionOptions | None = None,
) -> None:
    async def main() -> None:
        world = World(backend if backend is not None else ScriptedBackend(), path, options)
        try:
            await scenario(world)
        finally:
            world.backend.pace.free()
            world.backend.loaded.set()
            await world.workspace.close()
            if world.store is not None:
                assert world.store.close()
            assert world.failures == []

    asyncio.run(main())


def contents(chat: Chat) -> list[tuple[str, str]]:
    return [(node.role, node.content) for node in chat.conversation.path()]


def test_an_answer_is_streamed_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        assert (chat.title, chat.is_empty) == ("New chat", True)
        world.workspace.look_at([chat.id])
        world.workspace.send(chat, "Say hello")
        assert chat.is_busy
        await world.idle(chat)
        assert contents(chat) == [("user", "Say hello"), ("assistant", "Hello.")]
        assert world.text_of(chat) == "Hello."
        assert chat.title == "Say hello"
        assert not chat.unread
        answer = chat.conversation.path()[-1]
        assert (answer.finish_reason, answer.usage["prompt_tokens"]) == (
            "stop",
            len(chat.reply.draft.prompt.token_ids) if chat.reply else 0,
        )
        assert world.heard(AnswerEnded) == [AnswerEnded(chat.id, (answer.id,))]
        assert world.store is not None
        kept = await world.store.read(lambda store: store.load(chat.id))
        assert [node.content for node in kept.path()] == ["Say hello", "Hello."]

    run(scenario, path=path)


def test_many_chats_generate_at_once_and_each_goes_on_unseen() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        chats = [world.workspace.new_chat() for _ in range(5)]
        world.workspace.look_at([chats[0].id])
        for number, chat in enumerate(chats):
            world.workspace.send(chat, f"question {number}")
        await world.until(lambda: all(chat.state is ChatState.WAITING for chat in chats))
        world.backend.pace.let(60)
        await world.until(lambda: all(chat.state is ChatState.GENERATING for chat in chats))
        snapshot = await asyncio.gather(world.workspace.host.snapshot(), asyncio.to_thread(world.backend.pace.free))
        assert snapshot[0] is not None
        assert snapshot[0].batch_size == 5
        for chat in chats:
            await world.idle(chat)
            assert contents(chat)[-1] == ("assistant", "Hello. " * 40)
        assert [chat.unread for chat in chats] == [False, True, True, True, True]
        world.workspace.look_at([chats[2].id])
        assert not chats[2].unread

    run(scenario, ScriptedBackend("Hello. " * 40, step_tokens=2048))


def test_the_chat_in_view_goes_first() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        first, second, third = (world.workspace.new_chat() for _ in range(3))
        world.workspace.look_at([third.id, second.id])
        for chat in (first, second, third):
            world.workspace.send(chat, "x" * 400)
        await world.until(lambda: all(chat.state is ChatState.WAITING for chat in (first, second, third)))
        order: list[str] = []
        world.workspace.subscribe(lambda event: order.append(event.chat_id) if isinstance(event, AnswerEnded) else None)
        world.backend.pace.free()
        await world.until(lambda: len(order) == 3)
        assert order == [third.id, second.id, first.id]

    run(scenario, ScriptedBackend(max_num_seqs=1))


def test_looking_at_a_chat_that_waits_makes_it_urgent() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        first, second, third = (world.workspace.new_chat() for _ in range(3))
        world.workspace.look_at([first.id])
        for chat in (first, second, third):
            world.workspace.send(chat, "x" * 400)
        await world.until(lambda: all(chat.state is ChatState.WAITING for chat in (first, second, third)))
        world.workspace.look_at([third.id])
        order: list[str] = []
        world.workspace.subscribe(lambda event: order.append(event.chat_id) if isinstance(event, AnswerEnded) else None)
        world.backend.pace.free()
        await world.until(lambda: len(order) == 3)
        assert order.index(third.id) < order.index(second.id)

    run(scenario, ScriptedBackend(max_num_seqs=1))


def test_stop_keeps_what_there_is_and_gives_back_what_waits() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "one")
        await world.until(lambda: chat.state is ChatState.WAITING)
        world.backend.pace.let(6)
        await world.until(lambda: world.text_of(chat).startswith("He"))
        world.workspace.send(chat, "two")
        assert chat.queue == ["two"]
        assert world.workspace.stop(chat)
        world.backend.pace.free()
        await world.idle(chat)
        answer = chat.conversation.path()[-1]
        assert answer.content
        assert ("Hello. " * 40).startswith(answer.content)
        assert (answer.state, answer.finish_reason) == (NodeState.INTERRUPTED, "cancelled")
        assert world.heard(Returned) == [Returned(chat.id, "two")]
        assert not world.workspace.stop(chat)
        world.workspace.continue_answer(chat)
        await world.idle(chat)
        assert chat.conversation.path()[-1].id == answer.id

    run(scenario, ScriptedBackend("Hello. " * 40))


def test_what_is_sent_meanwhile_comes_next() -> None:
    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        for text in ("one", "two", "three"):
            world.workspace.send(chat, text)
        await world.idle(chat)
        assert [text for role, text in contents(chat) if role == "user"] == ["one", "two", "three"]

    run(scenario)


def test_alternatives_come_from_one_reading_of_the_prompt() -> None:
    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "choose", n=3)
        await world.idle(chat)
        answers = chat.conversation.children(chat.conversation.path()[0].id)
        assert [answer.content for answer in answers] == ["answer 0", "answer 1", "answer 2"]
        assert chat.reply is not None
        assert chat.reply.metrics is not None
        assert chat.reply.metrics.prefill_tokens == len(chat.reply.draft.prompt.token_ids)
        assert {event.index for event in world.heard(AnswerGrew)} == {0, 1, 2}

    run(scenario, ScriptedBackend(lambda index: f"answer {index}"))


def test_edit_and_regenerate_read_only_what_is_new() -> None:  # B10
    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        for turn in range(6):
            world.workspace.send(chat, f"question {turn} " + "x" * 50)
            await world.idle(chat)
        path = chat.conversation.path()
        shared = {}
        for name in ("regenerate", "edit"):
            if name == "edit":
                world.workspace.edit(chat, path[8].id, "another question")
            else:
                world.workspace.regenerate(chat, path[11].id)
            await world.idle(chat)
            assert chat.reply is not None
            assert chat.reply.metrics is not None
            shared[name] = (chat.reply.metrics.cached_tokens, chat.reply.draft.prompt.token_ids)
        whole = shared["regenerate"]
        assert len(whole[1]) - 16 <= whole[0] < len(whole[1])
        kept = common(whole[1], shared["edit"][1])
        assert kept - 16 < shared["edit"][0] <= kept
        assert [node.content for node in chat.conversation.siblings(path[8].id)][1] == "another question"
        assert len(chat.conversation.siblings(path[11].id)) == 2

    run(scenario)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_prompt_that_does_not_fit_goes_back() -> None:
    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        text = "x" * (CONTEXT + 1)
        world.workspace.send(chat, text)
        await world.idle(chat)
        assert world.heard(Returned) == [Returned(chat.id, text)]
        assert chat.is_empty
        [notice] = world.heard(Notice)
        assert notice.severity == "error"
        assert "too long for the context" in notice.text

    run(scenario)


def test_a_pool_that_is_too_small_is_told_with_numbers() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "x" * 500)
        await world.idle(chat)
        [notice] = world.heard(Notice)
        assert "pool has 16" in notice.text
        assert chat.is_empty

    run(scenario, ScriptedBackend(num_blocks=17))


def test_the_engine_dies_and_is_loaded_again() -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        chat, other = world.workspace.new_chat(), world.workspace.new_chat()
        world.workspace.send(other, "before")
        await world.idle(other)
        world.backend.pace.hold()
        world.workspace.send(chat, "one")
        await world.until(lambda: chat.state is ChatState.WAITING)
        world.backend.pace.let(5)
        await world.until(lambda: world.text_of(chat))
        world.backend.pace.crash = RuntimeError("out of luck")
        world.backend.pace.free()
        await world.until(lambda: world.workspace.host.state is HostState.DEAD)
        await world.idle(chat)
        assert "out of luck" in str(world.workspace.host.error)
        assert chat.conversation.path()[-1].can_continue
        world.workspace.send(other, "while it is dead")
        await world.idle(other)
        world.backend.pace.crash = None
        await world.workspace.reload()
        await world.ready()
        assert world.backend.loads == 2
        world.workspace.continue_answer(chat)
        await world.idle(chat)
        world.workspace.send(chat, "two")
        await world.idle(chat)
        assert contents(chat)[-1] == ("assistant", "Hello. " * 40)

    run(scenario, ScriptedBackend("Hello. " * 40))


def test_a_model_that_cannot_be_loaded() -> None:
    backend = ScriptedBackend()
    backend.fail = ModelError("no such model")

    async def scenario(world: World) -> None:
        await world.until(lambda: world.workspace.host.state is HostState.FAILED)
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "hi")
        await world.idle(chat)
        assert world.heard(Returned) == [Returned(chat.id, "hi")]
        assert world.heard(Notice)[-1].text == "no such model"
        other = ScriptedBackend("Other.", name="other")
        await world.workspace.use_model(other)
        world.workspace.send(chat, "hi")
        await world.idle(chat)
        assert contents(chat) == [("user", "hi"), ("assistant", "Other.")]
        assert world.workspace.host.name == "other"

    run(scenario, backend)


def test_stop_while_the_model_loads() -> None:
    backend = ScriptedBackend()
    backend.loaded.clear()

    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "hi")
        await world.until(lambda: chat.state is ChatState.WAITING)
        assert world.workspace.stop(chat)
        await world.idle(chat)
        assert contents(chat) == [("user", "hi")]

    run(scenario, backend)


def test_closing_keeps_what_was_being_said(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    chats: list[str] = []

    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        chat = world.workspace.new_chat()
        chats.append(chat.id)
        world.workspace.send(chat, "hi")
        await world.until(lambda: chat.state is ChatState.WAITING)
        world.backend.pace.let(5)
        await world.until(lambda: world.text_of(chat))
        closing = asyncio.create_task(world.workspace.close())
        await asyncio.sleep(0)
        world.backend.pace.free()
        await closing

    run(scenario, ScriptedBackend("Hello. " * 40), path)
    with Store(path) as store:
        messages = store.load(chats[0]).path()
    assert messages[0].content == "hi"
    assert messages[1].content
    assert messages[1].can_continue


@pytest.mark.parametrize("change", ["branch", "switch", "set_system"])
def test_a_busy_chat_is_not_changed(change: str) -> None:
    async def scenario(world: World) -> None:
        await world.ready()
        world.backend.pace.hold()
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "hi")
        getattr(world.workspace, change)(chat, "x")
        assert "stop it first" in world.heard(Notice)[0].text
        assert chat.conversation.system is None

    run(scenario)


def test_moving_about() -> None:
    async def scenario(world: World) -> None:
        chat = world.workspace.new_chat()
        world.workspace.send(chat, "one")
        await world.idle(chat)
        first = chat.conversation.path()
        world.workspace.branch(chat, None)
        world.workspace.send(chat, "two")
        await world.idle(chat)
        assert contents(chat)[0] == ("user", "two")
        world.workspace.switch(chat, first[0].id)
        assert chat.conversation.path() == first
        world.workspace.set_system(chat, "Be brief.")
        assert chat.conversation.system == "Be brief."
        bare = await world.workspace.context_use(chat, "")
        assert bare
        assert await world.workspace.context_use(chat, "ab") == bare + 2
        world.workspace.switch(chat, "nothing")
        assert "no message" in world.heard(Notice)[0].text

    run(scenario)


def test_a_chat_of_the_store_is_opened_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ids: list[str] = []

    async def first(world: World) -> None:
        chat = world.workspace.new_chat()
        ids.append(chat.id)
        world.workspace.send(chat, "one")
        await world.idle(chat)

    async def second(world: World) -> None:
        chat = await world.workspace.open_chat(ids[0])
        assert await world.workspace.open_chat(ids[0]) is chat
        world.workspace.send(chat, "two")
        await world.idle(chat)
        assert contents(chat) == [("user", "one"), ("assistant", "Hello."), ("user", "two"), ("assistant", "Hello.")]

    run(first, path=path)
    run(second, path=path)
    with Store(path) as store:
        assert len(store.load(ids[0]).path()) == 4


def test_chats_are_listed_named_pinned_thrown_away_and_taken_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        shelf = world.workspace.shelf
        first, second = world.workspace.new_chat(), world.workspace.new_chat()
        for chat, text in ((first, "apples"), (second, "pears")):
            world.workspace.send(chat, text)
            await world.idle(chat)
        await shelf.refresh()
        assert [entry.title for entry in shelf.entries()] == ["pears", "apples"]
        shelf.rename(first.id, "Fruit  salad")
        assert shelf.pin(first.id)
        assert [(entry.title, entry.pinned) for entry in shelf.entries()] == [("Fruit salad", True), ("pears", False)]
        assert [entry.id for entry in shelf.entries("FRUIT sal")] == [first.id]
        shelf.throw_away(second.id)
        assert [entry.id for entry in shelf.entries()] == [first.id]
        await shelf.refresh()
        assert [entry.id for entry in shelf.entries()] == [first.id]
        assert shelf.take_back() == second.id
        assert shelf.take_back() is None
        assert await world.workspace.open_chat(second.id) is second
        assert [hit.session for hit in await shelf.search("apples")] == [first.id]
        assert not shelf.pin(first.id)

    run(scenario, path=tmp_path / "store.db")
    with Store(tmp_path / "store.db") as store:
        assert sorted(info.title for info in store.sessions()) == ["Fruit salad", "pears"]


def test_the_engine_is_seen_by_chats_in_numbers_that_add_up() -> None:  # C16
    async def scenario(world: World) -> None:
        assert await world.workspace.look() is None
        await world.ready()
        world.backend.pace.hold()
        chats = [world.workspace.new_chat(system="Be brief. " * 20) for _ in range(6)]
        world.workspace.look_at([chats[0].id])
        for number, chat in enumerate(chats):
            world.workspace.send(chat, f"{number} " * 60)
        states: set[str] = set()
        while any(chat.is_busy for chat in chats):
            world.backend.pace.let(1)
            view = await world.workspace.look()
            assert view is not None
            view.check()
            states |= {row.state.value for row in view.rows}
        view = await world.workspace.look()
        assert view is not None
        view.check()
        assert all(row.cached for row in view.rows)
        assert {"waiting", "reading", "writing", "idle"} <= states

    run(scenario, ScriptedBackend("Hello. " * 10, max_num_seqs=2, num_blocks=600))
