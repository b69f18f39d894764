"""What happens when much happens at once."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.events import Key

from chatpaged.attachments import Expansion, attach_files
from chatpaged.chat import ChatState
from chatpaged.engine_view import EngineView
from chatpaged.prompt_draft import PromptDraft
from chatpaged.ui.screens.engine import EngineScreen
from chatpaged.ui.screens.help import HelpScreen
from chatpaged.ui.widgets.engine_panel import EnginePanel
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run
from tests.ui.patient_pilot import SECONDS

LONG = "Some *words* and `code` in a line.\n\n" * 40


async def three_streams(world: AppWorld) -> list[str]:
    world.backend.pace.hold()
    ids = []
    for number in range(3):
        chat = await world.send(f"question {number}", wait=False)
        await world.until(lambda chat=chat: chat.state is ChatState.WAITING)  # type: ignore[misc]
        ids.append(chat.id)
        await world.pilot.press("ctrl+n")
    return ids


@pytest.mark.parametrize("seed", range(4))
def test_chats_are_switched_while_they_are_being_shown(seed: int) -> None:
    draw = random.Random(seed)

    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG)) as world:
            ids = await three_streams(world)
            for _ in range(60):
                world.backend.pace.let(draw.randrange(6))
                await world.main.open_chat(draw.choice(ids))
                if draw.random() < 0.3:
                    await world.pilot.pause()
            world.backend.pace.free()
            for chat_id in ids:
                await world.main.open_chat(chat_id)
                await world.idle(world.chat)
                await world.until(lambda: world.pane.messages.mounted[-1].text == LONG)

    run(scenario())


def test_panes_come_and_go_while_answers_are_written() -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend(LONG), size=(180, 40)) as world:
            ids = await three_streams(world)
            for round_ in range(12):
                world.backend.pace.let(4)
                await world.main.open_chat(ids[round_ % 3], beside=True)
                await world.pilot.press("f4")
            world.backend.pace.free()
            for chat_id in ids:
                await world.idle(world.workspace.chats[chat_id])

    run(scenario())


def test_the_palette_and_the_keys_over_each_other() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            for keys in (("ctrl+p", "f1", "ctrl+p"), ("f1", "ctrl+p", "f1"), ("ctrl+p", "ctrl+p"), ("f1", "f1")):
                await world.pilot.press(*keys)
                await world.pilot.pause()
                assert sum(isinstance(screen, CommandPalette) for screen in world.app.screen_stack) <= 1
                assert sum(isinstance(screen, HelpScreen) for screen in world.app.screen_stack) <= 1
                for _ in range(4):
                    await world.pilot.press("escape")
                await world.until(lambda: world.app.screen is world.main)

    run(scenario())


def test_what_is_sent_goes_to_its_chat_also_when_another_one_is_in_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("buy milk", encoding="utf-8")
    may_read = threading.Event()
    read = attach_files

    def slowly(draft: PromptDraft, directory: Path) -> Expansion:
        may_read.wait(SECONDS)
        return read(draft, directory)

    monkeypatch.setattr("chatpaged.ui.widgets.prompt.attach_files", slowly)

    async def scenario() -> None:
        async with open_app(directory=tmp_path) as world:
            first = await world.send("one")
            await world.type("look at @notes.txt")
            await world.pilot.press("enter", "ctrl+n")
            second = world.chat
            may_read.set()
            await world.until(lambda: len(first.conversation.nodes) == 4)
            assert "buy milk" in world.contents(first)[2]
            assert second.is_empty

    run(scenario())


def test_keys_of_one_burst_are_taken_in_the_order_they_were_pressed() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            first = await world.send("one")
            keys = [*"before", "ctrl+n", *"after"]
            for key in keys:  # as a slow connection brings them: all at once
                world.app.post_message(Key(key, key if len(key) == 1 else None))
            await world.until(lambda: world.chat is not first and world.pane.prompt.full_text() == "after")
            assert first.prompt.text == "before"

    run(scenario())


def test_the_engine_screen_shows_what_came_while_it_was_opened() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            await world.until(lambda: world.main.view is not None and world.main.view.snapshot.counters["decode_tokens"] > 0)
            view = world.main.view
            assert view is not None
            world.app.show_engine_screen(None)
            world.app.show_engine(view)  # before there is any room for it
            await world.until(lambda: isinstance(world.app.screen, EngineScreen) and bool(world.app.screen.query(EnginePanel)))
            panel = world.app.screen.query_one(EnginePanel)
            await world.until(lambda: not panel.has_class("-loading"))
            figures = panel.query_one("#engine-figures")
            await world.until(lambda: "Tokens written" in "".join(figures.render_line(y).text for y in range(figures.size.height)))

    run(scenario())


def test_what_an_engine_does_that_nobody_uses_is_seen() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            await world.until(lambda: world.main.view is not None and not world.main._view_is_old and not world.main._is_looking)
            look = world.workspace.look

            async def later() -> EngineView | None:
                view = await look()
                if view is None:
                    return None
                counters = view.snapshot.counters | {"disk_writes": 7}
                return replace(view, snapshot=replace(view.snapshot, counters=counters))

            world.workspace.look = later  # type: ignore[method-assign]
            tiers = world.main.query_one("#engine-tiers")
            await world.until(lambda: "Written to disk" in "".join(tiers.render_line(y).text for y in range(tiers.size.height)))

    run(scenario())
