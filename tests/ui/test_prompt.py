"""The prompt: keys, sending, commands and files."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import TextArea

from chatpaged.prompt_draft import Pasted, PromptDraft
from chatpaged.setting_groups import KeySettings
from tests.ui.patient_pilot import SECONDS
from tests.ui.prompt_app import PromptApp, burst, in_app, typed, write
from tests.ui.snapshots import until

# --- keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["shift+enter", "alt+enter", "ctrl+j"])
def test_enter_sends_and_other_keys_begin_a_line(newline: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", newline, "b")
        assert typed(app) == "a\nb"
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert app.texts() == ["a\nb"]
        assert app.sent[0].command is None
        assert typed(app) == ""

    in_app(test)


def test_the_keys_can_be_swapped() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", "enter", "b")
        assert typed(app) == "a\nb"
        await pilot.press("ctrl+j")
        await until(pilot, lambda: app.sent)
        assert app.texts() == ["a\nb"]

    in_app(test, keys=KeySettings(send="ctrl+j", newline="enter"))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["a", "b", "c", "backspace", "d", "e", "backspace", "f", "g", "left", "h"], "abdfhg"),
        (["a", "b", "c", "backspace", "x"], "abx"),
        (["a", "b", "home", "x", "end", "y", "left", "delete", "z"], "xabz"),
        (["a", "b", "ctrl+u", "c"], "c"),
        (["a", "ctrl+j", "b", "up", "x", "down", "y"], "ax\nby"),
        (["a", "b", "shift+left", "ctrl+x", "c", "ctrl+v"], "acb"),
        (["a", "b", "c", "backspace", "ctrl+z", "d"], "abcd"),
        (["s", "e", "n", "t", "enter", "n", "e", "w", "up", "!"], "sent!"),
        ([*"/model", *(["backspace"] * 6), "b", "c", "escape", "d"], "bcd"),
    ],
)
def test_keys_that_arrive_together_keep_their_order(keys: list[str], text: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        burst(app, *keys)
        await pilot.pause()
        await until(pilot, lambda: typed(app) == text)

    in_app(test)


@pytest.mark.parametrize(
    ("shown", "keys", "text"),
    [
        ("", ["a", "b", "c", "backspace", "enter", "d", "backspace", "e", "enter"], "ab|e"),
        ("/mo", ["backspace", "backspace", "backspace", "h", "i", "enter"], "hi"),  # the list of commands was open
        ("/mo", ["left", "left", "left", "h", "i", "end", "enter"], "hi/mo"),
    ],
)
def test_what_is_sent_in_one_go_is_what_was_typed(shown: str, keys: list[str], text: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        if shown:
            await write(app, pilot, shown)
            await until(pilot, lambda: app.completions.is_open)
        burst(app, *keys)
        await until(pilot, lambda: app.sent and typed(app) == "")
        await until(pilot, lambda: "|".join(app.texts()) == text)

    in_app(test)


@pytest.mark.parametrize("text", ["", "   ", "\n\n", " \n\t"])  # A11
def test_nothing_is_not_sent(text: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft.of(text))
        await pilot.press("enter")
        await pilot.pause()
        assert app.sent == []
        assert typed(app) == text

    in_app(test)


def test_text_is_sent_as_it_is() -> None:  # A7
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft.of("  two  spaces [red]x[/] "))
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert app.texts() == ["  two  spaces [red]x[/] "]

    in_app(test)


# --- commands --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sent", "name"),
    [
        ("q", "q", None),
        ("exit", "exit", None),
        ("//usr/bin/env", "/usr/bin/env", None),
        ("/temp 0.5", "0.5", "temp"),
        ("/system be\nbrief", "be\nbrief", "system"),
        ("/quit", "", "quit"),
    ],
)
def test_commands_and_text(text: str, sent: str, name: str | None) -> None:  # I10
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft.of(text))
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        command = app.sent[0].command
        assert app.texts() == [sent]
        assert (command.name if command is not None else None) == name

    in_app(test)


@pytest.mark.parametrize("text", ["/usr/bin/env what is this", "/nosuch"])  # I10
def test_what_is_no_command_is_a_notice_and_stays(text: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, text)
        await pilot.press("enter")
        await until(pilot, lambda: app.notices)
        assert text.split(maxsplit=1)[0] in app.notices[0]
        assert "// sends it as text" in app.notices[0]
        assert typed(app) == text
        assert app.sent == []

    in_app(test)


# --- files ---------------------------------------------------------------------------------------------------------------


def test_files_are_read_and_sent(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes\n")

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft.of("sum up @notes.txt"), chat="one")
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert app.texts() == ["my notes\n\nsum up notes.txt"]
        assert app.sent[0].files == ("notes.txt",)
        assert app.sent[0].chat == "one"
        app.prompt.load(PromptDraft.of("/system as in @notes.txt"))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.sent) == 2)
        assert app.texts()[1] == "my notes\n\nas in notes.txt"
        app.prompt.load(PromptDraft.of("//x @notes.txt"))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.sent) == 3)
        assert app.texts()[2] == "my notes\n\n/x notes.txt"

    in_app(test, directory=tmp_path)


@pytest.mark.parametrize("draft", [PromptDraft.of(" hi "), PromptDraft(("/system as in @notes.txt ", Pasted("long")))])
def test_what_was_typed_comes_with_what_is_sent(tmp_path: Path, draft: PromptDraft) -> None:
    (tmp_path / "notes.txt").write_text("NOTES")

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(draft)
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert app.sent[0].draft == draft

    in_app(test, directory=tmp_path)


def test_a_file_that_is_not_there_sends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft(("sum up @no/such.txt ", Pasted("long"))))
        app.prompt.send()
        app.area.insert("x")  # typed on while the file is looked for
        await until(pilot, lambda: app.notices)
        assert "@no/such.txt" in app.notices[0]
        assert app.prompt.draft.text == "sum up @no/such.txt long\nx"
        assert Pasted("long") in app.prompt.draft.parts
        assert app.sent == []

    in_app(test, directory=tmp_path)


def test_another_chat_in_view_gets_nothing_of_it(tmp_path: Path) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        draft = PromptDraft.of("@no/such.txt")
        app.prompt.load(draft, chat="one")
        app.prompt.send()
        app.prompt.load(PromptDraft.of("other"), chat="two")
        await until(pilot, lambda: app.returned)
        assert (app.returned[0].draft, app.returned[0].chat) == (draft, "one")
        assert typed(app) == "other"

    in_app(test, directory=tmp_path)


# --- history -------------------------------------------------------------------------------------------------------------


def test_what_was_sent_is_found_again() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        for text in ("first", "second\nwith two lines"):
            app.prompt.load(PromptDraft.of(text))
            await pilot.press("enter")
        await until(pilot, lambda: len(app.sent) == 2)
        await write(app, pilot, "typing")
        await pilot.press("up")
        assert typed(app) == "second\nwith two lines"
        await pilot.press("up")
        assert typed(app) == "first"
        await pilot.press("up")
        assert typed(app) == "first"
        await pilot.press("down")
        assert typed(app) == "second\nwith two lines"
        await pilot.press("down")
        assert typed(app) == "typing"
        await pilot.press("down")
        assert typed(app) == "typing"

    in_app(test)


def test_up_goes_through_the_text_first() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft.of("sent"))
        await pilot.press("enter")
        app.prompt.load(PromptDraft.of("one\ntwo"))
        await pilot.press("up")
        assert typed(app) == "one\ntwo"
        assert app.area.cursor_location[0] == 0
        await pilot.press("up")
        assert typed(app) == "sent"

    in_app(test)


def test_a_command_from_the_history_opens_no_list() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        for text in ("older", "/tr", "/tree"):
            app.prompt.history.add(PromptDraft.of(text))
        await pilot.press("up", "up", "up")
        await pilot.pause()
        assert typed(app) == "older"

    in_app(test)


# --- size, draft, messages -------------------------------------------------------------------------------------------------


def test_it_grows_with_its_text() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        assert app.area.size.height == 1
        await pilot.press("a", "ctrl+j", "b")
        await until(pilot, lambda: app.area.size.height == 2)
        app.prompt.load(PromptDraft.of("x\n" * 50))
        await until(pilot, lambda: app.area.size.height == 10)
        app.prompt.load(PromptDraft.of("word " * 40))
        await until(pilot, lambda: 1 < app.area.size.height < 5)
        await pilot.resize_terminal(40, 12)
        app.prompt.load(PromptDraft.of("x\n" * 50))
        await until(pilot, lambda: app.area.size.height == 4)
        app.prompt.clear()
        await until(pilot, lambda: app.area.size.height == 1)

    in_app(test, size=(80, 40))


def test_the_placeholder_teaches_what_there_is_room_for() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        assert app.area.placeholder == "Ask anything · / commands · @ files · Alt+Enter new line"
        await pilot.resize_terminal(40, 12)
        await until(pilot, lambda: app.area.placeholder == "Ask anything · / commands · @ files")

    in_app(test)


def test_editing_is_told_and_the_draft_is_kept() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "abc")
        await until(pilot, lambda: app.edits >= 3)
        draft = app.prompt.draft
        app.prompt.load(PromptDraft(), chat="two")
        assert typed(app) == ""
        app.prompt.load(draft, chat="one")
        assert typed(app) == "abc"
        app.prompt.set_text("other")
        await pilot.press("ctrl+z")
        assert typed(app) == "abc"

    in_app(test)


def test_keys_of_the_application_pass_through() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        keys = ("shift+up", "pageup", "pagedown", "f6", "escape", "ctrl+n")
        for key in keys:
            app.bind(key, f"see('{key}')")
        await pilot.press(*keys)
        assert app.seen == list(keys)

    in_app(test)


# --- editor --------------------------------------------------------------------------------------------------------------


def test_the_editor_gets_the_whole_text_and_pasted_pieces_stay_pieces() -> None:
    shown: list[str] = []
    long = "line\n" * 100

    def run(command: Sequence[str]) -> int:
        file = Path(command[-1])
        shown.append(file.read_text())
        file.write_text(file.read_text().replace("see", "look at") + "\nthanks\n")
        return 0

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(PromptDraft(("see ", Pasted(long))))
        await pilot.press("ctrl+g")
        await until(pilot, lambda: typed(app).endswith("thanks"))
        assert shown == ["see " + long]
        assert app.prompt.draft.parts == ("look at ", Pasted(long), "\nthanks")
        assert app.suspended == 1
        await pilot.press("ctrl+z")
        assert typed(app) == "see " + long

    in_app(test, run_editor=run, editor="ed")


@pytest.mark.parametrize(("editor", "problem"), [("no-such-editor-here", "cannot run"), ("false", "ended with 1")])
def test_an_editor_that_fails_is_a_notice(editor: str, problem: str) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "text")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: app.notices)
        assert problem in app.notices[0]
        assert typed(app) == "text"
        assert isinstance(app.focused, TextArea)

    in_app(test, editor=editor)


def test_the_loop_goes_on_while_the_editor_is_open() -> None:
    release = threading.Event()

    def run(command: Sequence[str]) -> int:
        return 0 if release.wait(SECONDS) else 1

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+g")
        await until(pilot, lambda: app.suspended)
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1

        timer = app.set_interval(0.01, tick)
        while ticks < 3:  # noqa: ASYNC110 - nothing is painted, so there is nothing else to wait for
            await asyncio.sleep(0.01)
        timer.stop()
        release.set()
        await until(pilot, lambda: all(worker.is_finished for worker in app.workers))
        assert app.notices == []

    in_app(test, run_editor=run, editor="ed")


# --- cost ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(  # I16
    "draft",
    [
        PromptDraft.of("word " * 1000),
        PromptDraft.of(("word " * 10 + "\n") * 100),
        PromptDraft((Pasted("x" * 1_000_000), " ")),
    ],
    ids=["one line", "many lines", "a large paste"],
)
def test_a_key_is_quick_also_in_a_long_prompt(draft: PromptDraft) -> None:
    async def seconds(app: PromptApp, pilot: Pilot[None], draft: PromptDraft) -> float:
        """From a key to its letter on the screen: the least of many, when nobody else was let run meanwhile."""
        app.prompt.load(draft)
        await pilot.pause()
        times = []
        for _ in range(25):
            length = len(app.area.document.text)
            begin = time.perf_counter()
            app.post_message(Key("x", "x"))
            while len(app.area.document.text) == length:  # noqa: ASYNC110 - it is timed
                await asyncio.sleep(0)
            painted = asyncio.Event()
            app.area.call_after_refresh(painted.set)
            await painted.wait()
            times.append(time.perf_counter() - begin)
        return min(times)

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        empty = await seconds(app, pilot, PromptDraft())
        # A slow machine may take longer, but not because of what is in the prompt.
        assert await seconds(app, pilot, draft) <= max(0.030, 4 * empty)

    in_app(test, size=(120, 40))
