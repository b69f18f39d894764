"""Text that is folded away: the thinking before an answer, the system prompt, the rest of a long paste."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widgets import Static

from chatpaged.amounts import counted
from chatpaged.shown_text import shown
from chatpaged.ui.widgets.flow import Flow
from chatpaged.ui.widgets.flow_lines import FlowLine, plain_lines

FOLDED_LINES = 12
"""Lines that are seen of a text that is too long."""
_LONGEST_LINES = 30
_LONGEST_TEXT = 6000
_FOLDED_TEXT = 1500
_PREVIEW = 400


class FoldLine(Static):
    """The line that opens and closes what is folded."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    FoldLine {
        height: auto;
        width: 1fr;
        color: $text-muted;
    }
    FoldLine:hover {
        color: $text-accent;
    }
    """


class Folded(Vertical):
    """Something with a fold line. A click on the line opens or closes it."""

    DEFAULT_CSS = """
    Folded {
        height: auto;
        width: 1fr;
    }
    """
    is_open: reactive[bool] = reactive(default=False, init=False)

    def toggle(self) -> None:
        """Opens it, or closes it."""
        self.is_open = not self.is_open

    def on_click(self, event: Click) -> None:
        """A click on the line."""
        if isinstance(event.widget, FoldLine):
            event.stop()
            self.toggle()


class Thinking(Folded):
    """What a model thought before it answered. Folded, it shows how much, and while it grows also its last line."""

    DEFAULT_CSS = """
    Thinking {
        margin-bottom: 1;
    }
    Thinking > Static.preview {
        height: 1;
        color: $text-disabled;
        text-style: italic;
        padding-left: 2;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    Thinking > Flow {
        color: $text-muted;
        padding-left: 1;
        margin-left: 0;
        border-left: solid $foreground 20%;
    }
    """

    def __init__(self, text: str = "", *, growing: bool = False) -> None:
        super().__init__()
        self._text = text
        self._words = len(text.split())
        self._growing = growing
        self._head = FoldLine(self._title())
        self._preview = Static(Content(), classes="preview")
        self._body = Flow()
        self._shown = 0

    def compose(self) -> ComposeResult:
        """The line, the last line of the thinking, all of it."""
        yield self._head
        yield self._preview
        yield self._body

    def on_mount(self) -> None:
        """Begins folded."""
        self._body.display = self.is_open
        self._refresh()

    def add(self, text: str) -> None:
        """More thinking."""
        joins = bool(self._text) and not self._text[-1].isspace() and not text[:1].isspace()
        self._words += len(text.split()) - (1 if joins and text.strip() else 0)
        self._text += text
        self._refresh()

    def end(self, text: str | None = None) -> None:
        """It is over.

        Args:
            text: all of it, where that is known better now.
        """
        self._growing = False
        if text is not None and text != self._text:
            self._text, self._words, self._shown = text, len(text.split()), 0
        self._refresh()

    def watch_is_open(self) -> None:
        """Shows or hides it."""
        self._body.display = self.is_open
        self._refresh()

    def _title(self) -> Content:
        return Content(f"{'▾' if self.is_open else '▸'} {'Thinking…' if self._growing else 'Thought,'} {counted(self._words, 'word')}")

    def _refresh(self) -> None:
        self._head.update(self._title())
        self._preview.display = self._growing and not self.is_open
        if self._preview.display:
            self._preview.update(Content(_last_line(self._text[-_PREVIEW:])))
        if self.is_open and self._shown != len(self._text):
            self._write()

    def _write(self) -> None:
        first = self._text.rfind("\n", 0, self._shown) + 1 if self._shown else 0
        keep = max(len(self._body.lines) - 1, 0) if self._shown else 0
        self._body.set_lines(plain_lines(shown(self._text[first:]).rstrip("\n")), keep)
        self._shown = len(self._text.rstrip("\n"))


class LongText(Folded):
    """A text as it was typed or pasted; of a long one the first lines, and how many more there are."""

    DEFAULT_CSS = """
    LongText > FoldLine {
        color: $text-accent;
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text.rstrip("\n")
        self._first, self._more = _fold(self._text)
        self.body = Flow(self._first)

    @property
    def folds(self) -> bool:
        """Whether it is long enough."""
        return bool(self._more)

    def compose(self) -> ComposeResult:
        """The text, and the line that opens it."""
        yield self.body
        if self._more:
            yield FoldLine(Content(f"… {self._more}"))

    def watch_is_open(self) -> None:
        """Shows all of it, or the beginning."""
        if not self._more:
            return
        self.body.set_lines(plain_lines(shown(self._text)) if self.is_open else self._first)
        self.query_one(FoldLine).update(Content("▴ show less" if self.is_open else f"… {self._more}"))


class SystemPrompt(Folded):
    """The system prompt of a conversation: one line that opens."""

    DEFAULT_CSS = """
    SystemPrompt {
        margin: 1 2 0 2;
        color: $text-muted;
    }
    SystemPrompt > FoldLine {
        height: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    SystemPrompt > Flow {
        border-left: solid $foreground 20%;
        padding-left: 1;
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._head = FoldLine(self._title())
        self._body = Flow()

    def compose(self) -> ComposeResult:
        """The line, and the prompt."""
        yield self._head
        yield self._body

    def on_mount(self) -> None:
        """Begins folded."""
        self._body.display = self.is_open

    def watch_is_open(self) -> None:
        """Shows it, or its beginning."""
        if self.is_open and not self._body.lines:
            self._body.set_lines(plain_lines(shown(self._text).rstrip("\n")))
        self._body.display = self.is_open
        self._head.update(self._title())

    def _title(self) -> Content:
        if self.is_open:
            return Content("▾ System prompt")
        return Content("▸ System prompt  ") + Content.styled(" ".join(shown(self._text[:_PREVIEW]).split()), "$foreground 40%")


def _last_line(text: str) -> str:
    return shown(text.rstrip().rpartition("\n")[2].strip())


def _fold(text: str) -> tuple[list[FlowLine], str]:
    """The lines that are seen at first, and what there is besides: nothing where they are all."""
    lines = text.count("\n") + 1
    if lines > _LONGEST_LINES:
        first = "\n".join(text.split("\n", FOLDED_LINES)[:FOLDED_LINES])
        if len(first) <= _LONGEST_TEXT:
            return plain_lines(shown(first)), f"{lines - FOLDED_LINES:,} more lines"
    if len(text) > _LONGEST_TEXT:
        return plain_lines(shown(text[:_FOLDED_TEXT])), f"{len(text) - _FOLDED_TEXT:,} more characters"
    return plain_lines(shown(text)), ""
