"""Names with numbers, aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment

from chatpaged.ui.short_texts import fitted
from chatpaged.ui.widgets.lines import Line, Lines


class Figure(NamedTuple):
    """A number under its name.

    Attributes:
        name: what it is.
        value: the number, short.
        more: said after it, in a quieter colour.
    """

    name: str
    value: str
    more: str = ""


class Figures(Lines):
    """A column of figures."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"figures--title", "figures--name", "figures--value", "figures--more"}
    DEFAULT_CSS = """
    Figures > .figures--title { color: $text-primary; text-style: bold; }
    Figures > .figures--name { color: $foreground 60%; }
    Figures > .figures--value { color: $foreground; text-style: bold; }
    Figures > .figures--more { color: $foreground 60%; }
    """

    def __init__(self, title: str, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._title = title
        self._figures: tuple[Figure, ...] = ()

    def show(self, figures: Sequence[Figure]) -> None:
        """Shows figures in place of those before."""
        self._figures = tuple(figures)
        self.renew()

    def lines(self, width: int) -> Iterable[Line]:
        """The title, then a line for each: names on the left, numbers in a column of their own."""
        yield (Segment(fitted(self._title, width), self.look("figures--title")),)
        values = max((cell_len(figure.value) for figure in self._figures), default=0)
        more = max((cell_len(figure.more) + 1 for figure in self._figures if figure.more), default=0)
        if width - values - more < max((cell_len(figure.name) for figure in self._figures), default=0):
            more = 0
        for figure in self._figures:
            yield (
                Segment(fitted(figure.name, width - values - more), self.look("figures--name")),
                Segment(figure.value.rjust(values), self.look("figures--value")),
                Segment(fitted(f" {figure.more}", more), self.look("figures--more")),
            )


class Heading(Lines):
    """A title on the left, what there is to say about it on the right."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"heading--title", "heading--more"}
    DEFAULT_CSS = """
    Heading > .heading--title { color: $text-primary; text-style: bold; }
    Heading > .heading--more { color: $foreground 60%; }
    """

    def __init__(self, title: str, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._title = title
        self._more = ""

    def show(self, more: str) -> None:
        """Shows what there is to say."""
        self._more = more
        self.renew()

    def lines(self, width: int) -> Iterable[Line]:
        """One line; without room for both, the title alone."""
        gap = width - cell_len(self._title) - cell_len(self._more)
        more = " " * gap + self._more if gap > 0 else ""
        yield (Segment(fitted(self._title, width - cell_len(more)), self.look("heading--title")), Segment(more, self.look("heading--more")))
