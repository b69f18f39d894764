"""An answer's Markdown, also while it grows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from chatpaged.markdown_pieces import Piece, PieceStream, exact_pieces, parser, split_pieces
from chatpaged.shown_text import normal_lines
from chatpaged.ui.background import beside
from chatpaged.ui.widgets.code_block import CodeBlock
from chatpaged.ui.widgets.flow import Flow, OneLayout
from chatpaged.ui.widgets.markdown_lines import CodeSegment, Segment, TextSegment, render_piece

_AT_ONCE = 8000
"""Characters that may be laid out while the application waits."""
_PART = 10
"""Pieces of a long text that are laid out at a time."""


class TextFlow(Flow):
    """Text of an answer, with links."""

    DEFAULT_CSS = """
    TextFlow {
        link-color: $text-primary;
        link-style: underline;
        link-style-hover: bold underline;
        link-background-hover: transparent;
        link-color-hover: $text-accent;
    }
    """

    class LinkClicked(Message):
        """A link was clicked. Nothing is opened unasked: whoever gets this shows the address."""

        def __init__(self, address: str) -> None:
            super().__init__()
            self.address = address

    def action_open_link(self, address: str) -> None:
        """Tells which link was clicked."""
        self.post_message(self.LinkClicked(address))


@dataclass
class _Slot:
    """A piece, and the widgets that show it."""

    piece: Piece
    widgets: list[Widget] = field(default_factory=list)


class MarkdownView(OneLayout, Vertical):
    """Markdown as a few widgets: one for each run of text and each block of code.

    Attributes:
        drawn: characters that were made into lines so far, counted as often as they were.
    """

    DEFAULT_CSS = """
    MarkdownView {
        height: auto;
        width: 1fr;
    }
    MarkdownView > .gap {
        margin-top: 1;
    }
    """

    def __init__(self, text: str = "", *, growing: bool = False) -> None:
        super().__init__()
        self.drawn = 0
        self._slots: list[_Slot] = []
        self._text = text
        self._stream: PieceStream | None = PieceStream() if growing else None
        self._parser = parser()
        self._lock = asyncio.Lock()
        self.display = bool(text)

    def compose(self) -> ComposeResult:
        """What it was made with; a long text follows in parts."""
        if self._stream is None and len(self._text) <= _AT_ONCE:
            for piece in split_pieces(self._text):
                yield from self._add_slot(piece, render_piece(self._parser, piece))

    async def on_mount(self) -> None:
        """Begins to show what was too long to be shown at once."""
        if self._stream is not None:
            text, self._text = self._text, ""
            await self.grow(text)
        elif len(self._text) > _AT_ONCE:
            beside(self, "parts", self._show_in_parts, self._text)

    @property
    def codes(self) -> list[CodeBlock]:
        """The blocks of code, in their order."""
        return [child for child in self.children if isinstance(child, CodeBlock)]

    @property
    def parsed(self) -> int:
        """Characters that were parsed so far, counted as often as they were."""
        return self.drawn + (self._stream.parsed if self._stream is not None else 0)

    # --- growing --------------------------------------------------------------------------------------------------------

    async def grow(self, text: str) -> None:
        """Shows more text after what is there. Costs as much as the text and the block it ends in, however much stands before."""
        stream = self._stream
        if stream is None or not text:
            return
        async with self._lock:
            known = len(stream.closed)
            opened = stream.feed(text)
            fresh = stream.closed[known:]
            if 0 < known <= len(self._slots):
                self._slots[known - 1].piece = stream.closed[known - 1]  # it may have got an empty line more
            with self.app.batch_update():
                for i, piece in enumerate([*fresh, *((opened,) if opened is not None else ())], start=known):
                    if i == len(self._slots):
                        self._slots.append(_Slot(piece))
                    self._slots[i].piece = piece
                    self.drawn += len(piece.source) if piece.code is None else len(text)
                    await self._fit(i, render_piece(self._parser, piece), growing=piece is opened)
                end = known + len(fresh) + (opened is not None)
                await self._drop(self._slots[end:])
                del self._slots[end:]

    async def finish(self, text: str) -> None:
        """Shows the whole text exactly. Where it grew as it should, nothing changes.

        Args:
            text: all of it.
        """
        async with self._lock:
            stream, self._stream = self._stream, None
            old = [slot.piece for slot in self._slots] if stream is not None else []
            pieces, drawn = await asyncio.to_thread(_exactly, normal_lines(text), old)
            await self._exchange(pieces, drawn)
            for block in self.codes:
                block.update_code(block.code, block.language, growing=False)

    async def _show_in_parts(self, text: str) -> None:
        """Shows a long text some widgets at a time, with looks at the keyboard between."""
        async with self._lock:
            drawn = await asyncio.to_thread(_all_drawn, text)
            for i in range(0, len(drawn), _PART):
                widgets: list[Widget] = []
                for piece, segments in drawn[i : i + _PART]:
                    widgets += self._add_slot(piece, segments)
                with self.app.batch_update():
                    await self.mount_all(widgets)
                await asyncio.sleep(0)

    def _add_slot(self, piece: Piece, segments: Sequence[Segment]) -> list[Widget]:
        slot = _Slot(piece)
        self._slots.append(slot)
        for i, segment in enumerate(segments):
            slot.widgets.append(_new_widget(segment, growing=False))
            self._set_gap(slot, i, segment)
        return slot.widgets

    async def _exchange(self, pieces: Sequence[Piece], drawn: dict[int, list[Segment]]) -> None:
        """Puts pieces in the place of the old ones; what stays the same stays."""
        starts = accumulate((len(slot.piece.source) for slot in self._slots), initial=0)
        old = dict(zip(starts, self._slots, strict=False))
        slots: list[_Slot] = []
        position = 0
        for piece in pieces:
            slot = old.pop(position, None)
            slots.append(slot if slot is not None else _Slot(piece))
            slots[-1].piece = piece
            position += len(piece.source)
        with self.app.batch_update():
            await self._drop(old.values())
            self._slots = slots
            for i, segments in drawn.items():
                await self._fit(i, segments, growing=False)

    async def _drop(self, slots: Iterable[_Slot]) -> None:
        """Takes away what shows these pieces."""
        for slot in slots:
            await self._remove_from(slot, 0)

    async def _fit(self, index: int, segments: Sequence[Segment], *, growing: bool) -> None:
        """Makes the widgets of a piece show these segments. Of a piece that grows, the last one does."""
        slot = self._slots[index]
        for i, segment in enumerate(segments):
            grows = growing and i == len(segments) - 1
            if i < len(slot.widgets) and _update(slot.widgets[i], segment, growing=grows):
                self._set_gap(slot, i, segment)
                continue
            await self._remove_from(slot, i)
            widget = _new_widget(segment, growing=grows)
            slot.widgets.append(widget)
            self.display = True
            self._set_gap(slot, i, segment)
            after = self._widget_before(index, i)
            await (self.mount(widget, after=after) if after is not None else self.mount(widget, before=0 if self.children else None))
        await self._remove_from(slot, len(segments))

    async def _remove_from(self, slot: _Slot, i: int) -> None:
        for widget in slot.widgets[i:]:
            await widget.remove()
        del slot.widgets[i:]

    def _widget_before(self, index: int, i: int) -> Widget | None:
        if i:
            return self._slots[index].widgets[i - 1]
        return next((slot.widgets[-1] for slot in reversed(self._slots[:index]) if slot.widgets), None)

    def _set_gap(self, slot: _Slot, i: int, segment: Segment) -> None:
        is_first = slot is self._slots[0] and i == 0
        widget = slot.widgets[i]
        widget.set_class(not is_first and not (slot.piece.continued and i == 0), "gap")
        if isinstance(segment, CodeSegment) and widget.styles.margin.left != segment.indent:
            widget.styles.margin = (0 if is_first else 1, 0, 0, segment.indent)


def _update(widget: Widget, segment: Segment, *, growing: bool) -> bool:
    """Shows a segment in a widget that shows another; whether it can."""
    if isinstance(segment, CodeSegment) and isinstance(widget, CodeBlock):
        widget.update_code(segment.code, segment.language, growing=growing)
        return True
    if isinstance(segment, TextSegment) and isinstance(widget, TextFlow):
        pairs = zip(widget.lines, segment.lines, strict=False)
        keep = next((i for i, (old, new) in enumerate(pairs) if not new.is_same(old)), min(len(widget.lines), len(segment.lines)))
        if keep < max(len(widget.lines), len(segment.lines)):
            widget.set_lines(segment.lines[keep:], keep)
        return True
    return False


def _new_widget(segment: Segment, *, growing: bool) -> Widget:
    if isinstance(segment, CodeSegment):
        return CodeBlock(segment.code, segment.language, growing=growing)
    return TextFlow(segment.lines)


def _all_drawn(text: str) -> list[tuple[Piece, list[Segment]]]:
    parsing = parser()
    return [(piece, render_piece(parsing, piece)) for piece in split_pieces(text)]


def _exactly(text: str, old: Sequence[Piece]) -> tuple[list[Piece], dict[int, list[Segment]]]:
    """The exact pieces of a text, and what those of them look like that are not shown yet."""
    pieces = exact_pieces(text, old) if old else split_pieces(text)
    known = {(start, piece) for start, piece in zip(accumulate((len(piece.source) for piece in old), initial=0), old, strict=False)}
    drawn: dict[int, list[Segment]] = {}
    position = 0
    parsing = parser()
    for i, piece in enumerate(pieces):
        if (position, piece) not in known:
            drawn[i] = render_piece(parsing, piece)
        position += len(piece.source)
    return pieces, drawn
