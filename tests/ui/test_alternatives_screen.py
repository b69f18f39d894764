"""One prompt, several answers side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from chatpaged.answer_board import AnswerState
from chatpaged.chat import Chat
from chatpaged.ui.screens.alternatives import AlternativesScreen
from chatpaged.ui.widgets.answer_body import AnswerBody
from chatpaged.workspace import Workspace
from tests.scripted_backend import ScriptedBackend
from tests.ui.conftest import Snapshot
from tests.ui.hosts import UNANSWERED, ScreenHost, answered, idle, shown_screen, workspace_of
from tests.ui.snapshots import until

POEMS = (
    "A bicycle remembers every road\nit ever rolled along; the bell\nis how it clears its throat.",
    "Two wheels, one idea:\nto fall, forever, forward.",
    "Chain, oil, Sunday. The hill says no,\nthe legs say soon, the wind says nothing\nand means it.",
)
QUESTION = "Write a short poem about a bicycle."


class World:
    """The screen with a chat behind it."""

    def __init__(self, app: ScreenHost, pilot: Pilot[None], workspace: Workspace, chat: Chat, backend: ScriptedBackend) -> None:
        self.app, self.pilot, self.workspace, self.chat, self.backend = app, pilot, workspace, chat, backend
        self._let = 0

    @property
    def screen(self) -> AlternativesScreen:
        screen = self.app.screen
        assert isinstance(screen, AlternativesScreen)
        return screen

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.screen.board.answers]

    @property
    def states(self) -> list[AnswerState]:
        return [answer.state for answer in self.screen.board.answers]

    @property
    def titles(self) -> list[str]:
        return [str(column.border_title) for column in self.screen.columns]

    async def until(self, condition: Callable[[], object]) -> None:
        await until(self.pilot, condition)

    async def step_until(self, condition: Callable[[], object]) -> None:
        """Lets the engine go on step by step until something holds."""

        def step() -> bool:
            pace = self.backend.pace
            if not condition() and pace.begun > self._let:  # the last one was done: a slow engine is let no more than it has asked for
                self._let = pace.begun
                pace.let(1)
            return bool(condition())

        await self.until(step)

    async def all_there(self) -> None:
        await self.until(lambda: not self.chat.is_busy)
        await self.until(lambda: AnswerState.WRITING not in self.states and len(self.titles) == len(self.texts))

    async def drawn(self) -> None:
        await self.until(lambda: all(body.is_drawn for body in self.screen.query(AnswerBody)))

    def leaf(self) -> str:
        leaf = self.chat.conversation.leaf
        return leaf.content if leaf is not None else ""


@asynccontextmanager
async def world(
    *, n: int = 3, size: tuple[int, int] = (110, 30), hold: bool = False, answers: tuple[str, ...] = POEMS, before: bool = False
) -> AsyncIterator[World]:
    """The screen over a question that is being answered, or that has been."""
    backend = ScriptedBackend(lambda index: answers[index % len(answers)])
    async with workspace_of(backend) as workspace:
        chat = workspace.new_chat()
        await workspace.host.wait_model()
        if hold:
            backend.pace.hold()
        if before:
            await answered(workspace, chat, QUESTION, n=n)
            question = chat.conversation.path()[0].id
        else:
            workspace.send(chat, QUESTION, n=n)
            question = None
        async with shown_screen(lambda: AlternativesScreen(workspace, chat, question), size) as (app, pilot):
            yield World(app, pilot, workspace, chat, backend)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_answers_grow_side_by_side_and_one_is_taken(snapshot: Snapshot) -> None:
    async def main() -> None:
        async with world(hold=True) as at:
            await at.step_until(lambda: at.screen.board.sharing)
            at.backend.pace.free()
            await at.all_there()
            assert at.texts == list(POEMS)
            assert at.states == [AnswerState.DONE] * 3
            await at.pilot.press("right")
            await at.until(lambda: at.titles == ["1/3", "▶ 2/3", "3/3"])
            assert at.app.focused is at.screen.columns[1]
            await at.until(lambda: "blocks shared by 3 answers" in at.screen.summary)
            await at.pilot.pause()
            await at.drawn()
            snapshot(at.app, "alternatives")
            await at.pilot.press("enter")
            await at.until(lambda: at.app.result is not UNANSWERED)
            assert at.leaf() == POEMS[1]
            assert at.app.result == at.chat.conversation.path()[-1].id
            assert at.app.focused is at.app.query_one("#behind")

    run(main())


def test_one_prompt_is_read_for_all_and_that_is_told() -> None:
    async def main() -> None:
        async with world(hold=True) as at:
            await at.step_until(lambda: at.screen.board.sharing is not None and at.states == [AnswerState.WRITING] * 3)
            sharing = at.screen.board.sharing
            assert sharing is not None
            assert at.chat.reply is not None
            prompt = len(at.chat.reply.draft.prompt.token_ids)
            blocks = prompt // 16
            assert (sharing.answers, sharing.prompt_tokens, sharing.blocks) == (3, prompt, blocks)
            assert sharing.saved_bytes == 2 * blocks * 720 * 1024
            await at.step_until(lambda: f"{blocks} blocks shared by 3 answers · saved" in at.screen.summary)
            # What has come so far is there, and no piece of it twice.
            await at.step_until(lambda: len(at.texts[0]) > 20)
            assert all(poem.startswith(text) for poem, text in zip(POEMS, at.texts, strict=True))
            await at.step_until(lambda: AnswerState.DONE in at.states)
            assert "tok/s" in "".join(str(column.border_subtitle) for column in at.screen.columns)
            at.backend.pace.free()
            await at.all_there()
            assert at.texts == list(POEMS)
            assert at.screen.board.sharing is not None
            assert at.screen.board.sharing.answers == 3

    run(main())


def test_escape_stops_first_and_closes_then() -> None:
    async def main() -> None:
        async with world(hold=True, answers=("word " * 200,)) as at:
            await at.step_until(lambda: len(at.texts) == 3 and all(at.texts))
            await at.pilot.press("escape")
            at.backend.pace.free()
            await at.all_there()
            assert at.states == [AnswerState.STOPPED] * 3
            assert all(len(text) < 900 for text in at.texts)
            assert at.app.result is UNANSWERED
            leaf = at.leaf()
            await at.pilot.press("right", "escape")
            await at.until(lambda: at.app.result is None)
            assert at.leaf() == leaf

    run(main())


def test_an_answer_that_is_being_written_is_taken_when_it_is_whole() -> None:
    async def main() -> None:
        async with world(hold=True, answers=("long " * 100, "short")) as at:
            await at.step_until(lambda: len(at.texts) == 3 and all(at.texts))
            await at.pilot.press("2", "enter")
            await at.until(lambda: "taken when it is whole" in at.titles[1])
            # Step by step: the long ones must not end before they are stopped.
            await at.step_until(lambda: at.app.result is not UNANSWERED)
            assert at.leaf() == "short"
            assert [node.finish_reason for node in at.chat.conversation.siblings(at.app.result)] == ["cancelled", "stop", "cancelled"]

    run(main())


def test_asked_for_again_it_is_taken_as_it_is() -> None:
    async def main() -> None:
        async with world(hold=True, answers=("long " * 200,)) as at:
            await at.step_until(lambda: len(at.texts) == 3 and all(at.texts))
            await at.pilot.press("3", "enter", "enter")
            at.backend.pace.free()
            await at.until(lambda: at.app.result is not UNANSWERED)
            siblings = at.chat.conversation.siblings(at.app.result)
            assert siblings[2].id == at.app.result
            assert siblings[2].finish_reason == "cancelled"

    run(main())


def test_answers_that_are_there_are_shown_with_the_one_in_view_and_more_can_be_had() -> None:
    async def main() -> None:
        async with world(before=True) as at:
            await at.until(lambda: at.titles == ["▶ 1/3", "2/3", "3/3"])
            assert at.texts == list(POEMS)
            assert at.screen.summary.startswith("3 answers to one prompt of ")
            await at.pilot.press("m")
            await at.until(lambda: len(at.texts) == 6 and not at.chat.is_busy)
            await at.until(lambda: at.texts == list(POEMS) * 2 and len(at.titles) == 6)
            await at.pilot.press("5")
            await at.until(lambda: at.titles[4] == "▶ 5/6")
            await at.pilot.press("enter")
            await at.until(lambda: at.app.result is not UNANSWERED)
            assert at.leaf() == POEMS[1]
            assert at.chat.conversation.siblings(at.app.result)[4].id == at.app.result

    run(main())


def test_mouse_and_small_window(snapshot: Snapshot) -> None:
    async def main() -> None:
        async with world(size=(40, 12), before=True) as at:
            await at.until(lambda: at.titles == ["▶ 1/3", "2/3", "3/3"])
            assert {column.size.width for column in at.screen.columns} == {at.screen.columns[0].size.width}
            await at.pilot.press("right", "right")
            await at.until(lambda: at.titles[2] == "▶ 3/3")
            await at.until(lambda: at.screen.columns[2].region.right <= 40 and at.screen.columns[2].region.x >= 0)
            await at.drawn()
            snapshot(at.app, "alternatives-40x12")
            await at.pilot.click(at.screen.columns[2], times=2)
            await at.until(lambda: at.app.result is not UNANSWERED)
            assert at.leaf() == POEMS[2]

    run(main())


def test_whoever_reads_further_up_is_left_alone() -> None:
    async def main() -> None:
        async with world(n=1, size=(60, 14), hold=True, answers=("\n".join(f"line {i}" for i in range(60)),)) as at:
            await at.step_until(lambda: "line 30" in "".join(at.texts))
            column = at.screen.columns[0]
            await at.until(lambda: column.max_scroll_y > 10 and column.scroll_y == column.max_scroll_y)
            await at.pilot.press("pageup")
            where = column.scroll_y
            assert where < column.max_scroll_y
            await at.step_until(lambda: "line 45" in at.texts[0])
            await at.until(lambda: column.max_scroll_y > 30)
            assert column.scroll_y == where

    run(main())


def test_an_engine_that_dies_leaves_what_has_come() -> None:
    async def main() -> None:
        async with world(hold=True, answers=("word " * 100,)) as at:
            await at.step_until(lambda: len(at.texts) == 3 and all(at.texts))
            at.backend.pace.crash = RuntimeError("out of memory")
            at.backend.pace.free()
            await idle(at.chat)
            await at.until(lambda: at.states == [AnswerState.FAILED] * 3)
            assert all(at.texts)
            await at.pilot.press("escape")
            await at.until(lambda: at.app.result is None)

    run(main())
