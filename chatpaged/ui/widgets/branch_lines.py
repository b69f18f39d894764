"""The lines of a conversation's tree. Only what is seen is drawn, so that thousands of messages cost nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, MouseMove
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from chatpaged.branch_tree import TreeRow, known_tokens
from chatpaged.session_list import age
from chatpaged.shown_text import shown
from chatpaged.ui.marked_text import MUTED, marked
from chatpaged.ui.short_texts import role_name

_MOST_GUIDES = 16
"""Cells for guides: what is nested deeper is drawn at this depth."""
_BEGINNING = 400
"""Characters of a message that may be seen on a line."""


class BranchLines(ScrollView, can_focus=True):
    """One line for each message, with a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move_to_end(-1)", show=False),
        Binding("end", "move_to_end(1)", show=False),
        Binding("enter", "choose", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"branch--cursor", "branch--hover"}
    DEFAULT_CSS = """
    BranchLines {
        height: 1fr;
        background: transparent;
        scrollbar-size-vertical: 1;
        & > .branch--cursor { background: $primary; color: $text; }
        & > .branch--hover { background: $foreground 8%; }
    }
    """

    class Chosen(Message):
        """A line was chosen."""

        def __init__(self, node_id: str) -> None:
            super().__init__()
            self.node_id = node_id

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.rows: Sequence[TreeRow] = ()
        self.cursor = 0
        self._hover: int | None = None
        self._looked_for = ""
        self._now = time.time()

    def show(self, rows: Sequence[TreeRow], cursor: int, looked_for: str = "") -> None:
        """Shows lines.

        Args:
            rows: the lines.
            cursor: which of them the cursor is on.
            looked_for: words that are marked.
        """
        self.rows, self._looked_for, self._hover = rows, looked_for, None
        self.virtual_size = Size(self.size.width, len(rows))
        self.move_to(cursor)
        self.refresh()

    @property
    def chosen(self) -> TreeRow | None:
        """The line that the cursor is on."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def move_to(self, cursor: int) -> None:
        """Moves the cursor, and shows where it is with something around it."""
        self.cursor = max(0, min(cursor, len(self.rows) - 1))
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, force=True)
        self.refresh()

    def centre(self) -> None:
        """Shows as much before the cursor as behind it."""
        self.scroll_to(y=self.cursor - self.size.height // 2, animate=False, force=True)

    def action_move(self, lines: int) -> None:
        """Moves the cursor by so many lines."""
        self.move_to(self.cursor + lines)

    def action_move_page(self, pages: int) -> None:
        """Moves the cursor by what is seen at once."""
        self.move_to(self.cursor + pages * max(1, self.size.height - 1))

    def action_move_to_end(self, direction: int) -> None:
        """Moves the cursor to the first line, or to the last."""
        self.move_to(0 if direction < 0 else len(self.rows) - 1)

    def action_choose(self) -> None:
        """Chooses the line that the cursor is on."""
        if self.chosen is not None:
            self.post_message(self.Chosen(self.chosen.node.id))

    # --- drawing ---------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        width = self.scrollable_content_region.width or self.size.width
        place = y + self.scroll_offset.y
        if place >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        style = self.visual_style
        if place == self.cursor:
            style += self.get_visual_style("branch--cursor")
        elif place == self._hover:
            style += self.get_visual_style("branch--hover")
        line = self._line(self.rows[place], width, at_cursor=place == self.cursor)
        strips = Visual.to_strips(self, line, width, 1, style, pad=True)
        return strips[0].adjust_cell_length(width, style.rich_style)

    def _line(self, row: TreeRow, width: int, *, at_cursor: bool) -> Content:
        muted = "" if at_cursor else MUTED
        guides = row.guides if len(row.guides) <= _MOST_GUIDES else f"…{row.guides[1 - _MOST_GUIDES :]}"
        mark = "◆" if row.is_leaf else "●" if row.in_view else "○"
        strong = "bold" if row.in_view else ""
        name = role_name(row.node.role)
        role = f" {name:<6} " if width >= 50 else f" {name[0]} "
        end = self._end(row, width)
        head = Content.assemble(
            (guides, muted), (mark, "" if at_cursor else "$text-accent" if row.in_view else muted), (role, f"{strong} {muted}".strip())
        )
        room = width - head.cell_length - len(end) - 1
        beginning = " ".join(shown(row.node.content[:_BEGINNING]).split()) or "(no text)"
        text = marked(beginning, self._looked_for).truncate(max(1, room), ellipsis=True, pad=True)
        return Content.assemble(head, text.stylize_before(strong) if strong else text, " ", (end, muted))

    def _end(self, row: TreeRow, width: int) -> str:
        """What is told at the right: version, tokens, age."""
        version = f"{row.position}/{row.siblings}" if row.siblings > 1 else ""
        if width < 50:
            return f"{version:>4}"
        tokens = known_tokens(row.node)
        return f"{version:>6}{f'{tokens:,} tok' if tokens is not None else '':>12}{age(max(0.0, self._now - row.node.created)):>8}"

    # --- the mouse -------------------------------------------------------------------------------------------------------

    def _place(self, y: int) -> int | None:
        place = y + self.scroll_offset.y
        return place if 0 <= place < len(self.rows) else None

    def on_mouse_move(self, event: MouseMove) -> None:
        """The line under the mouse is told from others."""
        self._hover = self._place(event.y)
        self.refresh()

    def on_leave(self) -> None:
        """No line is under the mouse."""
        self._hover = None
        self.refresh()

    def on_click(self, event: Click) -> None:
        """A click chooses a line."""
        place = self._place(event.y)
        if place is not None:
            event.stop()
            self.move_to(place)
            self.action_choose()
