"""Who runs, who waits, and how fast it goes, on one line; below it what the model runs on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment

from chatpaged.engine.sequence import SequenceStatus
from chatpaged.engine_view import EngineView
from chatpaged.ui.short_texts import fitted, short_speed
from chatpaged.ui.widgets.lines import Line, Lines


class EngineStatus(Lines):
    """Counts of sequences, tokens a second, and the code."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"engine-status--number", "engine-status--text", "engine-status--alarm"}
    DEFAULT_CSS = """
    EngineStatus > .engine-status--number { color: $foreground; text-style: bold; }
    EngineStatus > .engine-status--text { color: $foreground 60%; }
    EngineStatus > .engine-status--alarm { color: $text-error; text-style: bold; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._view: EngineView | None = None

    def show(self, view: EngineView) -> None:
        """Shows all of it."""
        self._view = view
        self.renew()

    def lines(self, width: int) -> Iterable[Line]:
        """Two lines; the speed gets a line of its own where there is no room."""
        if self._view is None:
            return
        view = self._view
        number, text, alarm = (self.look(f"engine-status--{name}") for name in ("number", "text", "alarm"))
        preempted = view.count(SequenceStatus.PREEMPTED)
        counts = (
            Segment(f"{view.count(SequenceStatus.RUNNING)}", number),
            Segment(" running  ", text),
            Segment(f"{view.count(SequenceStatus.WAITING)}", number),
            Segment(" waiting  ", text),
            Segment(f"{preempted}", alarm if preempted else number),
            Segment(" preempted", text),
        )
        speed = (Segment(short_speed(view.speed), number), Segment(" tok/s", text))
        gap = width - sum(segment.cell_length for segment in (*counts, *speed))
        if gap >= 2:
            yield (*counts, Segment(" " * gap), *speed)
        else:
            yield counts
            yield speed
        yield (Segment(fitted(view.snapshot.code, width), text),)
