"""A block of code: what it is written in, a place to click for copying it, and the code, coloured."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.highlight import highlight
from textual.message import Message
from textual.style import Style

from chatpaged.shown_text import shown
from chatpaged.ui.background import beside
from chatpaged.ui.widgets.flow import Flow
from chatpaged.ui.widgets.flow_lines import TAB, FlowLine, Row, tabbed_line

_HANG = Content.styled("↳ ", "$foreground 30%")
_COLOURED_LIMIT = 200_000
"""Characters beyond which code stays plain."""


class _Head(FlowLine):
    """The first row of a block: language on the left, the copy target on the right."""

    ornament = True

    def __init__(self, language: str, lines: int) -> None:
        super().__init__(Content())
        self.language = language
        self.count = lines

    def row(self, width: int, index: int) -> Row:
        """The row."""
        left = Content.styled(self.language or "text", "$foreground 70%")
        if self.count > 1:
            left += Content.styled(f" · {self.count:,} lines", "$foreground 40%")
        right = Content.styled("copy", Style.from_meta({"@click": ("copy_code", ())})).stylize_before("$text-accent")
        space = max(width - left.cell_length - right.cell_length, 1)
        return Row(Content(), (left + " " * space + right).truncate(width), 0, index == 0)


class CodeBlock(Flow, can_focus=True):
    """Code of an answer. Long lines are broken on the screen only; what is copied is the code, exactly."""

    DEFAULT_CSS = """
    CodeBlock {
        background: $foreground 5%;
        padding: 0 1;
        color: $foreground;
        link-style: none;
        link-style-hover: bold underline;
        link-background-hover: transparent;
        link-color-hover: $text-accent;
        border-left: outer $foreground 12%;
    }
    CodeBlock:focus {
        border-left: outer $accent;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c,y,enter", "copy_code", "Copy code", id="copy_code"),
    ]

    class Copied(Message):
        """The code shall be copied."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def __init__(self, code: str = "", language: str = "", *, growing: bool = False) -> None:
        super().__init__([_Head(language, 1)])
        self.code = ""
        self.language = language
        self._coloured = ""
        self._colouring = False
        self._growing = growing
        self._write(code)

    def on_mount(self) -> None:
        """Colours what it was made with."""
        self._colour()

    def update_code(self, code: str, language: str, *, growing: bool) -> None:
        """Shows other code, most likely the same with more at its end.

        Args:
            code: all of it.
            language: what it is written in.
            growing: more will come.
        """
        self._growing = growing
        if language != self.language:
            self.language, self.code, self._coloured = language, "", ""
            self.exchange_line(0, _Head(language, 1))
        if code != self.code:
            self._write(code)
        self._colour()

    def _write(self, code: str) -> None:
        """Puts lines in; only new ones where code was added."""
        grown = bool(self.code) and code.startswith(self.code)
        first = self.code.rfind("\n") + 1 if grown else 0
        keep = len(self.lines) - 1 if grown else 1
        self.code = code
        self.set_lines([_code_line(line) for line in shown(code[first:]).split("\n")], keep=keep)
        self.exchange_line(0, _Head(self.language, len(self.lines) - 1))

    # --- colours --------------------------------------------------------------------------------------------------------

    def _colour(self) -> None:
        """Has the code coloured in a thread: the first use of a language alone takes longer than a frame.

        While it grows this is done again whenever it has grown by a quarter, so that a line costs the same wherever it stands.
        """
        code = self.code[: self.code.rfind("\n") + 1] if self._growing else self.code
        if not self.is_attached or not self.language or len(code) > _COLOURED_LIMIT or code == self._coloured:
            return
        if self._growing and len(code) < len(self._coloured) * 5 // 4:
            return
        if not self._colouring:
            self._colouring = True
            self._coloured = code
            beside(self, "colour", self._colour_soon, code, self.language)

    async def _colour_soon(self, code: str, language: str) -> None:
        try:
            lines = await asyncio.to_thread(coloured_lines, code, language)
        finally:
            self._colouring = False
        if self.code.startswith(code) and language == self.language:
            self._put_on(code, lines)
        self._colour()  # it may have grown since

    def _put_on(self, code: str, lines: list[FlowLine]) -> None:
        whole = code == self.code
        rest = [] if whole else [_code_line(line) for line in shown(self.code[len(code) :]).split("\n")]
        # After a line's end the code has one line more, which is the first one of the rest.
        self.set_lines([*(lines if whole else lines[:-1]), *rest], keep=1)

    # --- copying --------------------------------------------------------------------------------------------------------

    def action_copy_code(self) -> None:
        """Asks for the code to be copied."""
        self.post_message(self.Copied(self.code))


def _code_line(text: str, body: Content | None = None) -> FlowLine:
    return tabbed_line(text, body, hang=_HANG)


def coloured_lines(code: str, language: str) -> list[FlowLine]:
    """Code with colours; languages that nobody knows stay plain."""
    plain = shown(code)
    texts = plain.split("\n")
    content = highlight("\n".join(line.expandtabs(TAB) for line in texts), language=language)
    spans = sorted(content.spans[1:], key=lambda span: span.start)  # the first one is the colour of all text
    found: list[FlowLine] = []
    start = i = 0
    for text in texts:
        shown_line = text.expandtabs(TAB)
        end = start + len(shown_line)
        own: list[Span] = []
        while i < len(spans) and spans[i].start < end:
            span = spans[i]
            own.append(Span(max(span.start, start) - start, min(span.end, end) - start, span.style))
            if span.end > end:
                break  # it goes on in the next line
            i += 1
        found.append(_code_line(text, Content(shown_line, [span for span in own if span.end > span.start])))
        start = end + 1
    return found
