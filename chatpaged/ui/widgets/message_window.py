"""Which messages of a long conversation are laid out: those in view, and some around them. Plain numbers; no widget is seen here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from chatpaged.ui.widgets.message_item import MessageItem

AROUND = 1.5
"""Screens above and below the view that are laid out as well."""
KEPT = 4.0
"""Screens around the view beyond which messages are taken away again."""
_FRAME = 4
"""Rows of a message besides its text."""


@dataclass
class Entry:
    """A message, and how high it is.

    Attributes:
        item: the message.
        measured: its rows with the margin above it, when it was last laid out; None if it never was.
        growing: more of it will come.
        text: of a growing one, all there is.
        reasoning: likewise.
    """

    item: MessageItem
    measured: int | None = None
    growing: bool = False
    text: str = ""
    reasoning: str = ""
    _guessed: tuple[int, int] | None = None

    def height(self, width: int) -> int:
        """Its rows, or a guess."""
        if self.measured is not None:
            return self.measured
        if self.growing:
            return _guess(self.text, width)
        if self._guessed is None or self._guessed[0] != width:
            self._guessed = (width, _guess(self.item.node.content, width))
        return self._guessed[1]


def _guess(text: str, width: int) -> int:
    return _FRAME + text.count("\n") + len(text) // max(width - 6, 10)


@dataclass
class Window:
    """The part of all messages that is laid out.

    Attributes:
        entries: all messages.
        first: index of the first one that is laid out.
        last: index after the last one.
    """

    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    last: int = 0

    def index(self, node_id: str) -> int | None:
        """Where a message is; the newest ones are looked at first."""
        for i in range(len(self.entries) - 1, -1, -1):
            if self.entries[i].item.node.id == node_id:
                return i
        return None

    def forget_heights(self) -> None:
        """The width has changed: nothing is as high as it was."""
        for entry in self.entries:
            entry.measured = None

    def heights(self, width: int) -> list[int]:
        """Rows of all messages."""
        return [entry.height(width) for entry in self.entries]


def wanted(heights: Sequence[int], top: int, room: int, first: int, last: int) -> tuple[int, int]:
    """Which messages should be laid out.

    Args:
        heights: rows of all messages.
        top: the first row in view.
        room: rows in view.
        first: what is laid out now.
        last: what is laid out now.

    Returns:
        The first one, and the one after the last.
    """
    if not heights:
        return 0, 0
    ends = list(accumulate(heights))
    near = (_at(ends, top - AROUND * room), _at(ends, top + (1 + AROUND) * room) + 1)
    far = (_at(ends, top - KEPT * room), _at(ends, top + (1 + KEPT) * room) + 1)
    if first >= last or near[1] <= first or near[0] >= last:
        return near
    return min(max(first, far[0]), near[0]), max(min(last, far[1]), near[1])


def message_at(heights: Sequence[int], row: int) -> tuple[int, int]:
    """The message at a row, and how many of its rows are above that row."""
    ends = list(accumulate(heights))
    index = _at(ends, row)
    return index, max(row - (ends[index] - heights[index]), 0)


def _at(ends: Sequence[int], row: float) -> int:
    return min(max(bisect_right(ends, row), 0), len(ends) - 1)
