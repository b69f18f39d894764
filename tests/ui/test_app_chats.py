"""Chats in the application: begun, listed, left and found again, several at once."""

from __future__ import annotations

from pathlib import Path

from textual.widgets import Input

from chatpaged.chat import ChatState
from chatpaged.store import Store
from chatpaged.ui.widgets.sidebar import Sidebar
from chatpaged.ui.widgets.welcome import Welcome
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run


def titles(world: AppWorld) -> list[str]:
    sidebar = world.main.query_one(Sidebar)
    return [sidebar._entries[chat_id].title for chat_id in sidebar.order]


def test_a_question_is_typed_and_answered() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            assert world.main.query_one(Welcome).display
            await world.pilot.press(*"Hi there", "enter")
            chat = world.chat
            await world.until(lambda: not chat.is_busy and not chat.is_empty)
            await world.shown(chat)
            assert world.contents() == ["Hi there", "Hello."]
            assert [view.text for view in world.pane.messages.mounted] == ["Hi there", "Hello."]
            assert not world.main.query_one(Welcome).display
            assert world.pane.prompt.full_text() == ""
            assert world.pane.prompt.has_focus_within
            await world.until(lambda: titles(world) == ["Hi there"])

    run(scenario())


def test_chats_go_on_unseen_and_are_marked() -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend("Hello. " * 30)) as world:
            first = await world.send_held("first")
            await world.pilot.press("ctrl+n")
            second = await world.send("second", wait=False)
            await world.until(lambda: second.state is ChatState.WAITING)
            assert second is not first
            world.backend.pace.let(60)
            await world.until(lambda: first.state is second.state is ChatState.GENERATING)
            sidebar = world.main.query_one(Sidebar)
            await world.until(lambda: {entry.state for entry in sidebar._entries.values()} == {ChatState.GENERATING})
            world.backend.pace.free()
            await world.idle(first)
            await world.idle(second)
            assert (first.unread, second.unread) == (True, False)
            await world.until(lambda: sidebar._entries[first.id].unread)
            await world.main.open_chat(first.id)
            await world.shown(first)
            assert not first.unread
            assert world.pane.messages.mounted[-1].text == "Hello. " * 30

    run(scenario())


def test_a_chat_that_is_being_written_can_be_left_and_looked_at_again() -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend("word " * 100)) as world:
            chat = await world.send_held("go")
            world.backend.pace.let(60)
            await world.until(lambda: chat.state is ChatState.GENERATING)
            await world.pilot.press("ctrl+n")
            world.backend.pace.let(100)
            await world.until(lambda: (node := chat.reply.current(0) if chat.reply else None) is not None and len(node.content) > 80)
            await world.main.open_chat(chat.id)
            await world.shown(chat)
            await world.until(lambda: len(world.pane.messages.mounted[-1].text) > 80)
            world.backend.pace.free()
            await world.idle(chat)
            await world.until(lambda: world.pane.messages.mounted[-1].text == "word " * 100)

    run(scenario())


def test_next_and_previous_chat() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            chats = []
            for text in ("one", "two", "three"):
                chats.append(await world.send(text))
                await world.pilot.press("ctrl+n")
            await world.until(lambda: len(titles(world)) == 4)
            await world.pilot.press("alt+down")
            await world.until(lambda: world.chat is chats[2])
            await world.pilot.press("alt+down")
            await world.until(lambda: world.chat is chats[1])
            await world.pilot.press("ctrl+pageup")
            await world.until(lambda: world.chat is chats[2])

    run(scenario())


