"""The cheat sheet, the log, and what is said when the engine has stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from textual.widgets import Button, Static

from chatpaged.ui.screens.dialog import Frame
from chatpaged.ui.screens.engine_dead import EngineDeadScreen
from chatpaged.ui.screens.help import HelpCard, HelpScreen
from chatpaged.ui.screens.log import LogScreen
from tests.ui.conftest import Snapshot
from tests.ui.hosts import UNANSWERED, ScreenHost, shown_screen
from tests.ui.snapshots import until

COMMANDS = (
    ("/new [PRESET]", "Begin a chat, with the settings of a preset."),
    ("/system [TEXT]", "Set the system prompt of this chat, or show it."),
    ("/alternatives [N] [TEXT]", "Get several answers side by side."),
    ("/quit", "Quit; everything is saved."),
)


class Lines:
    """A log that others write to."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def write(self, *lines: str) -> None:
        self.lines += lines
        for listener in self.listeners:
            listener()


def cards(app: ScreenHost) -> list[HelpCard]:
    return list(app.screen.query(HelpCard))


@pytest.mark.parametrize(("size", "name"), [((120, 50), "help"), ((40, 12), "help-40x12")])
def test_keys_and_commands_are_told(snapshot: Snapshot, size: tuple[int, int], name: str) -> None:
    async def main() -> None:
        async with shown_screen(lambda: HelpScreen({"new_chat": "f9"}, COMMANDS), size) as (app, pilot):
            await until(pilot, lambda: cards(app) and all(card.size.height for card in cards(app)))
            told = "\n".join(str(card.content) for card in cards(app))
            assert "F9" in told
            assert "Ctrl+N" not in told
            assert "/alternatives" in told
            await pilot.press("down", "up")
            snapshot(app, name)
            await pilot.press("escape")
            await until(pilot, lambda: app.result is None)
            assert app.focused is app.query_one("#behind")

    asyncio.run(main())


def test_help_is_filtered_and_scrolled() -> None:
    async def main() -> None:
        async with shown_screen(lambda: HelpScreen({}, COMMANDS), (60, 16)) as (app, pilot):
            sheet = app.screen.query_one("#sheet")
            await until(pilot, lambda: sheet.max_scroll_y > 10)
            await pilot.press("pagedown")
            await until(pilot, lambda: sheet.scroll_y > 0)
            await pilot.press(*"quit")
            await until(pilot, lambda: len(cards(app)) == 2)
            assert {str(card.border_title) for card in cards(app)} == {"Everywhere", "Typed into the prompt"}
            await pilot.press(*"xyz")
            await until(pilot, lambda: not cards(app))
            assert app.screen.query_one("#no-key").display
            await pilot.press("ctrl+u")
            await until(pilot, lambda: len(cards(app)) > 5)

    asyncio.run(main())


def log(app: ScreenHost) -> LogScreen:
    screen = app.screen
    assert isinstance(screen, LogScreen)
    return screen


def status(app: ScreenHost) -> str:
    return str(app.screen.query_one("#log-status", Static).content)


def test_the_log_is_followed_filtered_and_copied(snapshot: Snapshot) -> None:
    async def main() -> None:
        lines = Lines(*(f"{number:02} transformers: [red]generation flags[/red] are not valid" for number in range(40)))
        async with shown_screen(lambda: LogScreen(lines), (80, 20)) as (app, pilot):
            view = log(app)._log
            await until(pilot, lambda: view.max_scroll_y > 0 and view.scroll_y == view.max_scroll_y)
            snapshot(app, "log")
            threading.Thread(target=lines.write, args=("torch: \x1b[31mred\x1b[0m warning", "done")).start()
            await until(pilot, lambda: log(app).listed[-2:] == ("torch: ␛[31mred␛[0m warning", "done"))
            await until(pilot, lambda: view.scroll_y == view.max_scroll_y)
            await pilot.press(*"TORCH")
            await until(pilot, lambda: status(app) == "1 of 42 lines")
            await pilot.press("ctrl+y")
            assert app.clipboard == "torch: ␛[31mred␛[0m warning"
            lines.write("more of torch", "something else")
            await until(pilot, lambda: status(app) == "2 of 44 lines")
            await pilot.press("ctrl+u")
            await until(pilot, lambda: status(app) == "44 lines")
            await pilot.press("pageup")
            await until(pilot, lambda: view.scroll_y < view.max_scroll_y)
            await pilot.press("escape")
            await until(pilot, lambda: app.result is None)
            assert not lines.listeners

    asyncio.run(main())


