"""Conversations in view: laid out lazily, followed to their end, never moved under the reader's eyes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widget import Widget

from chatpaged.ui.widgets.message import MessageView
from chatpaged.ui.widgets.message_list import MessageList, NewMarker
from chatpaged.ui.widgets.message_scroll import MessageScroll
from tests.ui.conversations import ConversationApp, dialogue, message, rows, screen_text
from tests.ui.snapshots import until

Body = Callable[[ConversationApp, Pilot[None]], Awaitable[None]]


def run(body: Body, size: tuple[int, int] = (80, 24)) -> None:
    async def main() -> None:
        app = ConversationApp()
        async with app.run_test(size=size) as pilot:
            await body(app, pilot)

    asyncio.run(main())


def scroll(app: ConversationApp) -> MessageScroll:
    return app.query_one(MessageScroll)


def at_end(app: ConversationApp) -> bool:
    return scroll(app).scroll_y >= scroll(app).max_scroll_y


def shows(app: ConversationApp, text: str) -> bool:
    return text in screen_text(app)


def has_focus(app: ConversationApp, node_id: str) -> bool:
    return isinstance(app.focused, MessageView) and app.focused.node_id == node_id


async def calm(app: ConversationApp, pilot: Pilot[None]) -> None:
    """Waits until nothing more is laid out."""
    await until(pilot, lambda: not app.messages._wake.is_set() and not app.messages._busy.locked(), "a calm list")


def test_a_long_history_is_laid_out_in_part_and_shows_its_end() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(2000), system="Be brief.")
        await calm(app, pilot)
        assert "message 1999 line 2" in screen_text(app)
        assert len(app.messages.mounted) < 40
        assert at_end(app)

    run(body)


def test_the_beginning_is_one_key_away_and_so_is_the_end() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(2000), system="Be brief.")
        await calm(app, pilot)
        app.messages.focus_last()
        await until(pilot, lambda: isinstance(app.focused, MessageView))
        await pilot.press("home")
        await until(pilot, lambda: "message 0 line 0" in screen_text(app), "the first message")
        assert "System prompt" in screen_text(app)
        assert "Be brief." in screen_text(app)
        await calm(app, pilot)
        assert len(app.messages.mounted) < 60
        app.messages.scroll_to_end()
        await until(pilot, lambda: "message 1999 line 2" in screen_text(app) and at_end(app), "the last message")
        assert app.messages.following

    run(body)


def test_scrolling_up_through_everything_never_jumps() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(24, lines=2))
        await calm(app, pilot)
        before = rows(app)
        for _ in range(400):
            if "message 0 line 0" in screen_text(app) and scroll(app).scroll_y == 0:
                break
            scroll(app).scroll_relative(y=-5, animate=False)
            await pilot.pause()
            after = rows(app)
            assert_moved_down(before, after, 5)
            await calm(app, pilot)
            assert texts(rows(app)) == texts(after)  # what was laid out above has moved nothing
            before = rows(app)
        assert "message 0 line 0" in screen_text(app)

    run(body)


def texts(lines: list[str]) -> list[str]:
    """Rows without the scroll bar."""
    return [line[:78].rstrip() for line in lines]


def assert_moved_down(before: list[str], after: list[str], by: int) -> None:
    old, new = texts(before), texts(after)
    for moved in range(by + 1):
        if new[moved:] == old[: len(old) - moved]:
            return
    raise AssertionError(f"the view jumped:\n{old}\n{new}")


def test_going_to_a_message_lays_it_out() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(2000))
        await calm(app, pilot)
        for target in (1000, 3, 1990, 0, 700):
            app.messages.go_to(f"m{target}", focus=True)
            await until(pilot, partial(shows, app, f"message {target} line 0"), f"message {target}")
            await calm(app, pilot)
            assert f"message {target} line 0" in screen_text(app)
            assert isinstance(app.focused, MessageView)
            assert app.focused.node_id == f"m{target}"
            assert len(app.messages.mounted) < 60

    run(body)


def test_dragging_the_bar_to_anywhere_shows_messages_not_empty_space() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(2000))
        await calm(app, pilot)
        for share in (0.5, 0.1, 0.9, 0.3):
            scroll(app).scroll_to(y=int(scroll(app).max_scroll_y * share), animate=False)
            await pilot.pause()
            await calm(app, pilot)
            await until(pilot, lambda: sum("message" in row for row in rows(app)) >= 4, "messages")

    run(body)


def test_keys_go_from_message_to_message_beyond_what_is_laid_out() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(100))
        await calm(app, pilot)
        app.messages.focus_last()
        await until(pilot, lambda: isinstance(app.focused, MessageView))
        for i in range(98, 78, -1):
            await pilot.press("k" if i % 2 else "up")
            await until(pilot, partial(has_focus, app, f"m{i}"), f"message {i}")
            assert f"message {i} line 0" in screen_text(app)
        await pilot.press("j")
        await until(pilot, lambda: isinstance(app.focused, MessageView) and app.focused.node_id == "m80")

    run(body)


# --- following the end ------------------------------------------------------------------------------------------------


async def streaming(app: ConversationApp, pilot: Pilot[None], history: int = 20) -> None:
    await app.messages.show(dialogue(history))
    await app.messages.begin(message("answer", "assistant", ""))
    await calm(app, pilot)


async def feed(app: ConversationApp, pilot: Pilot[None], first: int, last: int) -> None:
    for i in range(first, last):
        app.messages.feed("answer", f"streamed {i}\n\n")
    await until(pilot, lambda: not app.messages._fed, "the text")
    await calm(app, pilot)


def test_the_end_is_followed_while_an_answer_grows() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot)
        for i in range(0, 60, 5):
            await feed(app, pilot, i, i + 5)
            assert f"streamed {i + 4}" in screen_text(app)
            assert at_end(app)
            assert app.messages.following

    run(body)


def test_whoever_scrolls_up_stays_there_is_told_and_follows_again_at_the_end() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot)
        await feed(app, pilot, 0, 30)
        await pilot._post_mouse_events([events.MouseScrollUp], MessageList, button=0)
        await until(pilot, lambda: not app.messages.following, "the reader's wish")
        await calm(app, pilot)
        seen = texts(rows(app))
        assert not app.query_one(NewMarker).display
        await feed(app, pilot, 30, 60)
        assert texts(rows(app))[:-1] == seen[:-1]
        assert app.query_one(NewMarker).display
        assert "↓ new" in screen_text(app)
        scroll(app).scroll_end(animate=False)
        await until(pilot, lambda: app.messages.following, "following again")
        await feed(app, pilot, 60, 70)
        assert "streamed 69" in screen_text(app)
        assert not app.query_one(NewMarker).display

    run(body)


@pytest.mark.parametrize("way", ["click", "end"])
def test_the_marker_and_the_end_key_go_to_the_end(way: str) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot)
        app.messages.focus_last()
        await feed(app, pilot, 0, 30)
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: not app.messages.following)
        await feed(app, pilot, 30, 40)
        if way == "click":
            assert await pilot.click(NewMarker)
        else:
            await pilot.press("end")
        await until(pilot, lambda: app.messages.following and at_end(app), "the end")
        assert "streamed 39" in screen_text(app)
        await feed(app, pilot, 40, 60)
        assert "streamed 59" in screen_text(app)

    run(body)


def test_resizing_while_an_answer_grows_neither_fails_nor_stops_following() -> None:
    sizes = [(40, 12), (20, 5), (80, 24), (61, 20)]

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot)
        for i in range(50):
            if i % 3 == 0:
                app.messages.feed(
                    "answer",
                    f"streamed {i} 日本語 👩‍👩‍👧 é **bold** `code`\n\n```python\nx = {i}\n```\n\n| a | b |\n|---|---|\n| {i} | y |\n\n",
                )
            await pilot.resize_terminal(*(300, 100) if i % 20 == 7 else sizes[i % len(sizes)])
            await pilot.pause()
            assert app.messages.following
        await until(pilot, lambda: not app.messages._fed)
        await pilot.resize_terminal(80, 24)
        await calm(app, pilot)
        assert at_end(app)
        assert "│ y" in screen_text(app)

    run(body)


def test_resizing_keeps_what_is_read_in_view() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        long = " ".join(f"word{i}" for i in range(400))
        await app.messages.show([message(f"m{i}", "user" if i % 2 else "assistant", f"start {i} {long}") for i in range(40)])
        await calm(app, pilot)
        app.messages.go_to("m20")
        await until(pilot, lambda: "start 20 " in screen_text(app))
        await calm(app, pilot)
        for size in ((40, 12), (120, 30), (60, 20)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            await calm(app, pilot)
            assert "start 20 " in screen_text(app)

    run(body)


def test_resizing_keeps_the_place_within_a_long_message() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([message("a", "assistant", " ".join(f"word{i}" for i in range(4000)))])
        await calm(app, pilot)
        scroll(app).scroll_to(y=scroll(app).max_scroll_y // 2, animate=False)
        await calm(app, pilot)
        assert not app.messages.following
        for size in ((40, 12), (120, 30), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            await calm(app, pilot)
            words = [int(number) for number in re.findall(r"word(\d+)", screen_text(app))]
            assert min(words) < 2300
            assert max(words) > 1800

    run(body)


def test_an_answer_that_is_there_can_go_on() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        cut = message("a", "assistant", "It was **cut**", finish_reason="length")
        await app.messages.show([*dialogue(2), cut])
        app.messages.focus_last()
        await until(pilot, partial(has_focus, app, "a"))
        assert "length limit reached" in screen_text(app)
        await app.messages.begin(cut)
        assert [item.node.id for item in app.messages.items] == ["m0", "m1", "a"]
        app.messages.feed("a", " off **here**")
        await until(pilot, partial(shows, app, "It was cut off here"))
        assert "length limit reached" not in screen_text(app)
        assert has_focus(app, "a")
        await app.messages.finish(message("a", "assistant", "It was **cut** off **here**.", finish_reason="stop"))
        await until(pilot, partial(shows, app, "It was cut off here."))
        assert screen_text(app).count("It was") == 1

    run(body)


def test_an_answer_that_grows_out_of_view_is_whole_when_it_is_gone_to() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot, history=300)
        await feed(app, pilot, 0, 5)
        app.messages.go_to("m3")
        await until(pilot, lambda: "message 3 line 0" in screen_text(app))
        await calm(app, pilot)
        assert not any(view.node_id == "answer" for view in app.messages.mounted)
        await feed(app, pilot, 5, 10)
        app.messages.scroll_to_end()
        await until(pilot, lambda: "streamed 9" in screen_text(app))
        await feed(app, pilot, 10, 12)
        text = screen_text(app)
        assert all(text.count(f"streamed {i}\n") <= 1 for i in range(12))
        assert "streamed 11" in text
        view = next(view for view in app.messages.mounted if view.node_id == "answer")
        assert view.text == "".join(f"streamed {i}\n\n" for i in range(12))

    run(body)


def test_what_the_user_sends_is_gone_to() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(100))
        await calm(app, pilot)
        app.messages.go_to("m10")
        await until(pilot, lambda: "message 10 line 0" in screen_text(app))
        await app.messages.append(message("mine", "user", "my new question"))
        await until(pilot, lambda: "my new question" in screen_text(app), "my question")
        assert app.messages.following

    run(body)


def test_an_answer_is_exact_at_its_end_and_tells_its_figures() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot)
        app.messages.feed("answer", "```python\nprint(1)\n")
        app.messages.set_notice("answer", "repeats itself; Esc stops")
        await until(pilot, lambda: "repeats itself; Esc stops" in screen_text(app), "the notice")
        usage = {"cached_tokens": 1204, "prefill_tokens": 31, "time_to_first_token": 0.18, "tokens_per_second": 62.0}
        await app.messages.finish(message("answer", "assistant", "```python\nprint(1)\n```\nthe end", usage=usage))
        await until(pilot, lambda: "the end" in screen_text(app))
        text = screen_text(app)
        assert "cached 1,204 · read 31 · 0.18 s to first token · 62 tok/s" in text
        assert "repeats itself" not in text
        assert "```" not in text

    run(body)


def test_showing_another_conversation_forgets_the_first() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await streaming(app, pilot)
        app.messages.feed("answer", "of the first")
        await app.messages.show([message("q", "user", "second")])
        app.messages.feed("answer", "of the first")
        await calm(app, pilot)
        assert "of the first" not in screen_text(app)
        assert "second" in screen_text(app)
        await app.messages.show([])
        await calm(app, pilot)
        assert not screen_text(app).strip()

    run(body)


def test_switching_keeps_the_place_that_is_asked_for() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(200), at="m50")
        await until(pilot, lambda: "message 50 line 0" in screen_text(app), "the message")
        assert not app.messages.following

    run(body)


def test_the_work_for_a_first_look_does_not_grow_with_the_history() -> None:
    """The time itself is measured in benchmarks/streaming.py; here, what is made."""
    made: dict[int, int] = {}
    for count in (100, 2000):

        async def body(app: ConversationApp, pilot: Pilot[None], count: int = count) -> None:
            await app.messages.show(dialogue(count))
            await calm(app, pilot)
            made[count] = len(app.query(Widget))

        run(body, size=(120, 40))
    assert made[2000] <= made[100] + 5


def test_the_scrollbar_says_where_the_reader_is() -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(200))
        await until(pilot, lambda: scroll(app).max_scroll_y and at_end(app))
        assert scroll(app).vertical_scrollbar.position == scroll(app).scroll_y

    run(body)


def test_a_first_look_at_a_long_history_is_quick() -> None:
    seconds: list[float] = []

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        items = dialogue(2000)
        for _ in range(3):
            begin = time.thread_time()
            await app.messages.show(items)
            await pilot.pause()
            seconds.append(time.thread_time() - begin)
            assert "message 1999 line 2" in screen_text(app)

    run(body, size=(120, 40))
    assert min(seconds) < 0.6  # a quarter of it is usual; a machine of tests may be slow
