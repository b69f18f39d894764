"""One of several answers that stand side by side."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, Focus
from textual.message import Message

from chatpaged.answer_board import Answer
from chatpaged.ui.widgets.answer_body import AnswerBody


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

    def __init__(self, place: int) -> None:
        """An empty column.

        Args:
            place: which one it is, from 0.
        """
        super().__init__()
        self.place = place
        self._body = AnswerBody()
        self._growing = False
        self._following = True
        self._drawn: tuple[str, str, str] | None = None

    def compose(self) -> ComposeResult:
        """The text."""
        yield self._body

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
            self._growing = answer.is_growing
            self._body.show_answer(answer)

    def on_mount(self) -> None:
        """Follows the end of what grows. Not `anchor`: that has short answers stand at the bottom."""
        self.watch(self, "virtual_size", self._follow)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Whoever reads further up is left alone until they are at the end again."""
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y - 1

    def _follow(self) -> None:
        if self._following and self._growing:
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
