"""A small application around a screen, and conversations for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from chatpaged.chat import Chat
from chatpaged.conversation import Conversation, Node
from chatpaged.workspace import Workspace
from tests.scripted_backend import ScriptedBackend

UNANSWERED = object()
"""The result of a screen that has not been closed."""


class ScreenHost(App[None]):
    """Something to be dimmed, and what a screen has given."""

    def __init__(self) -> None:
        super().__init__()
        self.result: Any = UNANSWERED

    def compose(self) -> ComposeResult:
        yield Button("Behind", id="behind")
        yield Static("What lies behind it. " * 100)

    def open(self, screen: ModalScreen[Any]) -> None:
        self.result = UNANSWERED
        self.push_screen(screen, lambda result: setattr(self, "result", result))


@asynccontextmanager
async def shown_screen(
    make: Callable[[], ModalScreen[Any]], size: tuple[int, int] = (100, 30)
) -> AsyncIterator[tuple[ScreenHost, Pilot[None]]]:
    """An application that shows a screen."""
    app = ScreenHost()
    async with app.run_test(size=size) as pilot:
        app.query_one("#behind").focus()
        app.open(make())
        await pilot.pause()
        for field in app.screen.query("Input, TextArea"):
            field.cursor_blink = False  # type: ignore[attr-defined] # both have it; pictures are to be the same at any moment
        yield app, pilot


@asynccontextmanager
async def workspace_of(backend: ScriptedBackend) -> AsyncIterator[Workspace]:
    """A workspace that is closed at the end, whatever was held back."""
    workspace = Workspace(backend, None)
    try:
        yield workspace
    finally:
        backend.pace.free()
        backend.loaded.set()
        await workspace.close()


async def answered(workspace: Workspace, chat: Chat, text: str, *, n: int = 1) -> None:
    """Says something and waits for its answers."""
    workspace.send(chat, text, n=n)
    await idle(chat)


async def idle(chat: Chat) -> None:
    """Waits until nothing is being written."""
    while chat.is_busy:  # noqa: ASYNC110 - a test waits for whatever it likes
        await asyncio.sleep(0.002)


def forked_conversation(now: float) -> Conversation:
    """A conversation with branches, told by the hour."""
    conversation = Conversation(session_id="tree")
    said: list[Node] = []

    def say(role: str, text: str, parent: Node | None, tokens: tuple[int, int] | None = None) -> Node:
        usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]} if tokens is not None else {}
        node = Node(
            id=f"n{len(said)}",
            parent=parent.id if parent is not None else None,
            role=role,
            content=text,
            created=now - 3600 * (30 - len(said)),
            usage=usage,
            finish_reason="stop" if role == "assistant" else "",
        )
        said.append(conversation.add(node))
        return node

    ask = say("user", "I want to bake a bread without kneading. What do I need?", None)
    first = say("assistant", "Flour, water, salt, very little yeast, and twelve hours of patience.", ask, (40, 120))
    how_much = say("user", "How much of each for one loaf?", first)
    grams = say("assistant", "400 g flour, 300 g water, 8 g salt, 1 g yeast.", how_much, (180, 60))
    say("assistant", "For a small pan: 300 g flour, 225 g water, 6 g salt and a pinch of yeast.", how_much, (180, 52))
    bake = say("user", "And how hot is the oven?", grams)
    hot = say("assistant", "As hot as it gets: 250 °C, with the pot inside from the beginning.", bake, (260, 44))
    gas = say("user", "Mine is a gas oven, does that change anything?", grams)
    say("assistant", "Gas browns less from above. Move the pot up for the last ten minutes.", gas, (265, 71))
    rye = say("user", "Could I use rye instead?", hot)
    say("assistant", "Up to a third of the flour; more of it makes the crumb dense.", rye, (320, 38))
    cups = say("user", "How much of each for one loaf, in cups?", first)
    say("assistant", "3 cups flour, 1¼ cups water, 1½ teaspoons salt, ¼ teaspoon yeast.", cups, (182, 57))
    conversation.branch("n10")
    return conversation
