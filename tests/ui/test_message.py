"""One message: what is seen of it, what can be done with it, what is copied from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.geometry import Offset
from textual.pilot import Pilot

from benchmarks.streaming import tokens
from chatpaged.conversation import NodeState
from chatpaged.markdown_pieces import PieceStream
from chatpaged.ui.widgets.code_block import CodeBlock
from chatpaged.ui.widgets.folded import FoldLine, LongText, Thinking
from chatpaged.ui.widgets.markdown import MarkdownView, TextFlow
from chatpaged.ui.widgets.message import MessageView
from chatpaged.ui.widgets.message_header import MessageHeader, moment
from chatpaged.ui.widgets.message_item import MessageItem
from tests.ui.conversations import ANSWER, ConversationApp, message, rows, screen_text
from tests.ui.snapshots import until

Body = Callable[[ConversationApp, Pilot[None]], Awaitable[None]]


def run(body: Body, size: tuple[int, int] = (80, 40)) -> None:
    async def main() -> None:
        app = ConversationApp()
        async with app.run_test(size=size) as pilot:
            await body(app, pilot)

    asyncio.run(main())


async def show(app: ConversationApp, pilot: Pilot[None], *items: MessageItem) -> MessageView:
    """Shows messages and chooses the last one."""
    await app.messages.show(items)
    app.messages.focus_last()
    await until(pilot, lambda: isinstance(app.focused, MessageView))
    await until(pilot, lambda: not app.messages._wake.is_set() and not app.messages._busy.locked())
    assert isinstance(app.focused, MessageView)
    return app.focused


def place_of(app: ConversationApp, text: str) -> Offset:
    """Where a text is on the screen."""
    for y, row in enumerate(rows(app)):
        if text in row:
            return Offset(row.index(text), y)
    raise AssertionError(f"{text!r} is not on the screen:\n{screen_text(app)}")


async def click(app: ConversationApp, pilot: Pilot[None], text: str, shift: int = 0) -> None:
    x, y = place_of(app, text)
    await pilot.click(offset=(x + shift, y))


async def drag(pilot: Pilot[None], start: Offset, end: Offset) -> None:
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)
    await pilot.pause()


# --- what can be done ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "action"),
    [("y", "copy"), ("e", "edit"), ("r", "regenerate"), ("b", "branch"), ("a", "alternatives"), ("left", "previous"), ("right", "next")],
)
def test_every_action_has_a_key(key: str, action: str) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("q", "user", "hi"), message("a", "assistant", "x **y**\n", position=2, siblings=3))
        await pilot.press(key)
        assert app.actions == [("a", action, "x **y**\n" if action in {"copy", "edit"} else "")]

    run(body)


@pytest.mark.parametrize("action", ["copy", "edit", "again", "go on", "branch", "alternatives", "◀", "▶"])
def test_every_action_can_be_clicked(action: str) -> None:
    names = {"again": "regenerate", "go on": "continue", "◀": "previous", "▶": "next"}

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", "x", position=2, siblings=3, finish_reason="length"))
        await click(app, pilot, action)
        await until(pilot, lambda: app.actions)
        assert [entry[1] for entry in app.actions] == [names.get(action, action)]

    run(body, size=(110, 30))


def test_only_what_was_cut_off_goes_on() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", "x", finish_reason="stop"))
        assert "go on" not in screen_text(app)
        await pilot.press("o", "left", "right")
        assert app.actions == []
        await show(app, pilot, message("b", "assistant", "x", finish_reason="length"))
        assert "go on" in screen_text(app)
        await pilot.press("o")
        assert app.actions == [("b", "continue", "")]

    run(body, size=(110, 30))


def test_actions_are_shown_under_the_mouse_and_go_with_it() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("q", "user", "question"), message("a", "assistant", "answer")])
        await pilot.pause()
        assert "branch" not in screen_text(app)
        await pilot.hover(offset=place_of(app, "answer"))
        await until(pilot, lambda: "alternatives" in screen_text(app), "the actions")
        await pilot.hover(offset=(5, 30))
        await until(pilot, lambda: "alternatives" not in screen_text(app), "no actions")

    run(body, size=(110, 32))


def test_in_a_narrow_window_actions_are_single_keys() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", "x", position=10, siblings=12, finish_reason="length"))
        row = rows(app)[place_of(app, "10/12").y]
        assert "y e r o b a" in row
        assert len(row) <= 40
        await click(app, pilot, "e r o", 0)
        await until(pilot, lambda: app.actions)
        assert app.actions[0][1] == "edit"

    run(body, size=(40, 12))


def test_the_header_says_who_and_when() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("q", "user", "hi", created=1_700_000_000.0), message("a", "assistant", "ho", model="org/Name-1B")])
        await pilot.pause()
        assert "You  14 Nov 2023" in screen_text(app) or "You  15 Nov 2023" in screen_text(app)
        assert "Name-1B" in screen_text(app)
        assert "org/" not in screen_text(app)

    run(body)


def test_times_are_short() -> None:
    noon = 1_700_000_000.0
    assert len(moment(noon, noon + 60)) == 5
    assert moment(noon, noon + 30 * 86400).startswith(("14 Nov ", "15 Nov "))
    assert moment(noon, noon + 400 * 86400).endswith("2023")


# --- code ---------------------------------------------------------------------------------------------------------------


CODES = "One:\n\n```python\nif x:\n\ty = '[bold]'\n```\n\n1. Two:\n   ```sh\n   ls -l\n   ```\n"


def test_code_is_copied_exactly_by_key_and_by_mouse() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", CODES))
        await pilot.press("c", "c", "c")
        first, second = "if x:\n\ty = '[bold]'", "ls -l"
        assert [entry[2] for entry in app.actions] == [first, second, first]
        assert {entry[1] for entry in app.actions} == {"copy_code"}
        app.actions.clear()
        line = place_of(app, "sh")
        await pilot.click(offset=(rows(app)[line.y].index("copy"), line.y))
        await until(pilot, lambda: app.actions)
        assert app.actions == [("a", "copy_code", second)]
        app.actions.clear()
        app.query(CodeBlock).first().focus()
        await pilot.pause()
        await pilot.press("c")
        assert app.actions == [("a", "copy_code", first)]

    run(body)


def test_code_is_coloured_and_long_lines_are_broken_on_the_screen_only() -> None:
    line = "value = " + " + ".join(f"name_{i}" for i in range(30))

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", f"```python\n{line}\n```"))
        block = app.query_one(CodeBlock)
        await until(pilot, lambda: any(entry.body.spans for entry in block.lines[1:]), "colours")
        assert "↳" in screen_text(app)
        assert "name_29" in screen_text(app)
        await pilot.press("c")
        assert app.actions[0][2] == line

    run(body, size=(60, 20))


def test_code_without_a_known_language_is_shown_all_the_same() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", "```nosuch\nabc\n```\n\n```\ndef\n```\n\n    indented\n"))
        await pilot.pause()
        assert all(text in screen_text(app) for text in ("nosuch", "abc", "def", "indented"))

    run(body)


# --- copying with the mouse ---------------------------------------------------------------------------------------------


def test_what_is_selected_with_the_mouse_has_no_breaks_of_the_screen() -> None:
    text = (
        "A paragraph "
        + " ".join(f"word{i}" for i in range(40))
        + " end.\n\n- an item that is long enough to be broken by the width\n- last"
    )

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("a", "assistant", text)])
        await pilot.pause()
        await drag(pilot, place_of(app, "A paragraph"), place_of(app, "last") + Offset(4, 0))
        assert app.screen.get_selected_text() == text

    run(body, size=(50, 30))


def test_code_that_is_selected_has_tabs_and_no_frame() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("a", "assistant", "before\n\n```python\nif x:\n\ty = 1  # " + "long " * 20 + "\n```\n\nafter")])
        await pilot.pause()
        await drag(pilot, place_of(app, "before"), place_of(app, "after") + Offset(5, 0))
        assert app.screen.get_selected_text() == "before\nif x:\n\ty = 1  # " + "long " * 20 + "\nafter"

    run(body, size=(50, 30))


def test_a_table_is_copied_as_markdown() -> None:
    table = "| Name | Value |\n| --- | ---: |\n| alpha | 1 |\n| beta | 22 |"

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("a", "assistant", f"x\n\n{table}\n\ny")])
        await pilot.pause()
        await drag(pilot, place_of(app, "x"), place_of(app, " y") + Offset(2, 0))
        assert app.screen.get_selected_text() == f"x\n\n{table}\n\ny"

    run(body, size=(50, 30))


def test_part_of_a_line_is_copied_as_it_is() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("q", "user", "the 日本語 text [bold]here[/]")])
        await pilot.pause()
        start = place_of(app, "the")
        await drag(pilot, start + Offset(4, 0), start + Offset(14, 0))
        assert app.screen.get_selected_text() == "日本語 text"

    run(body)


# --- thinking, long texts ------------------------------------------------------------------------------------------------


def test_thinking_is_folded_and_opens() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("a", "assistant", "the answer", reasoning="first thought\nsecond thought"))
        assert "Thought, 4 words" in screen_text(app)
        assert "first thought" not in screen_text(app)
        for key in ("t", "enter"):
            await pilot.press(key)
            await until(pilot, lambda: "first thought" in screen_text(app) and "second thought" in screen_text(app))
            await pilot.press(key)
            await until(pilot, lambda: "first thought" not in screen_text(app))
        await pilot.click(FoldLine)
        await until(pilot, lambda: "first thought" in screen_text(app))
        assert place_of(app, "second thought").y < place_of(app, "the answer").y

    run(body)


def test_thinking_shows_its_last_line_while_it_grows() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.begin(message("a", "assistant", ""))
        for piece in ("I think", "ing about\n", "two ", "things [bold]"):
            app.messages.feed("a", "", piece)
        await until(pilot, lambda: "two things [bold]" in screen_text(app), "the last line")
        assert "Thinking… 6 words" in screen_text(app)
        assert "I thinking" not in screen_text(app)
        app.query_one(Thinking).toggle()
        await until(pilot, lambda: "I thinking about" in screen_text(app))
        app.messages.feed("a", "", " and\nmore")
        await until(pilot, lambda: "more" in screen_text(app))
        assert "two things [bold] and" in screen_text(app)
        app.messages.feed("a", "So.", "")
        await until(pilot, lambda: "So." in screen_text(app))
        assert "Thought, 8 words" in screen_text(app)
        await app.messages.finish(message("a", "assistant", "So.", reasoning="I thinking about\ntwo things [bold] and\nmore"))
        await until(pilot, lambda: "Thought, 8 words" in screen_text(app))

    run(body)


def test_a_long_paste_is_folded_and_opens_without_a_widget_a_line() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, message("q", "user", "\n".join(f"pasted line {i}" for i in range(5000))))
        assert "… 4,988 more lines" in screen_text(app)
        assert "pasted line 12" not in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: app.query_one(LongText).body.size.height == 5000, "all lines")
        assert len(app.query_one(LongText).children) == 2
        assert sum("pasted line" in row for row in rows(app)) > 20

    run(body)


def test_what_the_user_wrote_is_not_markdown() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("q", "user", "# no title\n  * indented\n**stars**\n\n<b>tags</b>")])
        await pilot.pause()
        text = screen_text(app)
        assert all(entry in text for entry in ("# no title", "  * indented", "**stars**", "<b>tags</b>"))

    run(body)


# --- safety ---------------------------------------------------------------------------------------------------------------

HOSTILE = "[bold]b[/bold] [/] [@click=app.quit]q[/] \x1b[31mred\x1b[0m \x07 [x](javascript:alert) <script>s</script> \u202eevil $(x)"


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_text_of_others_is_only_text(role: str) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        fields: dict[str, Any] = {"reasoning": HOSTILE, "model": "evil/[bold]\x1b[31m"} if role == "assistant" else {}
        view = await show(app, pilot, message("a", role, f"{HOSTILE}\n\n```[x]\n{HOSTILE}\n```\n\n| {HOSTILE} |\n|---|\n", **fields))
        view.set_notice("[/]\x1b[31m")
        await pilot.press("t")
        await pilot.pause()
        text = screen_text(app)
        assert "[bold]b[/bold] [/]" in text
        assert not [character for character in text if ord(character) < 32 and character != "\n"]
        assert "\u202e" not in text
        await click(app, pilot, "q[/]")
        await pilot.pause()
        assert app.is_running

    run(body, size=(150, 40))


def test_a_link_is_told_and_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(ConversationApp, "open_url", lambda _, url, **__: opened.append(url))

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("a", "assistant", "see [here](http://e.org/'a') or https://bare.org/x, [bad](javascript:x)")])
        await pilot.pause()
        await click(app, pilot, "here")
        await click(app, pilot, "https://bare")
        await click(app, pilot, "bad")
        await until(pilot, lambda: len(app.links) == 2)
        assert app.links == ["http://e.org/'a'", "https://bare.org/x"]
        assert not opened

    run(body)


# --- what is told ---------------------------------------------------------------------------------------------------------


def test_how_a_turn_went_is_told_under_it() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        usage = {"cached_tokens": 10, "prefill_tokens": 5, "rereads": [{"reason": "system prompt changed", "tokens": 7}], "left_out": 2}
        await show(app, pilot, message("a", "assistant", "x", usage=usage, finish_reason="cancelled", state=NodeState.INTERRUPTED))
        assert "cached 10 · read 5 · 7 read again: system prompt changed · 2 oldest messages not sent · stopped: o goes on" in screen_text(
            app
        )
        await show(app, pilot, message("b", "assistant", ""))
        assert "no text" in screen_text(app)

    run(body, size=(120, 20))


# --- growing --------------------------------------------------------------------------------------------------------------


def view_rows(app: ConversationApp) -> list[str]:
    return [row[:78].rstrip() for row in rows(app)]


@pytest.mark.parametrize("step", [1, 5, 23, 1000])
def test_a_grown_answer_looks_like_one_that_was_shown_at_once(step: int) -> None:
    text = ANSWER + "\n\n" + CODES + "\n\n" + "More words. " * 300 + "\n\n" + "".join(f"{i}. item\n" for i in range(1, 30))

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        item = message("a", "assistant", text)
        await app.messages.show([item])
        await colours(app, pilot)
        whole = view_rows(app)
        await app.messages.show([])
        await app.messages.begin(message("a", "assistant", ""))
        view = app.messages.mounted[0]
        for i in range(0, len(text), step):
            await view.grow(text[i : i + step], "")
        await app.messages.finish(item)
        app.messages.scroll_to_end()
        await pilot.pause()
        await colours(app, pilot)
        assert view_rows(app) == whole

    run(body, size=(80, 140))


async def colours(app: ConversationApp, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: not [worker for worker in app.workers if worker.group == "colour" and not worker.is_finished], "colours")
    await until(pilot, lambda: not app.messages._wake.is_set() and not app.messages._busy.locked())


@pytest.mark.parametrize("kind", ["paragraphs", "paragraph", "code", "list", "table"])
def test_drawing_a_token_costs_the_same_at_the_end_as_at_the_beginning(kind: str) -> None:
    """Work is counted, not time: characters that are parsed and made into lines, and widgets."""

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.begin(message("a", "assistant", ""))
        await pilot.pause()
        view = app.query_one(MarkdownView)
        counts: list[int] = []
        pieces = tokens(kind, 3000)
        for i in range(0, len(pieces), 15):  # a frame
            before = view.parsed
            await view.grow("".join(pieces[i : i + 15]))
            counts.append(view.parsed - before)
        tenth = len(counts) // 10
        assert max(counts) < 10_000
        assert sum(counts[-tenth:]) <= 2 * max(sum(counts[tenth : 2 * tenth]), tenth * 3000)
        assert len(view.children) < 60
        await view.finish("".join(pieces))
        await pilot.pause()

    run(body)


def test_what_stays_right_is_not_drawn_again_at_the_end() -> None:
    text = "A paragraph of some length, made to fill pieces.\n\n" * 200

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.begin(message("a", "assistant", ""))
        await pilot.pause()
        view = app.query_one(MarkdownView)
        for i in range(0, len(text), 60):
            await view.grow(text[i : i + 60])
        before = list(view.children)
        await view.finish(text)
        assert list(view.children) == before
        assert all(isinstance(child, TextFlow) for child in before)

    run(body)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_code_that_has_ended_gets_all_its_colours_while_the_answer_grows(step: int) -> None:
    text = "First:\n\n```python\ndef f():\n    return None\n```\n\nThen more."

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.begin(message("a", "assistant", ""))
        await pilot.pause()
        for i in range(0, len(text), step):
            await app.query_one(MarkdownView).grow(text[i : i + step])
        await until(pilot, lambda: bool(app.query(CodeBlock)) and not app.query_one(CodeBlock)._colouring, "colours")
        last = app.query_one(CodeBlock).lines[-1]
        assert last.body.plain == "    return None"
        assert last.body.spans

    run(body)


def test_a_stream_needs_no_widgets() -> None:
    assert PieceStream().feed("") is None


def test_the_header_never_is_wider_than_the_window() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await show(
            app,
            pilot,
            message("a", "assistant", "x", position=100, siblings=120, model="a/" + "very-long-name-" * 9, finish_reason="length"),
        )
        for width in (20, 30, 40, 60, 90, 200):
            await pilot.resize_terminal(width, 12)
            await pilot.pause()
            header = app.query_one(MessageHeader)
            assert header.render().cell_length <= header.size.width or width == 20

    run(body)
