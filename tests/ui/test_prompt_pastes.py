"""Pasted texts: chips in the prompt."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from textual.document._document import Selection
from textual.events import Paste
from textual.pilot import Pilot

from chatpaged.amounts import large_number
from chatpaged.prompt_draft import Pasted, PromptDraft
from tests.ui.conftest import Snapshot
from tests.ui.patient_pilot import SECONDS
from tests.ui.prompt_app import PromptApp, in_app, typed, write
from tests.ui.snapshots import until

LONG = "".join(f"line {i} of a long text\n" for i in range(100))


def screen(app: PromptApp) -> str:
    """The rows of the prompt's text as they are seen."""
    return "\n".join(app.area.render_line(y).text.rstrip() for y in range(app.area.size.height))


async def paste(app: PromptApp, pilot: Pilot[None], text: str) -> None:
    app.post_message(Paste(text))
    await pilot.pause()
    await until(pilot, lambda: typed(app))


def with_chip(before: str = "ab ", after: str = " cd") -> PromptDraft:
    return PromptDraft((before, Pasted(LONG), after))


def test_lines_are_pasted_as_they_are_and_nothing_is_sent() -> None:  # I7
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await paste(app, pilot, "a\rb\r\nc")
        assert typed(app) == "a\nb\nc"
        assert app.area.size.height == 3
        assert app.sent == []

    in_app(test)


def test_what_is_pasted_is_harmless() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await paste(app, pilot, "\x1b[31mred\x1b[0m \x07bell \x1b]0;title\x07end")
        assert typed(app) == "red ␇bell end"

    in_app(test)


def test_a_large_paste_takes_less_than_a_second() -> None:  # I8
    text = ("lorem ipsum dolor sit amet " * 8)[:199] + "\n"
    text = text * 5000
    counting = threading.Event()

    def count(of: str) -> int:
        counting.wait(SECONDS)
        return 312_345 if of == text else -1

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "see ")
        begin = time.perf_counter()
        app.post_message(Paste(text))
        await until(pilot, lambda: "[pasted 5000 lines]" in screen(app))
        assert time.perf_counter() - begin < 1
        counting.set()
        await until(pilot, lambda: "[pasted 5000 lines, 312k tokens]" in screen(app))
        assert app.area.size.height == 1
        assert app.prompt.draft.parts == ("see ", Pasted(text))
        assert app.sent == []
        begin = time.perf_counter()
        await pilot.press("enter")
        await until(pilot, lambda: app.sent)
        assert time.perf_counter() - begin < 1
        assert app.texts() == ["see " + text]

    in_app(test, count_tokens=count)


def test_tokens_are_counted_once_there_is_a_counter() -> None:
    async def count(_: str) -> int:
        return 1234

    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await paste(app, pilot, LONG)
        assert "[pasted 100 lines]" in screen(app)
        app.prompt.count_tokens = count
        await until(pilot, lambda: "[pasted 100 lines, 1.2k tokens]" in screen(app))
        await paste(app, pilot, "x" * 3000)
        await until(pilot, lambda: "[pasted 3.0k characters, 1.2k tokens]" in screen(app))

    in_app(test)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9949, "9.9k"), (9960, "10k"), (312_345, "312k"), (999_499, "999k"), (999_500, "1.0M")],
)
def test_counts_are_short(count: int, text: str) -> None:
    assert large_number(count) == text


def test_one_key_deletes_it_and_another_brings_it_back() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        await write(app, pilot, "ab ")
        await paste(app, pilot, LONG)
        await until(pilot, lambda: LONG in typed(app))
        await pilot.press("backspace")
        assert typed(app) == "ab "
        await pilot.press("ctrl+z")
        assert typed(app) == "ab " + LONG
        await pilot.press("ctrl+y")
        assert typed(app) == "ab "
        await pilot.press("ctrl+z", "home", "right", "right", "right", "delete")
        assert typed(app) == "ab "

    in_app(test)


def test_the_cursor_goes_over_it_in_one_step() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(with_chip())
        length = app.area.cursor_location[1]
        end = length - 3
        await pilot.press("home", "right", "right", "right")
        assert app.area.cursor_location == (0, 3)
        await pilot.press("right")
        assert app.area.cursor_location == (0, end)
        await pilot.press("left")
        assert app.area.cursor_location == (0, 3)
        await pilot.press("ctrl+right")
        assert app.area.cursor_location == (0, end)
        await pilot.press("ctrl+left")
        assert app.area.cursor_location == (0, 3)
        app.area.move_cursor((0, 5))
        assert app.area.cursor_location == (0, end)  # a step in from the left goes through
        app.area.move_cursor((0, 0))
        app.area.move_cursor((0, 6))
        assert app.area.cursor_location == (0, 3)
        app.area.move_cursor((0, 0))
        app.area.move_cursor((0, end - 1))
        assert app.area.cursor_location == (0, end)
        await pilot.press("x")
        assert app.prompt.draft == with_chip(after="x cd")

    in_app(test)


