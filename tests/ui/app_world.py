"""The whole application on a scripted engine, for tests that use it by keys and clicks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from chatpaged.backends import Backend
from chatpaged.chat import Chat, ChatState
from chatpaged.engine_host import HostState
from chatpaged.errors import StoreError
from chatpaged.setting_groups import AppSettings, KeySettings
from chatpaged.store_background import BackgroundStore
from chatpaged.ui.app import AppParts, ChatpagedApp
from chatpaged.ui.screens.main import MainScreen
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.workspace import Workspace
from tests.scripted_backend import ScriptedBackend
from tests.ui.snapshots import until


@dataclass
class AppWorld:
    """The application, and the hands on its keys."""

    app: ChatpagedApp
    pilot: Pilot[Any]
    backend: ScriptedBackend

    @property
    def main(self) -> MainScreen:
        """The main screen, also while another one lies over it."""
        assert self.app.main is not None
        return self.app.main

    @property
    def workspace(self) -> Workspace:
        return self.app.workspace

    @property
    def pane(self) -> ChatPane:
        return self.main.active

    @property
    def chat(self) -> Chat:
        return self.pane.chat

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        await until(self.pilot, condition, what)

    async def type(self, text: str) -> None:
        """Types a text as one piece, as a paste of one line is."""
        self.pane.prompt.set_text(text)
        await self.pilot.pause()

    async def send(self, text: str, *, wait: bool = True) -> Chat:
        """Types a text and presses Enter. Waits for the answer."""
        chat = self.chat
        await self.type(text)
        await self.pilot.press("enter")
        if wait:
            await self.until(lambda: not chat.is_empty or chat.is_busy)
            await self.idle(chat)
        return chat

    async def send_held(self, text: str) -> Chat:
        """Sends a text whose answer waits for each step until the test lets it happen (`backend.pace.let`, or `free` for the rest)."""
        self.backend.pace.hold()
        chat = await self.send(text, wait=False)
        await self.until(lambda: chat.state is ChatState.WAITING)
        return chat

    async def idle(self, chat: Chat) -> None:
        await self.until(lambda: not chat.is_busy and not chat.queue, "the answer")
        await self.shown(chat)

    async def shown(self, chat: Chat) -> None:
        """Waits until the pane shows the messages of the chat."""
        pane = self.main.pane_of(chat.id)
        if pane is not None:
            path = [node.id for node in chat.conversation.path()]
            await self.until(lambda: [item.node.id for item in pane.messages.items] == path, "the messages")

    async def command(self, line: str) -> None:
        """Types a command and presses Enter."""
        await self.type(line)
        await self.pilot.press("enter")
        await self.pilot.pause()

    def contents(self, chat: Chat | None = None) -> list[str]:
        return [node.content for node in (chat if chat is not None else self.chat).conversation.path()]

    @property
    def notices(self) -> list[str]:
        return [str(notice.message) for notice in self.app._notifications]

    def text_of(self, selector: str) -> str:
        return str(self.main.query_one(selector, Static).render())


@asynccontextmanager
async def open_app(
    backend: ScriptedBackend | None = None,
    *,
    path: Path | None = None,
    size: tuple[int, int] = (140, 40),
    ready: bool = True,
    notifications: bool = False,
    settings: AppSettings | None = None,
    keys: KeySettings | None = None,
    backend_for: Callable[[str], Backend] | None = None,
    **parts: Any,
) -> AsyncGenerator[AppWorld, None]:
    """Opens the application, and keeps nothing unless a path for the store is given."""
    backend = backend if backend is not None else ScriptedBackend()
    failures: list[StoreError] = []
    store = parts.pop("store", None)
    own = BackgroundStore(path, on_error=failures.append) if path is not None else None
    store = own if own is not None else store
    made = AppParts(
        backend=backend,
        backend_for=backend_for if backend_for is not None else lambda name: ScriptedBackend(f"I am {name}.", name=name),
        store=store,
        settings=settings if settings is not None else AppSettings(),
        keys=keys if keys is not None else KeySettings(),
        **parts,
    )
    app = ChatpagedApp(made)
    async with app.run_test(size=size, notifications=notifications) as pilot:
        world = AppWorld(app, pilot, backend)
        try:
            if ready:
                await world.until(lambda: world.workspace.host.state is HostState.READY, "the engine")
            yield world
        finally:
            backend.pace.free()
            backend.loaded.set()
            await app.wind_up()
            if own is not None:
                await asyncio.to_thread(own.close)
                assert failures == []


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a test's scenario."""
    asyncio.run(scenario)
