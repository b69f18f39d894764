"""Asks for a line, or for a longer text."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Button, Input, Static, TextArea

from chatpaged.shown_text import shown
from chatpaged.ui.screens.dialog import Dialog, Hint


class AskTextScreen(Dialog[str]):
    """The screen. Its result is the text, which may be empty; None if nothing is to be changed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s,ctrl+enter", "keep", "Keep", show=False, priority=True)]
    DEFAULT_CSS = """
    AskTextScreen {
        & > Frame { max-width: 76; }
        & #about { color: $text-muted; margin-bottom: 1; height: auto; }
        & TextArea, & TextArea:focus { height: 10; max-height: 50vh; border: none; padding: 0 1; background: $foreground 5%; }
        & #buttons { height: auto; align-horizontal: right; margin-top: 1; }
        & Button { margin-left: 2; margin-right: 0; }
        & #keep { background: $primary 40%; }
        & #keep:focus { background: $primary; }
        &.-narrow #about { margin-bottom: 0; }
        &.-narrow TextArea { height: 1fr; min-height: 3; }
        &.-narrow #buttons { margin-top: 0; }
    }
    """

    def __init__(self, heading: str, text: str = "", placeholder: str = "", *, about: str = "", multi_line: bool = False) -> None:
        """Asks.

        Args:
            heading: what is asked for.
            text: what it is now.
            placeholder: what is shown while it is empty.
            about: a sentence above it.
            multi_line: it may have several lines.
        """
        super().__init__(heading)
        self._multi_line = multi_line
        self._about = Static(Content(shown(about)), id="about")
        self._about.display = bool(about)
        self._text = text
        self._placeholder = placeholder

    def compose_body(self) -> ComposeResult:
        """The text and two buttons."""
        yield self._about
        if self._multi_line:
            yield TextArea(self._text, placeholder=self._placeholder, id="text", show_line_numbers=False, tab_behavior="focus")
        else:
            yield Input(self._text, placeholder=self._placeholder, id="text", select_on_focus=True)
        with Horizontal(id="buttons"):
            yield Button("Cancel", id="cancel")
            yield Button("Keep", id="keep")

    def on_mount(self) -> None:
        """The text is typed at once."""
        field = self.query_one("#text")
        if isinstance(field, TextArea):
            field.move_cursor(field.document.end)
        field.focus()

    @property
    def hints(self) -> tuple[Hint, ...]:
        """How it ends."""
        return (("Ctrl+S" if self._multi_line else "Enter", "keep", "keep"), ("Esc", "cancel", "close"))

    @property
    def text(self) -> str:
        """What it is by now."""
        field = self.query_one("#text")
        return field.text if isinstance(field, TextArea) else field.value if isinstance(field, Input) else ""

    @on(Input.Submitted)
    @on(Button.Pressed, "#keep")
    def action_keep(self) -> None:
        """Gives the text."""
        self.dismiss(self.text)

    @on(Button.Pressed, "#cancel")
    def action_close(self) -> None:
        """Changes nothing."""
        self.dismiss(None)
