"""A widget for long text: only rows that are seen are rendered, and a text that grows is laid out from its first new line on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from chatpaged.ui.widgets.flow_lines import FlowLine, Row

_KEPT_ROWS = 256
"""Rendered rows that a widget keeps; Textual keeps finished ones as well."""


class OneLayout(Widget):
    """A widget whose growth takes one layout.

    When a layout has given a widget another size, Textual has the widget ask for a second layout, in case it scrolls. What does not
    scroll is spared that: it would double the work for every token.
    """

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002
        return super()._size_updated(size, virtual_size, container_size, layout=False)


class Flow(OneLayout):
    """Lines of text, broken at words; what is copied from it has the breaks of the text only."""

    DEFAULT_CSS = """
    Flow {
        width: 1fr;
        height: auto;
    }
    """

    def __init__(self, lines: Sequence[FlowLine] = ()) -> None:
        super().__init__()
        self.lines: list[FlowLine] = list(lines)
        self._starts: list[int] = [0]
        self._width = 0
        self._strips: dict[int, Strip] = {}
        self._rendered_for: tuple[object, ...] = ()

    # --- what is in it --------------------------------------------------------------------------------------------------

    def set_lines(self, lines: Sequence[FlowLine], keep: int = 0) -> None:
        """Exchanges lines.

        Args:
            lines: the new ones.
            keep: how many of the old ones stay before them.
        """
        self.lines[keep:] = lines
        before = self._starts[-1]
        del self._starts[keep + 1 :]
        first = self._starts[-1]
        self._strips = {y: strip for y, strip in self._strips.items() if y < first}
        if self._width:
            self._lay_out()
        self.clear_cached_dimensions()
        self.refresh(layout=self._starts[-1] != before or not self._width)

    def exchange_line(self, index: int, line: FlowLine) -> None:
        """Exchanges one line for another, which as a rule takes as many rows."""
        rows = range(*self._starts[index : index + 2]) if index < len(self._starts) - 1 else None
        if rows is not None and line.height(self._width) != len(rows):
            self.set_lines([line, *self.lines[index + 1 :]], keep=index)
            return
        self.lines[index] = line
        for y in rows or ():
            self._strips.pop(y, None)
        self.refresh()

    # --- where it is ----------------------------------------------------------------------------------------------------

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's interface
        """How many rows the text takes at a width."""
        if width != self._width:
            self._width = width
            self._starts = [0]
            self._strips.clear()
        self._lay_out()
        return self._starts[-1]

    def _lay_out(self) -> None:
        """Counts the rows of lines that were not counted yet."""
        starts, width = self._starts, self._width
        for line in self.lines[len(starts) - 1 :]:
            starts.append(starts[-1] + line.height(width))

    # --- what is seen ---------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One row."""
        width, style = self.size.width, self.visual_style
        if width != self._width:
            self.get_content_height(self.size, self.size, width)
        situation = (style, self.text_selection, self.app.theme)
        if situation != self._rendered_for:
            self._rendered_for = situation
            self._strips.clear()
        if y not in self._strips:
            self._render_row(y, width, style)
        return self._strips.get(y) or Strip.blank(width, style.rich_style)

    def notify_style_update(self) -> None:
        """Colours may have changed."""
        self._strips.clear()
        super().notify_style_update()

    def _render_row(self, y: int, width: int, style: Style) -> None:
        index = bisect_right(self._starts, y) - 1
        if not 0 <= index < len(self.lines):
            return
        if len(self._strips) > _KEPT_ROWS:
            self._strips.clear()
        line = self.lines[index]
        row = line.row(width, y - self._starts[index])
        self._strips[y] = self._strip(line, row, index, style).adjust_cell_length(width, style.rich_style)

    def _strip(self, line: FlowLine, row: Row, y: int, style: Style) -> Strip:
        lead, text = row.lead, row.text
        before = len(line.lead.plain)
        selection = self.text_selection
        if selection is not None and not line.ornament and (span := selection.get_span(y)) is not None:
            chosen = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            start, end = span
            if line.atomic:
                text = text.stylize(chosen)
            else:
                last = before + len(line.body.plain) if end == -1 else end
                first = row.x + before
                text = text.stylize(chosen, max(start - first, 0), max(last - first, 0))
                lead = lead.stylize(chosen, start, min(last, before)) if row.is_first else lead
        segments: list[Segment] = []
        x = 0 if row.is_first else row.x + before
        for content, counts in ((lead, row.is_first), (text, True)):
            for piece, piece_style in content.render(style, end="", parse_style=self._get_style):
                segments.append(Segment(piece, (style + piece_style).rich_style_with_offset(x, y)))
                x += len(piece) if counts and not line.atomic else 0
        return Strip(segments, lead.cell_length + text.cell_length)

    # --- what is copied -------------------------------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text under a selection, with the breaks of lines that it was written with."""
        found: list[str] = []
        for y, line in enumerate(self.lines):
            span = selection.get_span(y)
            if span is not None and not line.ornament:
                start, end = span
                found.append(line.copy(start, None if end == -1 else end))
        return "\n".join(found), "\n"