def test_lines_that_are_dropped_or_changed_are_written_anew() -> None:
    async def main() -> None:
        lines = Lines("one", "two", " 10 %")
        async with shown_screen(lambda: LogScreen(lines), (40, 12)) as (app, pilot):
            await until(pilot, lambda: log(app).listed == ("one", "two", " 10 %"))
            lines.lines[-1] = " 50 %"
            lines.write()
            await until(pilot, lambda: log(app).listed == ("one", "two", " 50 %"))
            del lines.lines[0]
            lines.write("three")
            await until(pilot, lambda: log(app).listed == ("two", " 50 %", "three"))

    asyncio.run(main())


def test_an_empty_log_says_so() -> None:
    async def main() -> None:
        async with shown_screen(lambda: LogScreen(Lines())) as (app, pilot):
            await until(pilot, lambda: status(app) == "Nothing has been printed.")

    asyncio.run(main())


REASON = "RuntimeError: not enough memory: you tried to allocate 1073741824 bytes"


@pytest.mark.parametrize(("size", "name"), [((80, 20), "engine-dead"), ((40, 12), "engine-dead-40x12")])
def test_a_dead_engine_can_be_loaded_again(snapshot: Snapshot, size: tuple[int, int], name: str) -> None:
    async def main() -> None:
        async with shown_screen(lambda: EngineDeadScreen(REASON, kept=3), size) as (app, pilot):
            assert (
                str(app.screen.query_one("#reassurance", Static).content) == "Nothing is lost: 3 answers were kept as far as they had come."
            )
            assert all(button.region.bottom < size[1] for button in app.screen.query(Button))
            snapshot(app, name)
            await pilot.press("enter")
            await until(pilot, lambda: app.result == "reload")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "result"),
    [(["escape"], "stay"), (["right", "enter"], "model"), (["l", "m", "enter"], "reload"), (["tab", "tab", "enter"], "stay")],
)
def test_every_way_out_has_keys(keys: list[str], result: str) -> None:
    async def main() -> None:
        async with shown_screen(lambda: EngineDeadScreen(REASON)) as (app, pilot):
            await pilot.press(*keys)
            await until(pilot, lambda: app.result == result)

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_is_not_tried_again_in_vain() -> None:
    async def main() -> None:
        def make() -> EngineDeadScreen:
            return EngineDeadScreen("no model [b]smoll[/b] here", can_reload=False, was_loaded=False)

        async with shown_screen(make) as (app, pilot):
            assert str(app.screen.query_one(Frame).border_title) == "The model could not be loaded"
            assert [button.id for button in app.screen.query(Button)] == ["model", "stay"]
            await pilot.press("l")
            assert app.result is UNANSWERED
            await pilot.click("#model")
            await until(pilot, lambda: app.result == "model")

    asyncio.run(main())


def test_hints_are_buttons_for_the_mouse_and_so_is_the_background() -> None:
    async def main() -> None:
        async with shown_screen(lambda: EngineDeadScreen(REASON, kept=1)) as (app, pilot):
            frame = app.screen.query_one(Frame).region
            row = frame.bottom - 1
            places = [x for x in range(frame.x, frame.right) if app.screen.get_style_at(x, row).meta.get("@click") == "screen.close"]
            await pilot.click(offset=(places[0], row))
            await until(pilot, lambda: app.result == "stay")
            app.open(EngineDeadScreen(REASON))
            await pilot.pause()
            await pilot.click(offset=(0, 0))
            await until(pilot, lambda: app.result == "stay")

    asyncio.run(main())
