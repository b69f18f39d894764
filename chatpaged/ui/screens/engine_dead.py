"""The engine has stopped, or could not be loaded: what can be done."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from chatpaged.amounts import counted
from chatpaged.shown_text import shown
from chatpaged.ui.screens.dialog import Dialog, Hint

WhatNow = Literal["reload", "model", "stay"]


class EngineDeadScreen(Dialog[WhatNow]):
    """The screen. Its result is what to do; Esc stays without an engine."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]
    DEFAULT_CSS = """
    EngineDeadScreen {
        & > Frame { max-width: 76; border: round $error; border-title-color: $text-error; }
        & #reason { height: auto; max-height: 12; margin-bottom: 1; }
        & #reassurance { height: auto; color: $text-muted; margin-bottom: 1; }
        & #buttons { height: auto; }
        &.-narrow #buttons { layout: vertical; }
        &.-narrow #reason { max-height: 3; }
        &.-narrow #reassurance { margin-bottom: 0; }
    }
    """

    def __init__(self, reason: str, can_reload: bool = True, *, kept: int = 0, was_loaded: bool = True) -> None:  # noqa: FBT001, FBT002 - one question
        """Tells of it.

        Args:
            reason: why.
            can_reload: whether loading it again may help.
            kept: answers that were being written, and are kept as far as they had come.
            was_loaded: it has worked before; False for a model that could not be loaded.
        """
        super().__init__("The engine has stopped" if was_loaded else "The model could not be loaded")
        self._reason = reason
        self._can_reload = can_reload
        self._kept = kept
        self._was_loaded = was_loaded

    def compose_body(self) -> ComposeResult:
        """Why, what is not lost, and what can be done."""
        with VerticalScroll(id="reason", can_focus=False):
            yield Static(Content(shown(self._reason)))
        yield Static(Content(self._reassurance()), id="reassurance")
        with Horizontal(id="buttons"):
            if self._can_reload:
                yield Button("Load it again" if self._was_loaded else "Try again", id="reload")
            yield Button("Choose another model", id="model")
            yield Button("Stay without", id="stay")

    def on_mount(self) -> None:
        """The first way out is the one Enter takes."""
        self.query(Button).first().focus()

    @property
    def hints(self) -> tuple[Hint, ...]:
        """Keys of the buttons."""
        return (("Enter", "take", ""), ("←→", "choose", ""), ("Esc", "stay without", "close"))

    def _reassurance(self) -> str:
        if not self._kept:
            return "Nothing is lost: every chat is kept." if self._was_loaded else "Chats can be read and searched without a model."
        was = "was" if self._kept == 1 else "were"
        return f"Nothing is lost: {counted(self._kept, 'answer')} {was} kept as far as {'it' if self._kept == 1 else 'they'} had come."

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(cast(WhatNow, event.button.id))

    def action_close(self) -> None:
        """Stays without an engine."""
        self.dismiss("stay")
