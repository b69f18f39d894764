"""Every screen in windows of all sizes, and while these change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual.geometry import Size
from textual.screen import ModalScreen

from chatpaged.choices import Choice
from chatpaged.conversation import Conversation
from chatpaged.store import SearchHit
from chatpaged.ui.screens.alternatives import AlternativesScreen
from chatpaged.ui.screens.ask_text import AskTextScreen
from chatpaged.ui.screens.choose import ChooseScreen
from chatpaged.ui.screens.dialog import Frame
from chatpaged.ui.screens.engine_dead import EngineDeadScreen
from chatpaged.ui.screens.find import FindScreen
from chatpaged.ui.screens.help import HelpScreen
from chatpaged.ui.screens.log import LogScreen
from chatpaged.ui.screens.tree import TreeScreen
from chatpaged.workspace import Workspace
from tests.scripted_backend import ScriptedBackend
from tests.ui.hosts import UNANSWERED, ScreenHost, answered, shown_screen, workspace_of
from tests.ui.snapshots import until
from tests.ui.test_help_and_log import Lines

Make = Callable[[Workspace], ModalScreen[Any]]


async def search(text: str) -> Sequence[SearchHit]:
    return [SearchHit(session="s", title="long title " * 20, message="m", role="user", created=0.0, excerpt=f"{text} " * 20)]


def the_chat(workspace: Workspace) -> Any:
    return next(iter(workspace.chats.values()))


MODELS = [Choice(f"model {number}", f"model {number} " * 9, "note " * 9) for number in range(99)]
SCREENS: dict[str, Make] = {
    "alternatives": lambda workspace: AlternativesScreen(workspace, the_chat(workspace), the_chat(workspace).conversation.path()[0].id),
    "tree": lambda workspace: TreeScreen(workspace, the_chat(workspace)),
    "find": lambda workspace: FindScreen(search, text="word"),
    "choose": lambda workspace: ChooseScreen("Model", MODELS, free_text="x"),
    "ask": lambda workspace: AskTextScreen("heading " * 30, "text " * 99),
    "ask long": lambda workspace: AskTextScreen("heading", "text\n" * 99, about="about " * 99, multi_line=True),
    "log": lambda workspace: LogScreen(Lines(*("line " * i for i in range(300)))),
    "help": lambda workspace: HelpScreen({}, [("/command " * 5, "help " * 30)]),
    "dead": lambda workspace: EngineDeadScreen("reason " * 200, kept=12),
}


@pytest.mark.parametrize("name", SCREENS)
def test_no_size_breaks_it_and_escape_closes_it(name: str) -> None:
    async def main() -> None:
        async with workspace_of(ScriptedBackend("word " * 60)) as workspace:
            chat = workspace.new_chat()
            await answered(workspace, chat, "What? " * 50, n=3)
            async with shown_screen(lambda: SCREENS[name](workspace), (20, 5)) as (app, pilot):
                for width, height in ((300, 100), (40, 12), (71, 20), (72, 21), (10, 3), (110, 30)):
                    await pilot.resize_terminal(width, height)
                    size = Size(width, height)
                    await until(pilot, lambda: app.screen.size == size)  # noqa: B023 - it is waited for here
                    assert app.screen.query_one(Frame).region.width <= width
                await closed(app, pilot)

    async def closed(app: ScreenHost, pilot: Any) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: app.result is not UNANSWERED)
        assert app.focused is app.query_one("#behind")

    asyncio.run(main())


def test_an_empty_conversation_has_an_empty_tree() -> None:
    async def main() -> None:
        async with workspace_of(ScriptedBackend()) as workspace:
            chat = workspace.new_chat()
            assert chat.conversation.nodes == Conversation().nodes
            async with shown_screen(lambda: TreeScreen(workspace, chat)) as (app, pilot):
                await pilot.press("down", "enter", "b", "end")
                assert app.result is UNANSWERED

    asyncio.run(main())