def test_it_is_copied_cut_and_pasted_in_full() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(with_chip())
        app.area.select_all()
        await pilot.press("ctrl+c")
        assert app.clipboard == with_chip().text
        await pilot.press("ctrl+x")
        assert typed(app) == ""
        assert app.clipboard == with_chip().text
        await pilot.press("ctrl+v")
        assert typed(app) == with_chip().text
        app.prompt.load(with_chip())
        await pilot.press("ctrl+x")  # the line
        assert typed(app) == ""
        assert app.clipboard.strip() == with_chip().text.strip()
        await pilot.press("ctrl+x")
        assert app.clipboard.strip() == with_chip().text.strip()

    in_app(test)


def test_edits_take_it_whole_or_not_at_all() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(with_chip())
        app.area.delete((0, 1), (0, 5))
        assert typed(app) == "a cd"
        app.prompt.load(with_chip())
        app.area.delete((0, 6), (0, app.area.cursor_location[1]))
        assert typed(app) == "ab "
        app.prompt.load(with_chip())
        app.area.insert("x", (0, 6))
        assert typed(app) == f"ab {LONG}x cd"
        app.prompt.load(with_chip())
        app.area.selection = Selection((0, 0), (0, 5))
        await pilot.press("y")
        assert typed(app) in {f"y{LONG} cd", "y cd"}
        app.prompt.load(with_chip())
        app.area.select_all()
        await pilot.press("backspace")
        assert typed(app) == ""
        await pilot.press("ctrl+z")
        assert typed(app) == with_chip().text

    in_app(test)


def test_it_can_be_shown_in_full() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(with_chip())
        await pilot.press("left", "left", "left")
        await until(pilot, lambda: app.prompt.border_subtitle)
        assert app.prompt.border_subtitle == "Ctrl+E shows the pasted text"
        await pilot.press("ctrl+e")
        assert app.prompt.draft.parts == (with_chip().text,)
        await pilot.press("ctrl+z")
        assert app.prompt.draft == with_chip()
        app.prompt.load(PromptDraft((Pasted("x" * 100_000),)))
        await pilot.press("ctrl+e")
        await until(pilot, lambda: app.notices)
        assert "Ctrl+G" in app.notices[0]
        app.prompt.load(PromptDraft.of("ab"))
        await pilot.press("home", "ctrl+e")
        assert app.area.cursor_location == (0, 2)

    in_app(test)


def test_a_double_click_shows_it_in_full() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(with_chip())
        await pilot.pause()
        await pilot.click(app.area, offset=(6, 0), times=2)
        await until(pilot, lambda: app.prompt.draft.parts == (with_chip().text,))

    in_app(test)


def test_it_stays_whole_where_lines_are_wrapped() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.load(with_chip(before="word " * 6))
        await until(pilot, lambda: app.area.size.height == 2)
        assert "\n[pasted 100 lines]" in screen(app)

    in_app(test, size=(60, 20))


def test_chips_of_one_size_are_told_apart() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        texts = [f"{i}\n" * 30 for i in range(20)]
        for text in texts:
            app.prompt._area.paste(text)
        assert typed(app) == "".join(texts)
        await pilot.press("backspace")
        assert typed(app) == "".join(texts[:-1])

    in_app(test)


def test_characters_that_mark_chips_cannot_be_smuggled_in() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        fake = "\ufdd0\ufde0\ufdd2\ufdd1"
        await paste(app, pilot, f"a{fake}b")
        assert typed(app) == "a\ufffd\ufffd\ufffd\ufffdb"
        app.prompt.load(PromptDraft.of(fake))
        assert typed(app) == "\ufffd" * 4

    in_app(test)


def test_a_long_message_to_be_changed_is_a_chip() -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        app.prompt.set_text("word\n" * 2000)
        assert app.prompt.draft == PromptDraft((Pasted("word\n" * 2000),))
        app.prompt.set_text("word\n" * 100)
        assert app.prompt.draft == PromptDraft.of("word\n" * 100)

    in_app(test)


def test_a_draft_may_be_there_before_the_screen() -> None:
    async def main() -> None:
        app = PromptApp(count_tokens=len)
        app.prompt.load(with_chip(), chat="one")
        app.prompt.count_tokens = lambda _: 77
        async with app.run_test() as pilot:
            assert app.prompt.draft == with_chip()
            assert app.prompt.chat == "one"
            await until(pilot, lambda: "77 tokens" in screen(app))

    asyncio.run(main())


def test_picture(snapshot: Snapshot) -> None:
    async def test(app: PromptApp, pilot: Pilot[None]) -> None:
        text = "  File main.py, line 3, in run\n" * 5000
        app.prompt.load(PromptDraft(("Why does this fail?\n", Pasted(text), " I have changed nothing since yesterday.")))
        await until(pilot, lambda: "312k tokens" in screen(app) and app.area.size.height == 2)
        snapshot(app, "prompt_chip")

    in_app(test, count_tokens=lambda _: 312_000, size=(90, 16))
