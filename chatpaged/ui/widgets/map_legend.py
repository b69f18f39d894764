"""What the cells of the block map mean, and how many blocks there are of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment

from chatpaged.engine_view import Cell, EngineView
from chatpaged.ui.short_texts import fitted, one_line
from chatpaged.ui.widgets.block_map import BlockMap
from chatpaged.ui.widgets.lines import Line, Lines

_NAMES = {Cell.USED: "in use", Cell.SHARED: "shared", Cell.CACHED: "cached", Cell.FREE: "free", Cell.NULL: "null"}
_OF_CHAT = {Cell.CHAT_USED: "own", Cell.CHAT_SHARED: "shared", Cell.CHAT_CACHED: "cached"}
_GAPS = (3, 2, 1)


class MapLegend(Lines):
    """Counts of all states; they add up to the pool. Below, those of the chat that is looked at."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"map-legend--number", "map-legend--text", "map-legend--chat"}
    DEFAULT_CSS = """
    MapLegend > .map-legend--number { color: $foreground; }
    MapLegend > .map-legend--text { color: $foreground 60%; }
    MapLegend > .map-legend--chat { color: $text-accent; text-style: bold; }
    """

    def __init__(self, block_map: BlockMap, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._map = block_map
        self._view: EngineView | None = None
        self._chat: str | None = None

    def show(self, view: EngineView, chat_id: str | None) -> None:
        """Shows counts.

        Args:
            view: of the engine.
            chat_id: the chat whose blocks stand out in the map.
        """
        self._view, self._chat = view, chat_id
        self.renew()

    def lines(self, width: int) -> Iterable[Line]:
        """All states, then those of the chat."""
        if self._view is None:
            return
        snapshot = self._view.snapshot
        counts = {
            Cell.USED: snapshot.used_blocks,
            Cell.SHARED: snapshot.shared_blocks,
            Cell.CACHED: snapshot.cached_blocks,
            Cell.FREE: snapshot.free_blocks,
            Cell.NULL: 1,
        }
        yield from self._table([(cell, count, _NAMES[cell]) for cell, count in counts.items()], width)
        idle_pinned = len(self._view.idle_pinned)
        if idle_pinned:
            yield from self._table([(Cell.PINNED, idle_pinned, "pinned (cached)")], width)
        if snapshot.tier_blocks:
            yield from self._table([(Cell.LOWER, snapshot.tier_blocks, "in swap space")], width)
        blocks = self._map.grid.blocks
        if blocks > 1:
            more = "; 9: all of them full" if self._map.uses_letters else ""
            yield (Segment(f"1 cell = {blocks} blocks{more}"[:width], self.look("map-legend--text")),)
        yield from self._chat_lines(self._view, width)

    def _chat_lines(self, view: EngineView, width: int) -> Iterable[Line]:
        row = view.row(self._chat)
        if row is None:
            return
        yield (Segment(fitted(one_line(row.title), width), self.look("map-legend--chat")),)
        counts = (row.own, row.shared, row.cached)
        yield from self._table([(cell, count, name) for (cell, name), count in zip(_OF_CHAT.items(), counts, strict=True)], width)

    def _table(self, entries: list[tuple[Cell, int, str]], width: int) -> Iterable[Line]:
        """Entries in as many columns as there is room for. Counts have the digits of the pool's size, so nothing moves."""
        digits = len(f"{self._view.num_blocks:,}") if self._view is not None else 1
        columns, names, gap = _columns([cell_len(name) for _, _, name in entries], digits + 3, width)
        for start in range(0, len(entries), columns):
            line = zip(entries[start : start + columns], names, strict=False)
            yield tuple(
                segment for (cell, count, name), size in line for segment in self._entry(cell, f"{count:{digits},}", name.ljust(size + gap))
            )

    def _entry(self, cell: Cell, count: str, name: str) -> Line:
        glyph, look = self._map.sample(cell)
        return (
            Segment(glyph + " ", look),
            Segment(f"{count} ", self.look("map-legend--number")),
            Segment(name, self.look("map-legend--text")),
        )


def _columns(names: list[int], extra: int, width: int) -> tuple[int, list[int], int]:
    """As many columns as there is room for, and as much space between them.

    Args:
        names: lengths of the names.
        extra: what each entry takes beside its name.
        width: of a line.

    Returns:
        The number of columns, the width of the names in each, and the space after them.
    """
    for columns in range(len(names), 1, -1):
        sizes = [max(names[i::columns]) for i in range(columns)]
        for gap in _GAPS:
            if sum(sizes) + columns * extra + gap * (columns - 1) <= width:
                return columns, sizes, gap
    return 1, [max(names)], 0
