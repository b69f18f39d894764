"""Lines of text as they stand in a document, and how they are broken into rows of a given width."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content

_WORDS = re.compile(r"\s*\S+\s*|\s+")
_NARROWEST = 4
"""Columns a text keeps even where its indentation leaves none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row on the screen.

    Attributes:
        lead: what stands before the text: a bullet, an indentation.
        text: the text.
        x: where the text begins in its line; the lead of a first row lies before it.
        is_first: the lead belongs to the line and can be selected; it is decoration otherwise.
    """

    lead: Content
    text: Content
    x: int
    is_first: bool


class FlowLine:
    """A line of text, broken at words where it is too long.

    Attributes:
        lead: what its first row begins with.
        hang: what the others begin with; as wide as `lead`, or wider.
        body: the text.
        copied_lead: what is copied for the lead.
        copied: what is copied for the body, where it differs from what is shown: tabs.
        atomic: it is selected and copied as a whole.
        ornament: it is no part of the text, and never copied.
    """

    atomic = False
    ornament = False

    def __init__(
        self,
        body: Content,
        *,
        lead: Content | None = None,
        hang: Content | None = None,
        copied_lead: str | None = None,
        copied: str | None = None,
    ) -> None:
        self.body = body
        self.lead = lead if lead is not None else Content()
        self.hang = hang if hang is not None else Content(" " * self.lead.cell_length)
        self.copied_lead = self.lead.plain if copied_lead is None else copied_lead
        self.copied = copied
        self._cut_at: tuple[int, list[int]] | None = None

    def is_same(self, other: FlowLine) -> bool:
        """Whether another line looks the same."""
        return (
            type(self) is type(other) is FlowLine
            and self.body.is_same(other.body)
            and self.lead.is_same(other.lead)
            and self.hang.is_same(other.hang)
        )

    def height(self, width: int) -> int:
        """How many rows it takes."""
        return len(self._cuts(width)) + 1

    def row(self, width: int, index: int) -> Row:
        """One of its rows."""
        cuts, end = self._cuts(width), len(self.body.plain)
        start = cuts[index - 1] if index else 0
        last = index >= len(cuts)
        text = self.body if last and not start else self.body[start : end if last else cuts[index]]
        return Row(self.hang if index else self.lead, text if last else text.rstrip(), start, index == 0)

    def _cuts(self, width: int) -> list[int]:
        if self._cut_at is None or self._cut_at[0] != width:
            self._cut_at = (width, self._cut(width))
        return self._cut_at[1]

    def _cut(self, width: int) -> list[int]:
        room = max(width - self.lead.cell_length, _NARROWEST)
        cuts = wrap_positions(self.body.plain, room)
        if cuts and self.hang.cell_length > self.lead.cell_length:
            return wrap_positions(self.body.plain, max(width - self.hang.cell_length, _NARROWEST))
        return cuts

    def copy(self, start: int, end: int | None) -> str:
        """What is copied when a part of it is selected.

        Args:
            start: the first selected character, the lead included.
            end: the position after the last one; None is the end of the line.
        """
        lead = len(self.lead.plain)
        last = len(self.body.plain) if end is None else end - lead
        if last <= 0:
            return self.lead.plain[start:end]
        begin = self.copied_lead if start == 0 else self.lead.plain[start:]
        first = max(start - lead, 0)
        if self.copied is not None:
            return begin + _untabbed(self.copied, first, last)
        return begin + self.body.plain[first:last]


def wrap_positions(text: str, width: int) -> list[int]:
    """Where a line is broken so that it fits: before words, within those that are longer than a row."""
    if len(text) <= width and (text.isascii() or cell_len(text) <= width):
        return []
    cuts: list[int] = []
    used = 0
    is_ascii = text.isascii()
    for match in _WORDS.finditer(text):
        word = match[0]
        bare = len(word.rstrip()) if is_ascii else cell_len(word.rstrip())
        if used + bare <= width:
            used += len(word) if is_ascii else cell_len(word)
            continue
        if match.start() and used:
            cuts.append(match.start())
        used = 0
        if bare > width:
            used = _fold(word, match.start(), width, cuts)
            continue
        used = len(word) if is_ascii else cell_len(word)
    return cuts


def _fold(word: str, offset: int, width: int, cuts: list[int]) -> int:
    """Breaks a word that is longer than a row; returns how much of the last row it takes."""
    used = 0
    for i, character in enumerate(word):
        size = cell_len(character)
        if used + size > width and not character.isspace():
            cuts.append(offset + i)
            used = 0
        used += size
    return used


def _untabbed(text: str, start: int, end: int) -> str:
    """The part of a text with tabs that is seen between two columns."""
    column = 0
    found: list[str] = []
    for character in text:
        following = column + (TAB - column % TAB if character == "\t" else 1)
        if column >= start and column < end:
            found.append(character)
        column = following
    return "".join(found)


TAB = 4
"""Columns between tabulator stops."""


def plain_lines(text: str) -> list[FlowLine]:
    """A text that has no markup, line by line; it is made showable by whoever calls."""
    return [tabbed_line(line) for line in text.split("\n")]


def tabbed_line(text: str, body: Content | None = None, hang: Content | None = None) -> FlowLine:
    """A line whose tabs are shown as spaces and copied as tabs.

    Args:
        text: what it is.
        body: the same with styles, tabs expanded.
        hang: what further rows begin with.
    """
    tabbed = "\t" in text
    return FlowLine(body if body is not None else Content(text.expandtabs(TAB)), hang=hang, copied=text if tabbed else None)
