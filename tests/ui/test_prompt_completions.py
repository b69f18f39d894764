"""The list of what may be chosen while typing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from chatpaged.errors import ModelError
from chatpaged.prompt_completion import NoChoices
from chatpaged.prompt_draft import PromptDraft
from tests.ui.conftest import Snapshot
from tests.ui.patient_pilot import SECONDS
from tests.ui.prompt_app import PromptApp, in_app, typed, write
from tests.ui.snapshots import until


class Names(NoChoices):
    def presets(self) -> Sequence[tuple[str, str]]:
        return [("coder", "cold and exact"), ("writer", "warm")]

    def models(self) -> Sequence[tuple[str, str]]:
        raise ModelError("no disk")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("notes.txt", "node.py", "with space.txt"):
        (tmp_path / name).touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "deep.txt").write_text("deep")
    return tmp_path


def shown(app: PromptApp) -> list[str]:
    return [candidate.text for candidate in app.completions._candidates] if app.completions.is_open else []


@pytest.mark.parametrize("key", ["tab", "enter"])
def test_commands_are_completed(key: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/sy")
        await until(pilot, lambda: shown(app) == ["/system "])
        await pilot.press(key)
        assert typed(app) == "/system "
        assert app.sent == []
        await pilot.press(*"be brief", "enter")
        await until(pilot, lambda: app.sent)
        assert app.texts() == ["be brief"]

    in_app(test)


def test_a_command_that_is_whole_is_sent_at_once() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        for text in ("/tree", "/new", "/temp 1", "/q", "/new coder"):
            app.sent.clear()
            await write(app, pilot, text)
            await pilot.pause()
            await pilot.press("enter")
            await until(pilot, lambda: app.sent, text)
            assert typed(app) == ""

    in_app(test, choices=Names())


def test_arguments_are_completed() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/preset w")
        await until(pilot, lambda: shown(app) == ["writer"])
        await pilot.press("enter")
        assert typed(app) == "/preset writer"
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        command = app.sent[0].command
        assert command is not None
        assert (command.name, app.texts()) == ("preset", ["writer"])

    in_app(test, choices=Names())


def test_an_argument_that_may_be_left_out_is_not_forced_on() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/new ")
        await until(pilot, lambda: shown(app) == ["coder", "writer"])
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert app.texts() == [""]
        await write(app, pilot, "/new ")
        await until(pilot, lambda: shown(app) == ["coder", "writer"])
        await pilot.press("down", "down", "enter")
        assert typed(app) == "/new writer"

    in_app(test, choices=Names())


def test_files_are_completed(directory: Path) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "see @no")
        await until(pilot, lambda: shown(app) == ["@notes/", "@node.py", "@notes.txt"])
        await pilot.press("tab")
        assert typed(app) == "see @notes/"
        await until(pilot, lambda: shown(app) == ["@notes/deep.txt"])
        await pilot.press("enter")
        assert typed(app) == "see @notes/deep.txt "
        await until(pilot, lambda: not shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert app.texts() == ["deep\n\nsee notes/deep.txt "]

    in_app(test, directory=directory)


def test_a_name_with_spaces_is_quoted_and_typing_goes_on_in_the_middle(directory: Path) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft.of("see  please"))
        await pilot.press("home", *["right"] * 4, "@", "w")
        await until(pilot, lambda: shown(app) == ['@"with space.txt"'])
        await pilot.press("tab")
        assert typed(app) == 'see @"with space.txt" please'

    in_app(test, directory=directory)


def test_escape_closes_the_list_and_nothing_else() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.bind("escape", "see('escape')")
        await write(app, pilot, "/t")
        await until(pilot, lambda: shown(app))
        await pilot.press("escape")
        assert shown(app) == []
        assert app.seen == []
        await pilot.press("r")
        await pilot.pause()
        assert shown(app) == []  # not again for the same word
        await pilot.press("enter")
        await until(pilot, lambda: app.notices)
        assert typed(app) == "/tr"
        await pilot.press("escape")
        assert app.seen == ["escape"]
        await pilot.press("ctrl+u", "/")
        await until(pilot, lambda: shown(app))

    in_app(test)


def test_up_and_down_move_the_mark() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.history.add(PromptDraft.of("sent"))
        await write(app, pilot, "/t")
        await until(pilot, lambda: shown(app))
        first = shown(app)
        await pilot.press("down")
        assert app.completions.highlighted == 1
        await pilot.press("up", "up")
        assert app.completions.highlighted == len(first) - 1
        assert typed(app) == "/t"
        await pilot.press("tab")
        assert typed(app) == first[-1]

    in_app(test)


def test_a_click_accepts() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/t")
        await until(pilot, lambda: shown(app))
        await pilot.pause()
        wanted = shown(app)[1]
        await pilot.click(app.completions, offset=(5, 2))
        await until(pilot, lambda: typed(app) == wanted)
        await pilot.press("x")
        assert typed(app) == wanted + "x"

    in_app(test)


def test_it_lies_above_the_prompt_also_in_a_low_terminal() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/")
        await until(pilot, lambda: shown(app) and app.completions.size.height)
        await pilot.pause()
        assert app.completions.region.bottom == app.prompt.region.y
        assert app.completions.region.y >= 0
        await pilot.resize_terminal(40, 12)
        await pilot.press("backspace", "/")
        await until(pilot, lambda: shown(app))
        await pilot.pause()
        assert app.completions.region.bottom <= app.prompt.region.y
        assert app.completions.region.y >= 0
        assert app.completions.region.right <= 40
        rows = [app.completions.render_line(y).text for y in range(app.completions.size.height)]
        assert "/system        Set the system" in rows[1]

    in_app(test)


def test_names_that_cannot_be_found_are_no_reason_to_fail() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/model x")
        await pilot.pause()
        await until(pilot, lambda: not app.workers._workers or all(worker.is_finished for worker in app.workers))
        assert shown(app) == []
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)

    in_app(test, choices=Names())


def test_a_slow_list_does_not_hold_up_typing() -> None:
    release = threading.Event()

    class Slow(NoChoices):
        def presets(self) -> Sequence[tuple[str, str]]:
            release.wait(SECONDS)
            return [("coder", ""), ("cook", "")]

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/new coo")
        assert typed(app) == "/new coo"
        assert shown(app) == []
        release.set()
        await until(pilot, lambda: shown(app) == ["cook"])

    in_app(test, choices=Slow())


def test_picture(snapshot: Snapshot) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "/t")
        await pilot.press("backspace")
        await until(pilot, lambda: len(shown(app)) > 5)
        await pilot.press("down", "down")
        await pilot.pause()
        snapshot(app, "prompt_completion")

    in_app(test, size=(90, 20))
