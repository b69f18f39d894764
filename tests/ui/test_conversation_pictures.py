"""Pictures of conversations. They were looked at before they were kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from chatpaged.ui.widgets.folded import Thinking
from chatpaged.ui.widgets.message import MessageView
from chatpaged.ui.widgets.message_scroll import MessageScroll
from tests.ui.conftest import Snapshot
from tests.ui.conversations import ANSWER, CREATED, ConversationApp, dialogue, message, screen_text
from tests.ui.snapshots import until

Body = Callable[[ConversationApp, Pilot[None]], Awaitable[None]]
USAGE = {"cached_tokens": 1204, "prefill_tokens": 31, "time_to_first_token": 0.18, "tokens_per_second": 62.0}
QUESTION = message("q", "user", "How do I say hello in Python?\nAnd what would a table look like?", created=CREATED)


def run(body: Body, size: tuple[int, int] = (100, 40)) -> None:
    async def main() -> None:
        app = ConversationApp()
        async with app.run_test(size=size) as pilot:
            await body(app, pilot)

    asyncio.run(main())


async def calm(app: ConversationApp, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: not [worker for worker in app.workers if worker.group == "colour" and not worker.is_finished])
    await until(pilot, lambda: not app.messages._wake.is_set() and not app.messages._busy.locked())


def test_an_answer_with_code(snapshot: Snapshot) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        answer = message("a", "assistant", ANSWER, created=CREATED, usage=USAGE)
        await app.messages.show([QUESTION, answer], system="You are a helpful assistant. Answer shortly.")
        await calm(app, pilot)
        snapshot(app, "code_block")

    run(body)


def test_a_long_history(snapshot: Snapshot) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show(dialogue(2000))
        await until(pilot, lambda: "message 1999" in screen_text(app))
        await calm(app, pilot)
        snapshot(app, "long_history")

    run(body, size=(100, 30))


def test_an_answer_that_grows(snapshot: Snapshot) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([*dialogue(4), QUESTION])
        await app.messages.begin(message("a", "assistant", "", created=CREATED))
        app.messages.feed("a", ANSWER)
        await until(pilot, lambda: "Done." in screen_text(app))
        await calm(app, pilot)
        app.query_one(MessageScroll).action_page_up()
        app.messages.feed("a", " Not yet: there is **more** to come.\n\n```python\nimport this")
        await until(pilot, lambda: "↓ new" in screen_text(app))
        await calm(app, pilot)
        snapshot(app, "streaming_message")

    run(body, size=(100, 30))


def test_thinking(snapshot: Snapshot) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        thoughts = "The user wants a greeting.\n\nPython has print(). I should show a function as well, so that it can be used again."
        done = message("a", "assistant", "Use `print`.", reasoning=thoughts, created=CREATED, usage=USAGE)
        again = message("q2", "user", "And in French?", created=CREATED)
        await app.messages.show([QUESTION, done, again])
        app.query_one(Thinking).toggle()
        await app.messages.begin(message("b", "assistant", "", created=CREATED))
        app.messages.feed("b", "", "Bonjour is the word. Let me see how it is")
        await until(pilot, lambda: "Let me see how it is" in screen_text(app))
        await calm(app, pilot)
        snapshot(app, "reasoning")

    run(body, size=(100, 26))


@pytest.mark.parametrize(("name", "size"), [("message_actions", (110, 24)), ("message_actions_narrow", (60, 20))])
def test_what_can_be_done_with_a_message(snapshot: Snapshot, name: str, size: tuple[int, int]) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        usage = {**USAGE, "rereads": [{"reason": "evicted", "tokens": 640}], "left_out": 3}
        text = "Say **hello** with `print`:\n\n```python\nprint('hello')\n```"
        answer = message("a", "assistant", text, position=2, siblings=3, created=CREATED, usage=usage, finish_reason="length")
        await app.messages.show([QUESTION, answer])
        app.messages.focus_last()
        await until(pilot, lambda: isinstance(app.focused, MessageView))
        await calm(app, pilot)
        snapshot(app, name)

    run(body, size=size)


@pytest.mark.parametrize("theme", ["textual-light", "nord", "ansi-dark"])
def test_other_themes(snapshot: Snapshot, theme: str) -> None:
    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        app.theme = theme
        await app.messages.show([QUESTION, message("a", "assistant", ANSWER, reasoning="Hm.", created=CREATED, usage=USAGE)])
        app.messages.focus_last()
        await until(pilot, lambda: isinstance(app.focused, MessageView))
        await calm(app, pilot)
        snapshot(app, f"conversation_{theme}")

    run(body)


def test_without_colours_everything_can_be_told_apart(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def body(app: ConversationApp, pilot: Pilot[None]) -> None:
        await app.messages.show([QUESTION, message("a", "assistant", ANSWER, created=CREATED, usage=USAGE)])
        await calm(app, pilot)
        snapshot(app, "conversation_monochrome")

    run(body)
