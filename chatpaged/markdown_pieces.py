"""Markdown in pieces that can be shown one by one, also while it grows.

```text
# Title␤␤A paragraph.␤␤| - item␤- item␤␤| ```py␤x = 1␤  <- grows
└──── closed piece ───┘└ closed piece ┘└── open piece ──┘
```

The sources of all pieces put together are the text. What is closed is never looked at again while the text grows, so that a token
costs the same at the end of a long answer as at its beginning. Two things make a piece closed too early: a block that is longer
than `BLOCK_LIMIT` is cut, and a definition of a link may come later than its use. `exact_pieces` puts both right, once, at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from chatpaged.shown_text import normal_lines

PIECE_LIMIT = 1500
"""Characters after which a piece is closed at the next beginning of a block."""
BLOCK_LIMIT = 3000
"""Characters after which a single block is cut, if it can be."""
_NEAR_END = 200
"""A cut leaves that much of a paragraph open: emphasis in it may not be closed yet."""
_BALANCED = ("`", "**", "~~")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a Markdown text.

    Attributes:
        source: what it was written as.
        continued: it goes on with the block that the piece before it was cut in.
        code: of an unfinished fence, what it contains so far; None for everything else.
        language: of that fence.
        context: what has to stand before the source so that it is understood: the head of a table that was cut.
    """

    source: str
    continued: bool = False
    code: str | None = None
    language: str = ""
    context: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block at the top level: where it begins in the text, and its tokens."""

    start: int
    tokens: Sequence[Token]

    @property
    def kind(self) -> str:
        return self.tokens[0].type


@dataclass(slots=True)
class _Fence:
    """An open fence: how it will be closed, and where its lines begin."""

    closing: re.Pattern[str]
    indent: int
    language: str
    body: int
    scanned: int


def parser() -> MarkdownIt:
    """How Markdown of models is understood: as on GitHub, with tags as text."""
    parsing = MarkdownIt("gfm-like", {"html": False})
    if parsing.linkify is not None:
        # `setup.py` and `a@b` are no addresses.
        parsing.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    return parsing


@cache
def _blocks_parser() -> MarkdownIt:
    """For all that looks at blocks alone, which keeps nothing in the parser; what is within lines does, and threads must not share it."""
    parsing = parser()
    parsing.block.ruler.getRules()  # makes its lists of rules, which another thread must not find half made
    return parsing


class PieceStream:
    """Cuts a growing text.

    Attributes:
        closed: pieces that will not change any more.
        parsed: characters that were parsed so far, counted as often as they were.
    """

    def __init__(self) -> None:
        self.closed: list[Piece] = []
        self.parsed = 0
        self._tail = ""
        self._held = ""
        self._fence: _Fence | None = None
        self._continued = False
        self._context = ""

    def feed(self, text: str) -> Piece | None:
        """Takes in more text.

        Returns:
            The piece that is still open.
        """
        text = self._held + text
        # Half of a line's end is no line's end yet.
        self._held = "\r" if text.endswith("\r") else ""
        self._tail += normal_lines(text[: len(text) - len(self._held)])
        while self._advance():
            pass
        return self._open()

    def _open(self) -> Piece | None:
        if not self._tail:
            return None
        if self._fence is not None:
            return Piece(self._tail, code=_fence_code(self._tail, self._fence), language=self._fence.language)
        return Piece(self._tail, self._continued, context=self._context)

    def _close(self, end: int, *, cut: bool = False, context: str = "") -> int:
        """Closes a piece; how many characters left the tail. Empty lines belong to the piece before them."""
        head = self._tail[:end]
        if head.strip():
            self.closed.append(Piece(head, self._continued, context=self._context))
        elif head and self.closed:
            self.closed[-1] = replace(self.closed[-1], source=self.closed[-1].source + head)
        elif not cut:
            return 0
        self._tail = self._tail[end:]
        self._continued, self._context = cut, context
        return end

    def _advance(self) -> bool:
        """One step; whether there may be another."""
        if self._fence is not None:
            return self._close_fence()
        blocks = self._blocks()
        if not blocks:
            return False
        last = blocks[-1]
        if (fence := _open_fence(self._tail, last)) is not None:
            removed = self._close(last.start)
            self._fence = replace(fence, body=fence.body - removed, scanned=fence.scanned - removed)
            return True
        if len(blocks) > 1 and len(self._tail) > PIECE_LIMIT:
            self._close(last.start)
        elif len(self._tail) - last.start > BLOCK_LIMIT:
            self._cut(last)
        return False

    def _blocks(self) -> list[_Block]:
        source = self._context + self._tail
        self.parsed += len(source)
        shift = len(self._context)
        return [_Block(max(block.start - shift, 0), block.tokens) for block in top_blocks(source)]

    def _close_fence(self) -> bool:
        fence = self._fence
        if fence is None:
            return False
        while (end := self._tail.find("\n", fence.scanned)) >= 0:
            if fence.closing.fullmatch(self._tail, fence.scanned, end):
                self._fence = None
                self._close(end + 1)
                return True
            fence.scanned = end + 1
        return False

    def _cut(self, block: _Block) -> None:
        """Closes the first part of a block that grows too long."""
        if block.kind in {"bullet_list_open", "ordered_list_open"}:
            items = [token.map[0] for token in block.tokens if token.type == "list_item_open" and token.level == 1 and token.map]
            if len(items) > 1:
                self._close(line_starts(self._tail)[items[-1]], cut=True)
        elif block.kind == "paragraph_open":
            self._cut_paragraph()
        elif block.kind in {"table_open", "blockquote_open"}:
            head = "".join(self._tail[block.start :].splitlines(keepends=True)[:2]) if block.kind == "table_open" else ""
            end = self._tail.rfind("\n") + 1
            if end > block.start + len(head):
                self._close(end, cut=True, context=self._context or head)

    def _cut_paragraph(self) -> None:
        end = max(self._tail.rfind(" ", 0, len(self._tail) - _NEAR_END), self._tail.rfind("\n", 0, len(self._tail) - _NEAR_END)) + 1
        head = self._tail[:end]
        if end and not any(head.count(mark) % 2 for mark in _BALANCED) and head.count("[") == head.count("]"):
            self._close(end, cut=True)


def split_pieces(text: str) -> list[Piece]:
    """The pieces of a text that is whole."""
    text = normal_lines(text)
    return _joined(text, [block.start for block in top_blocks(text)])


def exact_pieces(text: str, pieces: Iterable[Piece]) -> list[Piece]:
    """Mends the pieces of a text that is whole now: those that end within a block become one with their successors.

    Pieces that were right stay equal, so that what shows them can stay as well.
    """
    text = normal_lines(text)
    environment: dict[str, object] = {}
    starts = {block.start for block in top_blocks(text, environment)}
    references = environment.get("references")
    if references:
        # Any piece may use any of them.
        return [Piece(text)]
    ends: list[int] = []
    position = 0
    for piece in pieces:
        if not text.startswith(piece.source, position):
            break  # it is not the text that grew
        position += len(piece.source)
        if _past_empty_lines(text, position) in starts:
            ends.append(position)
    return [Piece(text[start:end]) for start, end in pairwise([0, *ends, len(text)]) if text[start:end].strip()]


def _joined(text: str, starts: Sequence[int]) -> list[Piece]:
    """Blocks put together until there are enough for a piece."""
    found: list[Piece] = []
    begin = 0
    for start, following in pairwise([*starts, len(text)]):
        if begin < start and following - begin > PIECE_LIMIT:
            found.append(Piece(text[begin:start]))
            begin = start
    if text[begin:].strip():
        found.append(Piece(text[begin:]))
    return found


def _past_empty_lines(text: str, position: int) -> int:
    """A fence ends with its line; the empty lines after it belong to nobody."""
    while text.startswith("\n", position):
        position += 1
    return position


def line_starts(text: str) -> list[int]:
    """Where lines begin; at the end, where the text ends."""
    starts = [0]
    position = text.find("\n")
    while position >= 0:
        starts.append(position + 1)
        position = text.find("\n", position + 1)
    return [*starts, len(text)]


def top_blocks(text: str, environment: dict[str, object] | None = None) -> list[_Block]:
    """The blocks of a text; what is within lines is not looked at."""
    tokens: list[Token] = []
    parsing = _blocks_parser()
    parsing.block.parse(text, parsing, environment if environment is not None else {}, tokens)
    lines = line_starts(text)
    found: list[_Block] = []
    begin = 0
    for i, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            opening = tokens[begin]
            found.append(_Block(lines[opening.map[0]] if opening.map else 0, tokens[begin : i + 1]))
            begin = i + 1
    return found


def _open_fence(text: str, block: _Block) -> _Fence | None:
    """What is open if the text ends within a fence whose first line is whole."""
    token = block.tokens[0]
    end = text.find("\n", block.start)
    if token.type != "fence" or end < 0:
        return None
    line = text[block.start : end]
    closing = re.compile(rf" {{0,3}}{re.escape(token.markup[0])}{{{len(token.markup)},}}[ \t]*")
    lines = text[end + 1 :].split("\n")
    # The last line may still grow. A fence that was closed before it is an ordinary block.
    if any(closing.fullmatch(entry) for entry in lines[:-1]):
        return None
    return _Fence(closing, len(line) - len(line.lstrip(" ")), token.info.strip(), end + 1, end + 1)


def _fence_code(text: str, fence: _Fence) -> str:
    code = text[fence.body :]
    last = code[code.rfind("\n") + 1 :]
    if last.strip() and set(last.strip()) <= {"`", "~"}:
        code = code[: len(code) - len(last)]  # most likely the closing line, on its way
    if fence.indent:
        code = re.sub(rf"^ {{1,{fence.indent}}}", "", code, flags=re.MULTILINE)
    return code
