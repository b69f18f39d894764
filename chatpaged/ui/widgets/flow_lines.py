"""Lines of text as they stand in a document, and how they are broken into rows of a given width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rich.cells import cell_len
from textual.content import Content

_WORDS = re.compile(r"\s*\S+\s*|\s+")
_RULE_STYLE = "$foreground 25%"
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


class TableLine(FlowLine):
    """A row of a table. It is selected and copied as a whole, in Markdown."""

    atomic = True

    def __init__(self, table: Table, index: int, *, lead: Content, hang: Content, copied_lead: str) -> None:
        super().__init__(Content(), lead=lead, hang=hang, copied_lead=copied_lead)
        self.table = table
        self.index = index

    def height(self, width: int) -> int:
        """How many rows the highest of its cells takes."""
        widths = self.table.widths(width - self.lead.cell_length)
        return max(
            (len(wrap_positions(cell.plain, columns)) + 1 for cell, columns in zip(self._cells(), widths, strict=True)),
            default=1,
        )

    def row(self, width: int, index: int) -> Row:
        """Its cells beside each other."""
        widths = self.table.widths(width - self.lead.cell_length)
        parts: list[Content] = []
        for cell, size, align in zip(self._cells(), widths, self.table.aligns, strict=True):
            rows = _cell_rows(cell, size)
            parts.append(_aligned(rows[index] if index < len(rows) else Content(), size, align))
        return Row(self.hang if index else self.lead, Content.styled(" │ ", _RULE_STYLE).join(parts), 0, index == 0)

    def _cells(self) -> Sequence[Content]:
        return self.table.rows[self.index]

    def copy(self, start: int, end: int | None) -> str:  # noqa: ARG002 - a row is copied as a whole
        """The row as Markdown."""
        return f"{self.copied_lead}| {' | '.join(cell.plain for cell in self._cells())} |"


class RuleLine(TableLine):
    """The rule under the head of a table."""

    def height(self, width: int) -> int:  # noqa: ARG002 - always one
        """One row."""
        return 1

    def row(self, width: int, index: int) -> Row:
        """A rule that crosses those between columns."""
        rule = "─┼─".join("─" * size for size in self.table.widths(width - self.lead.cell_length))
        return Row(self.lead, Content.styled(rule, _RULE_STYLE), 0, index == 0)

    def copy(self, start: int, end: int | None) -> str:  # noqa: ARG002 - see `TableLine`
        """The rule as Markdown."""
        marks = {"left": "---", "right": "---:", "center": ":---:"}
        return f"{self.copied_lead}| {' | '.join(marks[align] for align in self.table.aligns)} |"


class Table:
    """The cells of a table, and how wide its columns are.

    Attributes:
        rows: cells by rows, the head first; every row has as many.
        aligns: left, right or center, a column each.
    """

    def __init__(self, rows: Sequence[Sequence[Content]], aligns: Sequence[str]) -> None:
        self.rows = rows
        self.aligns = aligns
        self._widths: tuple[int, list[int]] | None = None

    @cached_property
    def _wanted(self) -> list[int]:
        return [max(max((row[i].cell_length for row in self.rows), default=1), 1) for i in range(len(self.aligns))]

    def widths(self, width: int) -> list[int]:
        """The widths of the columns within a total width; what is too wide gives up most."""
        if self._widths is None or self._widths[0] != width:
            self._widths = (width, fair_widths(self._wanted, width - 3 * (len(self.aligns) - 1)))
        return self._widths[1]


def fair_widths(wanted: Sequence[int], total: int) -> list[int]:
    """Shares out columns: who wants little gets it, the others get the same."""
    if sum(wanted) <= total:
        return list(wanted)
    widths = [0] * len(wanted)
    left, remaining = max(total, len(wanted)), len(wanted)
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        widths[i] = min(wanted[i], max(left // remaining, 1))
        left -= widths[i]
        remaining -= 1
    return widths


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


def _cell_rows(cell: Content, width: int) -> list[Content]:
    bounds = [0, *wrap_positions(cell.plain, width), len(cell.plain)]
    return [cell[start:end].rstrip() for start, end in pairwise(bounds)] or [cell]


def _aligned(text: Content, width: int, align: str) -> Content:
    space = max(width - text.cell_length, 0)
    if align == "right":
        return text.pad_left(space)
    if align == "center":
        return text.pad(space // 2, space - space // 2)
    return text.pad_right(space)


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
