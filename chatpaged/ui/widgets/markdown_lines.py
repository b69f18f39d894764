"""Markdown as lines and code blocks. Text stays text: nothing in it is taken for Textual's markup, an escape or an action of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Content, Span
from textual.style import Style

from chatpaged.markdown_pieces import Piece
from chatpaged.shown_text import normal_lines, shown
from chatpaged.ui.widgets.flow_lines import FlowLine, Row
from chatpaged.ui.widgets.flow_tables import RuleLine, Table, TableLine

BULLETS = "•◦▪"
_HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary", "h3": "bold $text-secondary"}
_INLINE = {
    "strong_open": "bold",
    "em_open": "italic",
    "s_open": "strike",
}
CODE_STYLE = "$text-accent on $foreground 6%"
_MARK_STYLE = "$text-primary"
_QUOTE_STYLE = "$text-primary 60%"


@dataclass(frozen=True)
class TextSegment:
    """Lines of text."""

    lines: Sequence[FlowLine]


@dataclass(frozen=True)
class CodeSegment:
    """A block of code: exactly what it contains, what it is written in, how far it is indented."""

    code: str
    language: str
    indent: int = 0


Segment = TextSegment | CodeSegment


class HorizontalRule(FlowLine):
    """A rule across the whole width."""

    atomic = True

    def row(self, width: int, index: int) -> Row:
        """The rule."""
        rule = "─" * max(width - self.lead.cell_length, 1)
        return Row(self.lead, Content.styled(rule, "$foreground 25%"), 0, index == 0)

    def copy(self, start: int, end: int | None) -> str:  # noqa: ARG002 - as a whole
        """The rule as Markdown."""
        return "---"


def render_piece(parsing: MarkdownIt, piece: Piece) -> list[Segment]:
    """What a piece looks like.

    Args:
        parsing: see `markdown_pieces.parser`; one can be used again and again.
        piece: of a text.
    """
    if piece.code is not None:
        return [CodeSegment(piece.code, first_word(piece.language))]
    return _Renderer(skip_head=bool(piece.context)).render(parsing.parse(normal_lines(piece.context + piece.source)))


def first_word(info: str) -> str:
    """The language that a fence names."""
    return (info.split() or [""])[0].strip("{}.")


@dataclass
class _Level:
    """Something that indents: an item, a quote."""

    first: Content
    hang: Content
    copied: str
    copied_hang: str
    fresh: bool = True


@dataclass
class _Renderer:
    skip_head: bool = False
    segments: list[Segment] = field(default_factory=list)
    _lines: list[FlowLine] = field(default_factory=list)
    _levels: list[_Level] = field(default_factory=list)
    _lists: list[int | None] = field(default_factory=list)
    _gap: bool = False

    def render(self, tokens: Sequence[Token]) -> list[Segment]:
        stream = iter(tokens)
        for token in stream:
            handler = _HANDLERS.get(token.type)
            if handler is not None:
                handler(self, token, stream)
        self._flush()
        return self.segments

    # --- lines ----------------------------------------------------------------------------------------------------------

    def _emit(self, body: Content, make: Callable[..., FlowLine] = FlowLine) -> None:
        if self._gap and self._lines:
            self._emit_gap()
        self._gap = False
        for line in body.split("\n", allow_blank=True):
            lead = _joined([level.first if level.fresh else level.hang for level in self._levels])
            copied = "".join(level.copied if level.fresh else level.copied_hang for level in self._levels)
            hang = _joined([level.hang for level in self._levels])
            for level in self._levels:
                level.fresh = False
            self._lines.append(make(line, lead=lead, hang=hang, copied_lead=copied))

    def _emit_gap(self) -> None:
        hang = _joined([level.hang for level in self._levels if not level.fresh])
        self._lines.append(FlowLine(Content(), lead=hang.rstrip(), copied_lead=""))
        self._gap = False

    def _flush(self) -> None:
        if self._lines:
            self.segments.append(TextSegment(self._lines))
            self._lines = []
        self._gap = False

    # --- blocks ---------------------------------------------------------------------------------------------------------

    def heading(self, token: Token, stream: Iterator[Token]) -> None:
        content = inline(next(stream))
        self._gap = True
        self._emit(content.stylize_before(_HEADINGS.get(token.tag, "bold")))
        self._gap = True

    def paragraph(self, token: Token, stream: Iterator[Token]) -> None:
        self._emit(inline(next(stream)))
        self._gap = not token.hidden

    def rule(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - all handlers are called alike
        self._emit(Content(), HorizontalRule)
        self._gap = True

    def code(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        if any(level.fresh for level in self._levels):
            self._emit(Content())  # an item that begins with code keeps its mark
        self._flush()
        indent = sum(level.hang.cell_length for level in self._levels)
        self.segments.append(CodeSegment(token.content.removesuffix("\n"), first_word(token.info), indent))

    def open_list(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        start = token.attrs.get("start", 1)
        self._lists.append(int(start) if token.type == "ordered_list_open" else None)

    def close_list(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        self._lists.pop()
        self._gap = self._gap or token.level == 0

    def open_item(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        number = self._lists[-1]
        if number is None:
            depth = sum(1 for entry in self._lists if entry is None)
            mark, copied = f"{BULLETS[(depth - 1) % len(BULLETS)]} ", "- "
        else:
            mark = copied = f"{number}. "
            self._lists[-1] = number + 1
        self._levels.append(_Level(Content.styled(mark, _MARK_STYLE), Content(" " * len(mark)), copied, " " * len(copied)))

    def close_level(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        if self._levels[-1].fresh:
            self._emit(Content())
        self._levels.pop()
        if token.type == "blockquote_close":
            self._gap = True

    def open_quote(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        if self._gap and self._lines:
            self._emit_gap()  # outside of the quote
        mark = Content.styled("▌ ", _QUOTE_STYLE)
        self._levels.append(_Level(mark, mark, "> ", "> "))

    def table(self, token: Token, stream: Iterator[Token]) -> None:  # noqa: ARG002 - see `rule`
        rows: list[list[Content]] = []
        aligns: list[str] = []
        for entry in stream:
            if entry.type == "table_close":
                break
            if entry.type == "tr_open":
                rows.append([])
            elif entry.type == "th_open":
                aligns.append(str(entry.attrs.get("style", "")).rpartition(":")[2] or "left")
            elif entry.type == "inline":
                cell = inline(entry)
                rows[-1].append(cell.stylize_before("bold $text-primary") if len(rows) == 1 else cell)
        table = Table(rows, aligns)
        self._table_lines(table)
        self._gap = True

    def _table_lines(self, table: Table) -> None:
        def row(kind: type[TableLine], index: int) -> Callable[..., FlowLine]:
            return lambda _, lead, hang, copied_lead: kind(table, index, lead=lead, hang=hang, copied_lead=copied_lead)

        if not self.skip_head:
            self._emit(Content(), row(TableLine, 0))
            self._emit(Content(), row(RuleLine, 0))
        for i in range(1, len(table.rows)):
            self._emit(Content(), row(TableLine, i))


_Handler = Callable[[_Renderer, Token, Iterator[Token]], None]


def _handlers() -> dict[str, _Handler]:
    return {
        "heading_open": _Renderer.heading,
        "paragraph_open": _Renderer.paragraph,
        "hr": _Renderer.rule,
        "fence": _Renderer.code,
        "code_block": _Renderer.code,
        "bullet_list_open": _Renderer.open_list,
        "ordered_list_open": _Renderer.open_list,
        "bullet_list_close": _Renderer.close_list,
        "ordered_list_close": _Renderer.close_list,
        "list_item_open": _Renderer.open_item,
        "list_item_close": _Renderer.close_level,
        "blockquote_open": _Renderer.open_quote,
        "blockquote_close": _Renderer.close_level,
        "table_open": _Renderer.table,
    }


_HANDLERS = _handlers()


def inline(token: Token) -> Content:
    """The text of a paragraph, a heading or a cell, with its styles."""
    texts: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[int, Style | str]] = []
    position = 0
    for child in token.children or ():
        if child.nesting > 0:
            opened.append((position, _link(child.attrs.get("href", "")) if child.type == "link_open" else _INLINE.get(child.type, "")))
            continue
        if child.nesting < 0:
            start, style = opened.pop()
            spans.append(Span(start, position, style))
            continue
        text = "\n" if child.type in {"softbreak", "hardbreak"} else shown(child.content)
        if child.type == "image":
            text = f"🖼 {text or 'image'}"
            spans.append(Span(position, position + len(text), _link(child.attrs.get("src", ""))))
        elif child.type == "code_inline":
            spans.append(Span(position, position + len(text), CODE_STYLE))
        texts.append(text)
        position += len(text)
    return Content("".join(texts), [span for span in spans if span.style])


def _link(address: object) -> Style:
    # The address is an argument apart from the action, so that no address can be read as another action.
    return Style(underline=True) + Style.from_meta({"@click": ("open_link", (str(address),))})


def _joined(contents: Sequence[Content]) -> Content:
    return Content("").join(contents)
