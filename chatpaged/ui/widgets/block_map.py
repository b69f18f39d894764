"""The block map: the KV pool, a cell for each block.

```text
wide     ■ ■ ◆ □ □ · · ·      two columns a block, where there is room
narrow   ■■◆□□···             one column a block
scaled   ▇▇▅▂▁··              a cell for several blocks: coloured by what matters most, as high as they are full
letters  u u s c c . . .      without colours; scaled, with ninths: u9u9s4c1
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from chatpaged.engine_view import Cell

_RUNS = re.compile(rb"(.)\1*", re.DOTALL)
_BARS = "·▁▂▃▄▅▆▇█"
_DIMMED = 0.65
_FADED = 0.5
_OUTLINED = (Cell.CACHED, Cell.CHAT_CACHED)
_CLASSES = {cell: f"block-map--{cell.name.lower().replace('_', '-')}" for cell in Cell}
_SHAPES = {
    Cell.NULL: "x",
    Cell.FREE: "·",
    Cell.LOWER: "▾",
    Cell.CACHED: "□",
    Cell.PINNED: "▣",
    Cell.USED: "■",
    Cell.SHARED: "◆",
    Cell.CHAT_CACHED: "□",
    Cell.CHAT_PINNED: "▣",
    Cell.CHAT_USED: "■",
    Cell.CHAT_SHARED: "◆",
}
_LETTERS = {
    Cell.NULL: "0",
    Cell.FREE: ".",
    Cell.LOWER: "l",
    Cell.CACHED: "c",
    Cell.PINNED: "p",
    Cell.USED: "u",
    Cell.SHARED: "s",
    Cell.CHAT_CACHED: "C",
    Cell.CHAT_PINNED: "P",
    Cell.CHAT_USED: "U",
    Cell.CHAT_SHARED: "S",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Where cells are.

    Attributes:
        columns: cells in a line.
        lines: lines.
        cell_width: terminal columns that a cell takes.
        blocks: blocks that a cell stands for.
    """

    columns: int
    lines: int
    cell_width: int
    blocks: int

    @classmethod
    def fit(cls, num_blocks: int, width: int, max_lines: int, *, scaled_width: int = 1) -> Grid:
        """The roomiest grid that holds all blocks.

        Args:
            num_blocks: to be shown.
            width: terminal columns.
            max_lines: how high it may be.
            scaled_width: terminal columns of a cell that stands for several blocks.
        """
        width, max_lines = max(1, width), max(1, max_lines)
        for cell_width in (2, 1):
            columns = max(1, width // cell_width)
            if num_blocks <= columns * max_lines:
                return cls(columns, -(-num_blocks // columns), cell_width, 1)
        columns = max(1, width // scaled_width)
        blocks = -(-num_blocks // (columns * max_lines))
        return cls(columns, -(-num_blocks // (blocks * columns)), scaled_width, blocks)

    def blocks_at(self, x: int, y: int, num_blocks: int) -> range:
        """The blocks of the cell at a place; none beside the cells."""
        if not (0 <= x < self.columns * self.cell_width and 0 <= y < self.lines):
            return range(0)
        first = (y * self.columns + x // self.cell_width) * self.blocks
        return range(min(first, num_blocks), min(first + self.blocks, num_blocks))


class BlockMap(Widget):
    """All blocks at once."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(_CLASSES.values())
    DEFAULT_CSS = """
    BlockMap { height: auto; width: 1fr; }
    BlockMap > .block-map--null { color: $foreground 35%; }
    BlockMap > .block-map--free { color: $foreground 28%; }
    BlockMap > .block-map--lower { color: $foreground 55%; }
    BlockMap > .block-map--cached { color: $primary 85%; }
    BlockMap > .block-map--pinned { color: $foreground; }
    BlockMap > .block-map--used { color: $primary; }
    BlockMap > .block-map--shared { color: $success; }
    BlockMap > .block-map--chat-cached { color: $accent; }
    BlockMap > .block-map--chat-pinned { color: $accent; }
    BlockMap > .block-map--chat-used { color: $accent; text-style: bold; }
    BlockMap > .block-map--chat-shared { color: $accent; text-style: bold; }
    /* Here accent and success are the same green. */
    BlockMap:ansi > .block-map--cached { color: ansi_cyan; }
    BlockMap:ansi > .block-map--chat-cached { color: ansi_yellow; }
    BlockMap:ansi > .block-map--chat-pinned { color: ansi_yellow; }
    BlockMap:ansi > .block-map--chat-used { color: ansi_yellow; }
    BlockMap:ansi > .block-map--chat-shared { color: ansi_yellow; }
    /* Okabe and Ito's colours, which all kinds of colour vision tell apart. */
    BlockMap.-colorblind > .block-map--lower { color: #999999; }
    BlockMap.-colorblind > .block-map--cached { color: #56B4E9; }
    BlockMap.-colorblind > .block-map--pinned { color: #CC79A7; }
    BlockMap.-colorblind > .block-map--used { color: #0072B2; }
    BlockMap.-colorblind > .block-map--shared { color: #009E73; }
    BlockMap.-colorblind > .block-map--chat-cached { color: #E69F00; }
    BlockMap.-colorblind > .block-map--chat-pinned { color: #E69F00; }
    BlockMap.-colorblind > .block-map--chat-used { color: #E69F00; }
    BlockMap.-colorblind > .block-map--chat-shared { color: #E69F00; }
    """

    max_lines: reactive[int] = reactive(8, layout=True, init=False)
    """How high it may become."""

    class Pointed(Message):
        """The mouse points at blocks, or at none any more."""

        def __init__(self, blocks: range) -> None:
            super().__init__()
            self.blocks = blocks

    class Picked(Message):
        """Blocks were clicked."""

        def __init__(self, blocks: range) -> None:
            super().__init__()
            self.blocks = blocks

    def __init__(self, *, map_colors: str = "theme", id: str | None = None) -> None:  # noqa: A002 - Textual's name
        """Makes a map of no blocks.

        Args:
            map_colors: how states are told apart: `theme`, `colorblind` or `letters`.
            id: of the widget.
        """
        super().__init__(id=id)
        self._map_colors = map_colors
        self._cells = b""
        self._is_lit = False
        self._looks: dict[tuple[Cell, float], Style] = {}
        self._pointed = range(0)
        self.set_class(map_colors == "colorblind", "-colorblind")

    # --- what is shown -------------------------------------------------------------------------------------------------

    def show(self, cells: bytes, *, lit: bool = False) -> None:
        """Shows blocks.

        Args:
            cells: a `Cell` for each.
            lit: dim all that are not of the chat, which somebody points at.
        """
        before, self._cells = self._cells, cells
        if len(before) != len(cells):
            self.refresh(layout=True)
        elif lit != self._is_lit:
            self.refresh()
        elif before != cells:
            self._refresh_changed(before)
        self._is_lit = lit

    def _refresh_changed(self, before: bytes) -> None:
        grid = self.grid
        size = grid.columns * grid.blocks
        changed = (y for y in range(grid.lines) if before[y * size : (y + 1) * size] != self._cells[y * size : (y + 1) * size])
        self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    @property
    def grid(self) -> Grid:
        """Where the cells are now."""
        return self._fit(self.size.width)

    def _fit(self, width: int) -> Grid:
        return Grid.fit(len(self._cells), width, self.max_lines, scaled_width=2 if self.uses_letters else 1)

    @property
    def uses_letters(self) -> bool:
        """Whether states are told apart without colours."""
        return self._map_colors == "letters" or self.app.no_color

    def sample(self, cell: Cell) -> tuple[str, Style]:
        """How a state looks in the map, for a legend."""
        if self.uses_letters:
            return _LETTERS[cell], self.look(cell)
        is_bar = self.grid.blocks > 1 and cell > Cell.FREE
        return _BARS[-2] if is_bar else _SHAPES[cell], self._look_of(cell, is_bar=is_bar, lit=False)

    def look(self, cell: Cell, fade: float = 0.0) -> Style:
        """The style of a block, faded into the background."""
        key = (cell, fade)
        if key not in self._looks:
            styles = self.get_component_styles(_CLASSES[cell])
            background = self.background_colors[1]
            color = background + styles.color
            if color.ansi is not None or background.ansi is not None:  # the terminal's own colours cannot be mixed
                self._looks[key] = Style(color=color.rich_color, dim=fade > 0) + styles.text_style
            else:
                self._looks[key] = Style(color=color.blend(background, fade).rich_color) + styles.text_style
        return self._looks[key]

    def _look_of(self, cell: Cell, *, is_bar: bool, lit: bool) -> Style:
        if lit and cell < Cell.CHAT_CACHED:
            return self.look(cell, _DIMMED)
        # A bar cannot be an outline.
        return self.look(cell, _FADED if is_bar and cell in _OUTLINED and self._map_colors == "theme" else 0.0)

    # --- Textual -------------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        """Colours may be others now."""
        super().notify_style_update()
        self._looks = {}

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's signature
        """As many lines as the blocks need."""
        return self._fit(width).lines

    def render_line(self, y: int) -> Strip:
        """One line of cells."""
        grid = self.grid
        size = grid.columns * grid.blocks
        cells = self._cells[y * size : (y + 1) * size]
        segments = self._scaled(cells, grid.blocks) if grid.blocks > 1 else self._single(cells, grid.cell_width)
        return Strip(segments).adjust_cell_length(self.size.width).apply_style(self.visual_style.rich_style)

    def _single(self, cells: bytes, cell_width: int) -> list[Segment]:
        shapes = _LETTERS if self.uses_letters else _SHAPES
        segments = []
        for run in _RUNS.finditer(cells):
            cell = Cell(run.group(1)[0])
            segments.append(Segment(shapes[cell].ljust(cell_width) * len(run.group()), self._look_of(cell, is_bar=False, lit=self._is_lit)))
        return segments

    def _scaled(self, cells: bytes, blocks: int) -> list[Segment]:
        letters = self.uses_letters
        groups = [cells[start : start + blocks] for start in range(0, len(cells), blocks)]
        segments = []
        start = 0
        for run in _RUNS.finditer(bytes(map(max, groups))):
            cell = Cell(run.group(1)[0])
            end = start + len(run.group())
            glyphs = (_LETTERS[cell] + _digit(group) if letters else _bar(group) for group in groups[start:end])
            segments.append(Segment("".join(glyphs), self._look_of(cell, is_bar=not letters, lit=self._is_lit)))
            start = end
        return segments

    # --- the mouse -----------------------------------------------------------------------------------------------------

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Tells what is pointed at."""
        self._point(self.grid.blocks_at(event.x, event.y, len(self._cells)))

    def on_leave(self, event: events.Leave) -> None:
        """Nothing is pointed at."""
        if event.node is self:
            self._point(range(0))

    def on_click(self, event: events.Click) -> None:
        """Tells what is picked."""
        blocks = self.grid.blocks_at(event.x, event.y, len(self._cells))
        if blocks:
            self.post_message(self.Picked(blocks))

    def _point(self, blocks: range) -> None:
        if blocks != self._pointed:
            self._pointed = blocks
            self.post_message(self.Pointed(blocks))


def _bar(cells: bytes) -> str:
    """How full several blocks are: a bar of eighths, and a dot where all are free."""
    return _BARS[-(-8 * _filled(cells) // len(cells))]


def _digit(cells: bytes) -> str:
    """The same in ninths, without a bar."""
    return str(-(-9 * _filled(cells) // len(cells)) or " ")


def _filled(cells: bytes) -> int:
    return len(cells) - cells.count(Cell.FREE) - cells.count(Cell.NULL)
