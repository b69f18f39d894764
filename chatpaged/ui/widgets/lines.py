"""The base of widgets that show many small things, some of which change several times a second."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

Line = tuple[Segment, ...]


class Lines(Widget):
    """Lines of segments. Those that are new are painted; the layout is asked only when their number changes."""

    DEFAULT_CSS = """
    Lines { height: auto; width: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._built_for: int | None = None
        self._looks: dict[str, Style] = {}

    def lines(self, width: int) -> Iterable[Line]:
        """What there is to see, in this width."""
        raise NotImplementedError

    def renew(self) -> None:
        """Shows what has changed. To be called when `lines` would give something else than before."""
        width = self.size.width
        before = self._lines
        if not width or self._built_for != width:
            self._built_for = None
            self.refresh(layout=True)
            return
        self._lines = list(self.lines(width))
        if len(before) != len(self._lines):
            self.refresh(layout=True)
            return
        changed = [y for y, (old, new) in enumerate(zip(before, self._lines, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def look(self, name: str, *more: str) -> Style:
        """The style of a component class, with its transparency over what lies below."""
        key = " ".join((name, *more))
        if key not in self._looks:
            styles = self.get_component_styles(name, *more)
            color = self.background_colors[1] + styles.color
            self._looks[key] = Style(color=color.rich_color) + styles.text_style
        return self._looks[key]

    def notify_style_update(self) -> None:
        """Colours may be others now."""
        super().notify_style_update()
        self._looks = {}
        self._built_for = None

    def on_resize(self, event: events.Resize) -> None:
        """Lines are made for a width."""
        if event.size.width != self._built_for:
            self.renew()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's signature
        """As many lines as there are."""
        return len(self._built(width)) if width else 0

    def render_line(self, y: int) -> Strip:
        """One line."""
        width = self.size.width
        lines = self._built(width)
        # Strips are not given the background by Textual.
        base = self.visual_style.rich_style
        return Strip(lines[y]).adjust_cell_length(width).apply_style(base) if y < len(lines) else Strip.blank(width, base)

    def _built(self, width: int) -> list[Line]:
        if self._built_for != width:
            self._lines = list(self.lines(width))
            self._built_for = width
        return self._lines
