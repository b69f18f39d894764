"""The engine's last steps: how large they were, and where their time went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment

from chatpaged.engine_view import STEP_PARTS, fold
from chatpaged.ui.short_texts import fitted, share, short_count
from chatpaged.ui.widgets.lines import Line, Lines

_BARS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 2
_LETTERS = {"schedule": "s", "operations": "o", "prepare": "p", "forward": "f", "sample": "d", "process": "t"}
_NAMES = {
    "schedule": "schedule",
    "operations": "moves",
    "prepare": "prepare",
    "forward": "forward",
    "sample": "sample",
    "process": "process",
}


class StepSeries(Lines):
    """One number of each of the last steps, the newest on the right, on a scale that moves in powers of two."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"step-series--name", "step-series--number", "step-series--text", "step-series--bar"}
    DEFAULT_CSS = """
    StepSeries > .step-series--name { color: $text-primary; text-style: bold; }
    StepSeries > .step-series--number { color: $foreground; text-style: bold; }
    StepSeries > .step-series--text { color: $foreground 60%; }
    StepSeries > .step-series--bar { color: $primary; }
    StepSeries.-second > .step-series--bar { color: $success; }
    """

    def __init__(self, name: str, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._title = name
        self._series: tuple[int, ...] = ()
        self._now = 0

    def show(self, series: Sequence[int], now: int) -> None:
        """Shows numbers.

        Args:
            series: oldest first.
            now: the number beside the title; 0 when nothing runs.
        """
        self._series, self._now = tuple(series), now
        self.renew()

    def lines(self, width: int) -> Iterable[Line]:
        """A title with the number of now and the scale, then the chart."""
        top = scale(self._series)
        right = f"top {short_count(top)}"
        left = f"{self._title} "
        number = short_count(self._now)
        gap = width - len(left) - len(number) - len(right)
        yield (
            Segment(left, self.look("step-series--name")),
            Segment(number, self.look("step-series--number")),
            Segment(" " * max(1, gap) + right, self.look("step-series--text")),
        )
        values = fold(self._series, width)
        for line in reversed(range(_HEIGHT)):
            yield (Segment(bars(values, top, line).rjust(width), self.look("step-series--bar")),)


def scale(series: Sequence[int]) -> int:
    """The smallest power of two that is nowhere exceeded, and at least 4."""
    return 1 << max(2, (max(series, default=0) - 1).bit_length())


def bars(values: Sequence[int], top: int, line: int) -> str:
    """One line of a chart of `_HEIGHT` lines, counted from below. What is not nothing is seen."""
    eighths = (max(1, round(8 * _HEIGHT * value / top)) if value else 0 for value in values)
    return "".join(_BARS[min(8, max(0, count - 8 * line))] for count in eighths)


class TimeSplit(Lines):
    """Where the time of a step goes: one bar of all parts, with a legend."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "time-split--title",
        "time-split--number",
        "time-split--text",
        *(f"time-split--{part}" for part in STEP_PARTS),
    }
    DEFAULT_CSS = """
    TimeSplit > .time-split--title { color: $text-primary; text-style: bold; }
    TimeSplit > .time-split--number { color: $foreground; }
    TimeSplit > .time-split--text { color: $foreground 60%; }
    TimeSplit > .time-split--schedule { color: $accent; }
    TimeSplit > .time-split--operations { color: $error; }
    TimeSplit > .time-split--prepare { color: $primary 50%; }
    TimeSplit > .time-split--forward { color: $primary; }
    TimeSplit > .time-split--sample { color: $success; }
    TimeSplit > .time-split--process { color: $foreground 50%; }
    TimeSplit.-colorblind > .time-split--schedule { color: #56B4E9; }
    TimeSplit.-colorblind > .time-split--operations { color: #D55E00; }
    TimeSplit.-colorblind > .time-split--prepare { color: #E69F00; }
    TimeSplit.-colorblind > .time-split--forward { color: #0072B2; }
    TimeSplit.-colorblind > .time-split--sample { color: #009E73; }
    TimeSplit.-colorblind > .time-split--process { color: #CC79A7; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._split: Mapping[str, float] = {}
        self._seconds = 0.0
        self.uses_letters = False

    def show(self, split: Mapping[str, float], seconds: float) -> None:
        """Shows shares of a step's time; nothing before the first step."""
        self._split, self._seconds = split, seconds
        self.renew()

    def lines(self, width: int) -> Iterable[Line]:
        """A title with the time of a step, the bar, the legend."""
        split = self._split
        text = self.look("time-split--text")
        right = f"{1000 * self._seconds:.1f} ms a step" if split else "no step yet"
        yield (Segment("Time of a step", self.look("time-split--title")), Segment(right.rjust(max(0, width - 14)), text))
        glyph = "█" if split else "·"
        widths = apportion([split.get(part, 0.0) for part in STEP_PARTS], width)
        bar = tuple(
            Segment((_LETTERS[part] if self.uses_letters else glyph) * columns, self.look(f"time-split--{part}"))
            for part, columns in zip(STEP_PARTS, widths, strict=True)
            if columns
        )
        yield bar if split else (Segment(glyph * width, text),)
        yield from self._legend(width)

    def _legend(self, width: int) -> Iterable[Line]:
        size = 2 + max(map(len, _NAMES.values())) + 1 + 4
        columns = max(1, min(3, (width + 2) // (size + 2)))
        for start in range(0, len(STEP_PARTS), columns):
            parts = STEP_PARTS[start : start + columns]
            yield tuple(segment for part in parts for segment in self._entry(part, size))

    def _entry(self, part: str, size: int) -> Line:
        figure = share(self._split[part]) if self._split else "-"
        mark = _LETTERS[part] if self.uses_letters else "■"
        return (
            Segment(mark + " ", self.look(f"time-split--{part}")),
            Segment(fitted(_NAMES[part], size - 7), self.look("time-split--text")),
            Segment(figure.rjust(5), self.look("time-split--number")),
            Segment("  "),
        )


def apportion(shares: Sequence[float], width: int) -> list[int]:
    """Columns for each share, which fill the width exactly: the largest remainders are rounded up."""
    total = sum(shares)
    if not total:
        return [0] * len(shares)
    exact = [width * part / total for part in shares]
    columns = [int(part) for part in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: columns[i] - exact[i])
    for i in by_remainder[: width - sum(columns)]:
        columns[i] += 1
    return columns
