"""What all screens beside the main one have in common: a frame over a dimmed background, hints in its border, Esc closes."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click, Resize
from textual.screen import ModalScreen
from textual.style import Style

from chatpaged.shown_text import shown
from chatpaged.ui.screens.closes_once import ClosesOnce

ResultT = TypeVar("ResultT")
Hint = tuple[str, str, str]
"""A key, what it does, and the action that a click on it takes; empty takes none."""
_BETWEEN = "  "


class Frame(Vertical):
    """The frame of a dialog."""


class Dialog(ClosesOnce, ModalScreen[ResultT | None], Generic[ResultT]):
    """A screen over the one before it. Esc, or a click outside, closes it without a result."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - so declared by Textual
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close", show=False)]
    HINTS: ClassVar[tuple[Hint, ...]] = (("Esc", "close", "close"),)

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 65%;
        & > Frame {
            width: 90%;
            max-width: 100;
            height: auto;
            max-height: 90%;
            padding: 1 2;
            background: $surface;
            border: round $primary;
            border-title-color: $text-primary;
            border-title-style: bold;
            border-subtitle-color: $text-muted;
        }
        &.-narrow > Frame { width: 100%; max-height: 100%; padding: 0 1; }
        & Input, & Input:focus { height: 1; border: none; padding: 0 1; background: $foreground 8%; }
        & > Frame, & > Frame * {
            scrollbar-color: $foreground 25%;
            scrollbar-color-hover: $foreground 40%;
            scrollbar-color-active: $primary;
            scrollbar-background: $surface;
            scrollbar-background-hover: $surface;
            scrollbar-background-active: $surface;
            scrollbar-corner-color: $surface;
        }
        & Button {
            height: 1;
            min-width: 10;
            margin-right: 2;
            border: none !important;
            background: $foreground 10%;
            color: $foreground;
            text-style: none;
            &:hover { background: $foreground 20%; }
            &:focus { background: $primary; color: $text; text-style: bold; }
        }
        & .failed { color: $text-error; }
    }
    """

    def __init__(self, heading: str) -> None:
        """A dialog.

        Args:
            heading: what it is, in its border.
        """
        super().__init__()
        self._frame = Frame()
        self._frame.border_title = Content(shown(" ".join(heading.split())))

    def compose(self) -> ComposeResult:
        """The frame with what is in it."""
        with self._frame:
            yield from self.compose_body()

    def compose_body(self) -> ComposeResult:
        """What is in the frame."""
        yield from ()

    @property
    def hints(self) -> tuple[Hint, ...]:
        """Keys to tell of; the first ones are told where there is room for few only."""
        return self.HINTS

    def show_hints(self) -> None:
        """Tells the keys, as many as there is room for."""
        room = self._frame.size.width + self._frame.gutter.width - 6
        parts: list[Content] = []
        for key, what, action in self.hints:
            part = Content.assemble((key, "bold"), f" {what}")
            if sum(len(other) + len(_BETWEEN) for other in parts) + len(part) > room:
                break
            parts.append(part.stylize(Style.from_meta({"@click": f"screen.{action}"})) if action else part)
        self._frame.border_subtitle = Content(_BETWEEN).join(parts)

    def on_resize(self, event: Resize) -> None:
        """More room, or less, for hints."""
        del event
        self.call_after_refresh(self.show_hints)

    def on_click(self, event: Click) -> None:
        """A click beside the frame closes it."""
        if event.widget is self:
            self.action_close()

    def action_close(self) -> None:
        """Closes without a result."""
        self.dismiss(None)
