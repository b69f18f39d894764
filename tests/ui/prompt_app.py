"""An application that is a prompt, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Static

from chatpaged.setting_groups import KeySettings
from chatpaged.ui.widgets.completions import Completions
from chatpaged.ui.widgets.prompt import Prompt
from chatpaged.ui.widgets.prompt_area import PromptArea
from tests.ui.snapshots import until


class PromptApp(App[None]):
    """A prompt under something that fills the screen."""

    CSS = "#above { height: 1fr; padding: 1 2; color: $text-muted; } Prompt { margin: 0 1; }"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.prompt = Prompt(**arguments)
        self.sent: list[Prompt.Sent] = []
        self.returned: list[Prompt.Returned] = []
        self.edits = 0
        self.suspended = 0
        self.seen: list[str] = []

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static("The conversation is here."), id="above", can_focus=False)
        yield self.prompt

    def on_mount(self) -> None:
        self.prompt.focus_input()

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        self.sent.append(event)

    def on_prompt_returned(self, event: Prompt.Returned) -> None:
        self.returned.append(event)

    def on_prompt_edited(self) -> None:
        self.edits += 1

    @contextmanager
    def suspend(self) -> Iterator[None]:
        self.suspended += 1
        yield

    def action_see(self, key: str) -> None:
        self.seen.append(key)

    @property
    def area(self) -> PromptArea:
        return self.prompt.query_one(PromptArea)

    @property
    def completions(self) -> Completions:
        return self.prompt.query_one(Completions)

    @property
    def notices(self) -> list[str]:
        return [str(notice.message) for notice in self._notifications]

    def texts(self) -> list[str]:
        return [event.text for event in self.sent]


Test = Callable[[PromptApp, Pilot[None]], Awaitable[None]]


def in_app(test: Test, *, size: tuple[int, int] = (80, 24), keys: KeySettings | None = None, **more: Any) -> None:
    """Runs a test in such an application."""

    async def main() -> None:
        app = PromptApp(keys=keys, **more)
        async with app.run_test(size=size) as pilot:
            await test(app, pilot)

    asyncio.run(main())


def typed(app: PromptApp) -> str:
    return app.prompt.full_text()


async def write(app: PromptApp, pilot: Pilot[None], text: str) -> None:
    """Types a text, faster than `pilot.press` does."""
    before = typed(app)
    for character in text:
        app.post_message(Key(_character_to_key(character), character))
    await until(pilot, lambda: typed(app) != before and typed(app).endswith(text))


def burst(app: PromptApp, *keys: str) -> None:
    """Presses keys that arrive all together, as over a slow line."""
    for key in keys:
        character = key if len(key) == 1 else None
        app.post_message(Key(key if character is None else _character_to_key(key), character))