def test_what_is_typed_stays_with_its_chat(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ids: list[str] = []

    async def scenario() -> None:
        async with open_app(path=path) as world:
            first = await world.send("one")
            ids.append(first.id)
            await world.type("not sent yet")
            await world.pilot.press("ctrl+n")
            assert world.pane.prompt.full_text() == ""
            await world.type("something else")
            await world.main.open_chat(first.id)
            assert world.pane.prompt.full_text() == "not sent yet"
            await world.type("still not sent")

    async def again() -> None:
        async with open_app(path=path) as world:
            await world.main.open_chat(ids[0])
            assert world.pane.prompt.full_text() == "still not sent"

    run(scenario())
    run(again())


def test_rename_pin_delete_and_undo(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        async with open_app(path=path) as world:
            first = await world.send("apples")
            await world.pilot.press("ctrl+n")
            second = await world.send("pears")
            await world.until(lambda: titles(world) == ["pears", "apples"])
            sidebar = world.main.query_one(Sidebar)
            sidebar.look_at(first.id)
            sidebar.options.focus()
            await world.pilot.press("p")
            await world.until(lambda: titles(world) == ["apples", "pears"])
            await world.pilot.press("r")
            await world.until(lambda: world.app.screen is not world.main)
            await world.pilot.press("ctrl+u", *"Fruit", "enter")
            await world.until(lambda: titles(world) == ["Fruit", "pears"])
            sidebar.look_at(second.id)
            sidebar.options.focus()
            await world.pilot.press("d")
            await world.until(lambda: titles(world)[:1] == ["Fruit"] and "pears" not in titles(world))
            assert any("brings it back" in notice for notice in world.notices)
            assert world.chat is not second
            await world.pilot.press("u")
            await world.until(lambda: "pears" in titles(world))
            await world.until(lambda: world.chat is second)
            sidebar.look_at(second.id)
            sidebar.options.focus()
            await world.pilot.press("delete")
            await world.until(lambda: "pears" not in titles(world))

    run(scenario())
    with Store(path) as store:
        assert [(info.title, info.pinned) for info in store.sessions()] == [("Fruit", True)]


def test_a_long_title_takes_one_line_also_beside_a_scrollbar() -> None:
    async def scenario() -> None:
        async with open_app(size=(140, 16)) as world:
            for number in range(8):
                await world.pilot.press("ctrl+n")
                await world.send(f"{number}. Tell me about the islands of Greece in a few sentences please.")
            options = world.main.query_one(Sidebar).options
            await world.until(lambda: options.option_count == 8 and options.show_vertical_scrollbar)
            assert options.virtual_size.height == 16

    run(scenario())


def test_titles_are_filtered_and_enter_opens_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_app(path=tmp_path / "store.db") as world:
            for text in ("red apples", "green pears", "red pears"):
                await world.send(text)
                await world.pilot.press("ctrl+n")
            sidebar = world.main.query_one(Sidebar)
            sidebar.focus_filter()
            await world.pilot.press(*"PEARS gr")
            await world.until(lambda: titles(world) == ["green pears"])
            await world.pilot.press("enter")
            await world.until(lambda: world.chat.title == "green pears")
            sidebar.query_one(Input).value = ""
            await world.until(lambda: len(titles(world)) == 3)

    run(scenario())


def test_the_last_chat_is_offered_complete(tmp_path: Path) -> None:  # J1
    path = tmp_path / "store.db"

    async def before() -> None:
        async with open_app(path=path) as world:
            await world.send("remember me")

    async def after() -> None:
        async with open_app(path=path) as world:
            welcome = world.main.query_one(Welcome)
            await world.until(lambda: welcome.query_one("#recent").display)
            welcome.query_one("#recent").focus()
            await world.pilot.press("enter")
            await world.until(lambda: world.chat.title == "remember me")
            await world.shown(world.chat)
            assert world.contents() == ["remember me", "Hello."]
            assert len(world.main.panes) == 1

    run(before())
    run(after())


def test_begin_with_a_chat_by_its_id(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def before() -> None:
        async with open_app(path=path) as world:
            await world.send("remember me")

    async def after() -> None:
        with Store(path) as store:
            [info] = store.sessions()
        async with open_app(path=path, session=info.id) as world:
            await world.until(lambda: world.chat.id == info.id)
            await world.shown(world.chat)
            assert world.contents() == ["remember me", "Hello."]

    run(before())
    run(after())


def test_two_chats_side_by_side() -> None:
    async def scenario() -> None:
        async with open_app(size=(160, 40)) as world:
            first = await world.send("left")
            await world.pilot.press("f4")
            await world.until(lambda: len(world.main.panes) == 2)
            second = await world.send("right")
            assert [pane.chat for pane in world.main.panes] == [first, second]
            assert world.workspace.in_view == (second.id, first.id)
            await world.pilot.press("f6")
            await world.pilot.press("f6")
            assert world.chat is first
            await world.pilot.click(world.main.panes[1].prompt)
            await world.until(lambda: world.chat is second)
            await world.pilot.press("f4")
            await world.until(lambda: len(world.main.panes) == 1)
            assert world.chat is first
            assert second.id in world.workspace.chats

    run(scenario())


def test_a_new_chat_that_stays_empty_is_forgotten() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            first = await world.send("one")
            await world.pilot.press("ctrl+n")
            empty = world.chat
            await world.pilot.press("ctrl+n")
            assert world.chat is empty
            await world.main.open_chat(first.id)
            assert empty.id not in world.workspace.chats

    run(scenario())


def test_the_window_is_there_while_the_model_loads() -> None:
    async def scenario() -> None:
        backend = ScriptedBackend()
        backend.loaded.clear()
        async with open_app(backend, ready=False) as world:
            await world.until(lambda: "loading" in world.text_of("#model-name"))
            chat = await world.send("early bird", wait=False)
            await world.until(lambda: "waits for the model" in world.text_of("#activity"))
            backend.loaded.set()
            await world.idle(chat)
            assert world.contents() == ["early bird", "Hello."]

    run(scenario())


def test_a_chat_that_is_typed_in_can_be_come_back_to() -> None:
    async def scenario() -> None:
        async with open_app(size=(160, 40)) as world:
            await world.send("hi")
            await world.pilot.press("f4")
            await world.until(lambda: len(world.main.panes) == 2)
            typed = world.chat
            await world.type("half a thought")
            await world.pilot.press("f4")
            await world.until(lambda: len(world.main.panes) == 1)
            await world.until(lambda: typed.id in world.main.query_one(Sidebar)._entries)
            await world.main.open_chat(typed.id)
            await world.until(lambda: world.pane.prompt.full_text() == "half a thought")

    run(scenario())
