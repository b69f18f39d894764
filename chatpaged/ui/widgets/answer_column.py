"""One of several answers that stand side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, Focus
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from chatpaged.answer_board import Answer
from chatpaged.shown_text import shown
from chatpaged.ui.marked_text import MUTED


class AnswerBody(Protocol):
    """What shows an answer's text. Its `widget` may be the object itself."""

    @property
    def widget(self) -> Widget:
        """What is mounted."""

    def show_answer(self, answer: Answer) -> None:
        """Shows the answer as it is now; called at most some times a second, and at the end."""


class PlainBody(Static):
    """An answer as plain text."""

    DEFAULT_CSS = """
    PlainBody { height: auto; width: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)

    @property
    def widget(self) -> Widget:
        """Itself."""
        return self

    def show_answer(self, answer: Answer) -> None:
        """Thinking, then the text."""
        thinking = Content.styled(shown(answer.reasoning.strip()) + "\n\n", f"{MUTED} italic") if answer.reasoning.strip() else Content()
        self.update(thinking + Content(shown(answer.text)))


MakeBody = Callable[[], AnswerBody]


class AnswerColumn(VerticalScroll, can_focus=True, inherit_bindings=False):
    """A column. The one with the focus is the one that is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_home", show=False),
        Binding("end", "scroll_end", show=False),
    ]
    DEFAULT_CSS = """
    AnswerColumn {
        height: 1fr;
        padding: 0 1;
        border: round $foreground 25%;
        border-title-color: $text-muted;
        border-subtitle-color: $text-muted;
        scrollbar-size-vertical: 1;
        &.-chosen { border: heavy $primary; border-title-color: $text-primary; border-title-style: bold; }
        &.-growing { border-subtitle-color: $text-success; }
    }
    """

    class Taken(Message):
        """It was clicked twice."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    class Looked(Message):
        """It has got the focus."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def __init__(self, place: int, make_body: MakeBody) -> None:
        """An empty column.

        Args:
            place: which one it is, from 0.
            make_body: makes what shows the text.
        """
        super().__init__()
        self.place = place
        self._body = make_body()
        self._drawn: tuple[str, str, str] | None = None

    def compose(self) -> ComposeResult:
        """The text."""
        yield self._body.widget

    def show(self, answer: Answer, number: int, *, chosen: bool, waits: bool) -> None:
        """Shows an answer as it is now.

        Args:
            answer: the answer.
            number: how many there are.
            chosen: it is the one that Enter takes.
            waits: it has been taken, and is to become whole first.
        """
        self.set_class(chosen, "-chosen")
        self.set_class(answer.is_growing, "-growing")
        self.border_title = Content(f"{'▶ ' if chosen else ''}{self.place + 1}/{number}{' · taken when it is whole' if waits else ''}")
        self.border_subtitle = Content(answer.note)
        drawn = (answer.text, answer.reasoning, answer.state.value)
        if drawn != self._drawn:
            self._drawn = drawn
            # Whoever reads further up is left alone. Not `anchor`: that has short answers stand at the bottom.
            follow = self.scroll_y >= self.max_scroll_y - 1
            self._body.show_answer(answer)
            if follow and answer.is_growing:
                self.scroll_end(animate=False)

    def on_focus(self, event: Focus) -> None:
        """Whoever has the focus is chosen."""
        del event
        self.post_message(self.Looked(self.place))

    def on_click(self, event: Click) -> None:
        """A double click takes it."""
        if event.chain == 2:
            event.stop()
            self.post_message(self.Taken(self.place))
