"""What a part of the script finds out, row by row, and within what time. A row is plain data: it crosses from process to process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NO_TIME = "no time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        part: which part of the script.
        what: what was measured.
        value: the figure; None if there is none.
        unit: of the figure.
        least: the figure has to be at least this.
        most: the figure has to be at most this.
        note: what else there is to say.
        left_out: why it was not measured.
        error: what went wrong instead.
        detail: one of many that another row sums up: shown only where it is not as it should be.
    """

    part: str
    what: str
    value: float | None = None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""
    left_out: str = ""
    error: str = ""
    detail: bool = False

    @property
    def target(self) -> str:
        """The bound, for people."""
        bounds = [f"at least {self.least:g}"] if self.least is not None else []
        return " and ".join([*bounds, *([f"at most {self.most:.3g}"] if self.most is not None else [])])

    @property
    def met(self) -> bool | None:
        """Whether the figure keeps to its bound; None where there is no bound, or no figure to hold against it."""
        if self.value is None or (self.least is None and self.most is None):
            return None
        # Written so that NaN keeps to no bound.
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def is_bad(self) -> bool:
        """Whether the script has failed for it."""
        return bool(self.error) or self.met is False

    @property
    def result(self) -> str:
        """What came of it, in a few words."""
        if self.error:
            return f"FAILED: {self.error}"
        if self.left_out:
            return f"left out: {self.left_out}"
        return {None: "", True: "met", False: "NOT MET"}[self.met]

    def shown(self) -> dict[str, Any]:
        """This as a line of the table."""
        value = "" if self.value is None else f"{self.value:,.1f}" if abs(self.value) >= 100 else f"{self.value:.3g}"
        names = {"part": self.part, "what": self.what, "value": value, "unit": self.unit, "target": self.target}
        return names | {"result": "; ".join(text for text in (self.result, self.note) if text)}

    def saved(self) -> dict[str, Any]:
        """This as JSON has it."""
        return asdict(self) | {"met": self.met}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all parts are told.

    Attributes:
        smoke: the same code with tiny shapes, on a CPU: what is measured means nothing.
        directory: where models with random weights lie, and where they are written.
        deadline: `time.monotonic()` at which this part should have ended; the clock is the same for all processes of a machine.
    """

    smoke: bool
    directory: Path
    deadline: float

    @property
    def device(self) -> str:
        """Where models run."""
        return "cpu" if self.smoke else "cuda"

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.deadline - time.monotonic()


class Report:
    """One part's rows, handed on as they come: of a part that is ended from outside, what it has found out is not lost.

    Attributes:
        settings: what the part is told.
    """

    def __init__(self, part: str, settings: Settings, write: Callable[[Row], None]) -> None:
        self.settings = settings
        self._part = part
        self._write = write

    def add(self, what: str, value: float, unit: str = "", **more: Any) -> None:
        """Something was measured. `more` are attributes of `Row`."""
        self._write(Row(part=self._part, what=what, value=value, unit=unit, **more))

    def leave_out(self, what: str, why: str, **more: Any) -> None:
        """Something cannot be measured."""
        self._write(Row(part=self._part, what=what, left_out=why, **more))

    def fail(self, what: str, error: BaseException) -> None:
        """Something went wrong."""
        self._write(Row(part=self._part, what=what, error=describe(error)))

    def has_time(self, what: str, seconds: float = 0.0, **more: Any) -> bool:
        """Whether so many seconds are left for something; it is told as left out if not."""
        if self.settings.seconds_left > seconds:
            return True
        self.leave_out(what, NO_TIME, **more)
        return False

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What is done within may fail: then that is a row, and the next one is tried."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the other rows do not depend on it
            self.fail(what, error)


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
