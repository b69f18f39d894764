"""The text of an answer beside others, while it grows."""

from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from chatpaged.answer_board import Answer, AnswerState
from chatpaged.ui.widgets.answer_body import AnswerBody
from chatpaged.ui.widgets.folded import Thinking
from tests.ui.snapshots import until


class Host(App[None]):
    def compose(self) -> ComposeResult:
        yield AnswerBody()


def answer(text: str, reasoning: str = "", *, done: bool = False) -> Answer:
    return Answer(0, "node", text, reasoning, AnswerState.DONE if done else AnswerState.WRITING)


def seen(app: App[None]) -> str:
    width, height = app.size
    return "\n".join("".join(segment.text for segment in app.screen._compositor.render_strips()[y]).rstrip() for y in range(height))[
        : width * height
    ]


async def show(app: App[None], pilot: Pilot[None], *answers: Answer) -> str:
    body = app.query_one(AnswerBody)
    for each in answers:
        body.show_answer(each)
    await until(pilot, lambda: body.is_drawn)
    return seen(app)


def test_markdown_grows_and_ends_as_the_whole_text() -> None:
    async def main() -> None:
        app = Host()
        async with app.run_test(size=(60, 20)) as pilot:
            text = "# Title\n\nSome **bold** words\n\n- one\n- two\n"
            pieces = [answer(text[:end]) for end in range(0, len(text), 5)]
            grown = await show(app, pilot, *pieces)
            assert "Title" in grown
            assert "bold" in grown
            assert "**" not in await show(app, pilot, answer(text, done=True))
            assert "two" in seen(app)

    asyncio.run(main())


def test_thinking_stands_folded_before_the_text() -> None:
    async def main() -> None:
        app = Host()
        async with app.run_test(size=(60, 20)) as pilot:
            assert not app.query_one(Thinking).display
            await show(app, pilot, answer("", "First I"))
            assert app.query_one(Thinking).display
            said = await show(app, pilot, answer("Answer.", "First I think.", done=True))
            assert "Answer." in said
            assert said.index("hought") < said.index("Answer.")

    asyncio.run(main())


def test_an_answer_that_goes_on_after_its_end_is_shown_whole() -> None:
    async def main() -> None:
        app = Host()
        async with app.run_test(size=(60, 20)) as pilot:
            await show(app, pilot, answer("It was a dark", done=True))
            said = await show(app, pilot, answer("It was a dark and stormy"))
            assert said.count("It was a dark and stormy") == 1
            assert "It was a dark and stormy night." in await show(app, pilot, answer("It was a dark and stormy night.", done=True))
            assert "Another text" in await show(app, pilot, answer("Another text", done=True))

    asyncio.run(main())
