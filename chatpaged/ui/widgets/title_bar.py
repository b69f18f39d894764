"""The line at the top: the chat in view, the model, and what the engine is doing."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatpaged.engine_host import HostState
from chatpaged.shown_text import shown
from chatpaged.ui.marked_text import MUTED

_MARKS = {
    HostState.LOADING: ("◌", "$text-warning"),
    HostState.READY: ("●", "$text-success"),
    HostState.FAILED: ("✗", "$text-error"),
    HostState.DEAD: ("✗", "$text-error"),
    HostState.CLOSED: ("○", MUTED),
}


_SAYS = {HostState.FAILED: "could not be loaded", HostState.DEAD: "has stopped"}


class _Model(Static):
    """The model's name; a click changes the model."""

    def on_click(self) -> None:
        """Asks for another model."""
        self.post_message(TitleBar.ModelClicked())


class TitleBar(Horizontal):
    """The line at the top."""

    DEFAULT_CSS = """
    TitleBar {
        height: 1;
        background: $panel;
        color: $foreground;
        & #app-name { width: auto; padding: 0 1; color: $text-primary; text-style: bold; }
        & #chat-title { width: 1fr; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & #private { width: auto; padding: 0 1; color: $text-muted; display: none; }
        & #unsaved { width: auto; padding: 0 1; color: $text-error; text-style: bold reverse; display: none; }
        & _Model { width: auto; max-width: 60%; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; pointer: pointer; }
        & _Model:hover { background: $foreground 10%; }
    }
    """

    class ModelClicked(Message):
        """The model is to be changed."""

    def compose(self) -> ComposeResult:
        """From left to right."""
        yield Static("chatpaged", id="app-name")
        yield Static("", id="chat-title", markup=False)
        yield Static("private", id="private", markup=False)
        yield Static("not saved", id="unsaved", markup=False)
        yield _Model("", id="model-name", markup=False)

    def show_chat(self, title: str) -> None:
        """Names the chat in view."""
        self.query_one("#chat-title", Static).update(Content(shown(" ".join(title.split()))))

    def show_private(self, *, private: bool) -> None:
        """Says that nothing computed is shared with other chats, or reaches a disk."""
        self.query_one("#private").display = private

    def show_unsaved(self, *, unsaved: bool) -> None:
        """Says that what is said cannot be kept."""
        for mark in self.query("#unsaved"):  # it may not be there yet, or not any more
            mark.display = unsaved

    def show_engine(self, name: str, state: HostState, status: str) -> None:
        """Names the model and says what the engine is doing."""
        mark, style = _MARKS[state]
        says = status if state is HostState.LOADING else _SAYS.get(state, "")
        text = shown(says if name in says else f"{name} {says}".strip())
        self.query_one("#model-name", Static).update(Content.assemble((f"{mark} ", style), " ".join(text.split())))
