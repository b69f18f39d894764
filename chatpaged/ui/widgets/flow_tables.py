"""Tables as lines of a text: columns where their words fit, otherwise a record for each row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from rich.cells import cell_len
from textual.content import Content

from chatpaged.ui.widgets.flow_lines import FlowLine, Row, wrap_positions

# Chinese and Japanese have no spaces, and are broken anywhere.
_WORDS = re.compile(r"[^\s\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]+|\S")
_RULE_STYLE = "$foreground 25%"
_RULE = Content.styled(" │ ", _RULE_STYLE)
_HANG = Content("  ")


class TableLine(FlowLine):
    """A row of a table. It is selected and copied as a whole, in Markdown."""

    atomic = True

    def __init__(self, table: Table, index: int, *, lead: Content, hang: Content, copied_lead: str) -> None:
        super().__init__(Content(), lead=lead, hang=hang, copied_lead=copied_lead)
        self.table = table
        self.index = index

    def height(self, width: int) -> int:
        """How many rows the highest of its cells takes; as a record, all of them and a rule."""
        room = self._room(width)
        widths = self.table.widths(room)
        if widths is None:
            return sum(line.height(room) for line in self._record) + (self.index > 0)
        return max(
            (len(wrap_positions(cell.plain, columns)) + 1 for cell, columns in zip(self._cells(), widths, strict=True)),
            default=1,
        )

    def row(self, width: int, index: int) -> Row:
        """Its cells beside each other, or a part of the record."""
        room = self._room(width)
        widths = self.table.widths(room)
        text = self._record_row(room, index) if widths is None else self._cells_row(widths, index)
        return Row(self.hang if index else self.lead, text, 0, index == 0)

    def _room(self, width: int) -> int:
        return max(width - self.lead.cell_length, 1)

    def _cells_row(self, widths: Sequence[int], index: int) -> Content:
        parts: list[Content] = []
        for cell, size, align in zip(self._cells(), widths, self.table.aligns, strict=True):
            rows = _cell_rows(cell, size)
            parts.append(_aligned(rows[index] if index < len(rows) else Content(), size, align))
        return _RULE.join(parts)

    @cached_property
    def _record(self) -> list[FlowLine]:
        """A line for each cell. The head is told with each of them; alone only while there is nothing else."""
        heads, cells = self.table.rows[0], self._cells()
        if not self.index:
            return [FlowLine(head, hang=_HANG) for head in heads] if len(self.table.rows) == 1 else []
        return [
            FlowLine(Content.assemble(head, ": ", cell).rstrip() if head.plain else cell, hang=_HANG)
            for head, cell in zip(heads, cells, strict=True)
        ]

    def _record_row(self, room: int, index: int) -> Content:
        for line in self._record:
            height = line.height(room)
            if index < height:
                row = line.row(room, index)
                return row.lead + row.text
            index -= height
        return _rule(room)

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
        room = self._room(width)
        widths = self.table.widths(room)
        text = _rule(room) if widths is None else Content.styled("─┼─".join("─" * size for size in widths), _RULE_STYLE)
        return Row(self.lead, text, 0, index == 0)

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
        self._widths: tuple[int, list[int] | None] | None = None

    @cached_property
    def _wanted(self) -> list[int]:
        return [max(max((row[i].cell_length for row in self.rows), default=1), 1) for i in range(len(self.aligns))]

    @cached_property
    def _least(self) -> list[int]:
        """Widths that split no word."""
        return [max((_longest_word(row[i].plain) for row in self.rows), default=1) for i in range(len(self.aligns))]

    def widths(self, width: int) -> list[int] | None:
        """The widths of the columns within a total width; None where words would have to be split for them."""
        if self._widths is None or self._widths[0] != width:
            self._widths = (width, self._shared_out(width - 3 * (len(self.aligns) - 1)))
        return self._widths[1]

    def _shared_out(self, total: int) -> list[int] | None:
        if sum(self._wanted) <= total:
            return self._wanted
        if len(self.aligns) == 1:
            return [max(total, 1)]  # a record has no more room
        return fair_widths(self._wanted, total, self._least) if sum(self._least) <= total else None


def fair_widths(wanted: Sequence[int], total: int, least: Sequence[int] | None = None) -> list[int]:
    """Shares out columns: who wants little gets it, the others get the same, and nobody less than the least."""
    widths = list(least) if least is not None else [1] * len(wanted)
    for _ in range(min(total, sum(wanted)) - sum(widths)):
        narrowest = min((i for i in range(len(widths)) if widths[i] < wanted[i]), key=lambda i: widths[i])
        widths[narrowest] += 1
    return widths


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in _WORDS.findall(text)), default=1)


def _rule(width: int) -> Content:
    return Content.styled("─" * width, _RULE_STYLE)


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
