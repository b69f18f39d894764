"""What people are used to: keys that stop, copy and quit; windows of all sizes; failures that lose nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Footer

from chatpaged.chat import ChatState
from chatpaged.conversation import NodeState
from chatpaged.engine_host import HostState
from chatpaged.errors import MemoryBudgetError, ModelError
from chatpaged.setting_groups import AppSettings, KeySettings
from chatpaged.store import Store
from chatpaged.ui.screens.choose import ChooseScreen
from chatpaged.ui.screens.engine import EngineScreen
from chatpaged.ui.screens.engine_dead import EngineDeadScreen
from chatpaged.ui.screens.help import HelpScreen
from chatpaged.ui.widgets.engine_panel import EnginePanel
from chatpaged.ui.widgets.prompt_area import PromptArea
from chatpaged.ui.widgets.sidebar import Sidebar
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run

LONG = "word " * 100


async def streaming(world: AppWorld) -> None:
    chat = await world.send_held("go on")
    world.backend.pace.let(40)
    await world.until(lambda: chat.state is ChatState.GENERATING)


# --- Ctrl+C and the end ----------------------------------------------------------------------------------------------------


def test_ctrl_c_copies_what_is_selected() -> None:  # I11
    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG)) as world:
            await streaming(world)
            await world.type("some words")
            world.pane.prompt.query_one(PromptArea).select_all()
            await world.pilot.press("ctrl+c")
            await world.until(lambda: world.app.clipboard == "some words")
            assert world.chat.is_busy

    run(scenario())


def test_ctrl_c_stops_then_hints_then_quits() -> None:  # I11
    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG)) as world:
            await streaming(world)
            chat = world.chat
            await world.pilot.press("ctrl+c")
            world.backend.pace.free()
            await world.idle(chat)
            assert chat.conversation.path()[-1].state is NodeState.INTERRUPTED
            await world.type("not sent")
            await world.pilot.press("ctrl+c")
            assert any("Ctrl+C again quits" in notice for notice in world.notices)
            assert world.pane.prompt.full_text() == "not sent"
            assert not world.app._exit
            await world.pilot.press("ctrl+c")
            await world.until(lambda: world.app._exit)

    run(scenario())


def test_ctrl_c_quits_at_once_where_that_is_wanted() -> None:
    async def scenario() -> None:
        async with open_app(settings=AppSettings(ctrl_c="quit")) as world:
            await world.pilot.press("ctrl+c")
            await world.until(lambda: world.app._exit)

    run(scenario())


def test_quitting_keeps_what_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG), path=path) as world:
            await streaming(world)
            world.backend.pace.free()
            await world.pilot.press("ctrl+q")
            await world.until(lambda: world.app._exit)

    run(scenario())
    with Store(path) as store:
        question, answer = store.load(store.sessions()[0].id).path()
    assert question.content == "go on"
    assert LONG.startswith(answer.content.rstrip())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_request_to_end_is_followed(tmp_path: Path, number: int, status: int) -> None:  # I13
    path = tmp_path / "store.db"

    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG), path=path, signals={number: status}) as world:
            await streaming(world)
            world.backend.pace.free()
            os.kill(os.getpid(), number)
            await world.until(lambda: world.app._exit)
            assert world.app.return_code == status
            asyncio.get_running_loop().remove_signal_handler(number)

    run(scenario())
    with Store(path) as store:
        assert len(store.load(store.sessions()[0].id).path()) == 2


# --- the engine ------------------------------------------------------------------------------------------------------------


def test_engine_death_offers_a_reload_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG), path=tmp_path / "store.db") as world:
            await streaming(world)
            chat = world.chat
            world.backend.pace.crash = RuntimeError("cosmic rays")
            world.backend.pace.free()
            await world.until(lambda: isinstance(world.app.screen, EngineDeadScreen))
            await world.until(lambda: not chat.is_busy)
            kept = chat.conversation.path()[-1].content
            assert kept
            assert chat.conversation.path()[-1].can_continue
            world.backend.pace.crash = None
            await world.pilot.press("enter")
            await world.until(lambda: world.app.screen is world.main and world.workspace.host.state is HostState.READY)
            await world.command("/continue")
            await world.until(lambda: chat.conversation.path()[-1].state is NodeState.COMPLETE)
            await world.idle(chat)
            assert chat.conversation.path()[-1].content.startswith(kept)
            assert chat.conversation.path()[-1].content.endswith(LONG)

    run(scenario())


@pytest.mark.parametrize("error", [ModelError("no config.json in /x"), MemoryBudgetError("weights need 9 GiB"), RuntimeError("odd")])
def test_a_model_that_cannot_be_loaded_offers_another(error: Exception) -> None:
    backend = ScriptedBackend()
    backend.fail = error

    async def scenario() -> None:
        async with open_app(backend, ready=False) as world:
            await world.until(lambda: isinstance(world.app.screen, EngineDeadScreen))
            await world.pilot.press("right", "enter")
            await world.until(lambda: isinstance(world.app.screen, ChooseScreen))
            await world.pilot.press(*"better", "enter")
            await world.until(lambda: world.workspace.host.name == "better" and world.workspace.host.state is HostState.READY)
            await world.until(lambda: world.app.screen is world.main)
            await world.send("hi")
            assert world.contents() == ["hi", "I am better."]

    run(scenario())


def test_without_an_engine_one_can_still_read_and_nothing_typed_is_lost() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            world.backend.pace.crash = RuntimeError("gone")
            await world.send("again", wait=False)
            await world.until(lambda: isinstance(world.app.screen, EngineDeadScreen))
            await world.pilot.press("escape")
            await world.until(lambda: world.app.screen is world.main)
            await world.until(lambda: not world.chat.is_busy)
            await world.send("third", wait=False)
            await world.until(lambda: not world.chat.is_busy)
            assert world.contents()[:2] == ["hi", "Hello."]
            assert "third" in [*world.contents(), world.pane.prompt.full_text()]

    run(scenario())


# --- keys ------------------------------------------------------------------------------------------------------------------


def test_keys_are_those_of_the_settings() -> None:
    keys = replace(KeySettings(), new_chat="f9", help="f10", send="ctrl+j", newline="enter")

    async def scenario() -> None:
        async with open_app(keys=keys) as world:
            first = world.chat
            await world.type("one")
            await world.pilot.press("enter", "x", "ctrl+j")
            await world.until(lambda: not first.is_empty and not first.is_busy)
            assert world.contents()[0] == "one\nx"
            await world.pilot.press("ctrl+n")
            assert world.chat is first
            await world.pilot.press("f9")
            assert world.chat is not first
            await world.pilot.press("f10")
            await world.until(lambda: isinstance(world.app.screen, HelpScreen))

    run(scenario())


def test_every_key_of_the_settings_is_bound() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            bound = {active.binding.id for active in world.app.active_bindings.values()}
            bound |= {binding.id for binding, *_ in [(entry.binding,) for entry in world.app.screen.active_bindings.values()]}
            typed = {"send", "newline", "open_editor", "stop"}
            wanted = set(KeySettings.__dataclass_fields__) - typed
            assert wanted <= bound

    run(scenario())


def test_the_palette_offers_keys_and_commands() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            titles = {command.title for command in world.app.get_system_commands(world.main)}
            assert {"New", "Quit", "Find", "Branches", "Engine", "/export", "/alternatives", "/theme"} <= titles
            await world.pilot.press("ctrl+p", *"side by side", "enter")
            await world.until(lambda: len(world.main.panes) == 2)

    run(scenario())


def test_what_matters_most_is_on_the_screen() -> None:
    async def scenario() -> None:
        async with open_app(size=(60, 20)) as world:
            footer = world.main.query_one(Footer)
            shown = [str(key.render()) for key in footer.children]
            assert any("New" in text for text in shown[:3])
            assert any("Quit" in text for text in shown[:3])

    run(scenario())


# --- windows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 12), (20, 5), (300, 100)])
def test_windows_of_all_sizes(size: tuple[int, int]) -> None:  # I19
    async def scenario() -> None:
        async with open_app(size=size) as world:
            await world.send("hi")
            for key in ("ctrl+b", "f2", "f3", "f1", "ctrl+f", "ctrl+t", "ctrl+o", "f12", "f4"):
                await world.pilot.press(key)
                await world.pilot.pause()
                await world.pilot.press("escape")
                await world.until(lambda: world.app.screen is world.main)
            assert len(world.main.panes) == 2

    run(scenario())


def test_resizing_while_an_answer_is_written() -> None:  # I19
    async def scenario() -> None:
        async with open_app(ScriptedBackend("# Title\n\nSome *words* and `code`.\n\n```python\nx = 1\n```\n\n" * 8)) as world:
            chat = await world.send_held("go")
            sizes = [(20, 5), (300, 100), (40, 12), (120, 40), (80, 24)] * 10
            for width, height in sizes:
                world.backend.pace.let(8)
                await world.pilot.resize_terminal(width, height)
                await world.pilot.pause()
            world.backend.pace.free()
            await world.idle(chat)
            assert world.pane.messages.following

    run(scenario())


def test_the_panels_come_back_with_a_key() -> None:
    async def scenario() -> None:
        async with open_app(size=(60, 20)) as world:
            sidebar, engine = world.main.query_one(Sidebar), world.main.query_one(EnginePanel)
            assert not sidebar.display
            assert not engine.display
            await world.pilot.press("ctrl+b")
            await world.until(lambda: sidebar.display and sidebar.options.has_focus)
            await world.pilot.press("escape")
            await world.until(lambda: not sidebar.display and world.pane.prompt.has_focus_within)
            await world.pilot.press("f2")
            await world.until(lambda: engine.display)
            await world.pilot.press("f2")
            await world.until(lambda: not engine.display)
            await world.pilot.resize_terminal(140, 40)
            await world.until(lambda: sidebar.display and engine.display)
            await world.pilot.press("ctrl+b")
            await world.until(lambda: sidebar.options.has_focus)
            await world.pilot.press("ctrl+b", "f2")
            await world.until(lambda: not sidebar.display and not engine.display and world.pane.prompt.has_focus_within)

    run(scenario())


def test_the_engine_on_the_whole_screen_opens_chats() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            first = await world.send("one")
            await world.pilot.press("ctrl+n")
            await world.send("two")
            await world.pilot.press("f3")
            await world.until(lambda: isinstance(world.app.screen, EngineScreen))
            await world.until(lambda: world.app.screen.query_one(EnginePanel)._view is not None)
            await world.pilot.press("home", "enter")
            await world.until(lambda: world.app.screen is world.main)
            await world.until(lambda: world.chat.id in {first.id, *world.workspace.chats})

    run(scenario())


# --- colours ---------------------------------------------------------------------------------------------------------------


def test_a_theme_that_there_is_not_is_told() -> None:
    async def scenario() -> None:
        async with open_app(settings=AppSettings(theme="nothing")) as world:
            assert any("no theme 'nothing'" in notice for notice in world.notices)
            assert world.app.theme == "textual-dark"

    run(scenario())


def test_no_colours_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            colours: set[Any] = set()
            for strip in world.app.screen._compositor.render_strips():
                for segment in strip.apply_filter(world.app._filters[0], world.app.screen.background_colors[0]):
                    if segment.style and segment.style.color and segment.style.color.triplet:
                        red, green, blue = segment.style.color.triplet
                        colours.add(red == green == blue)
            assert colours <= {True}

    run(scenario())
