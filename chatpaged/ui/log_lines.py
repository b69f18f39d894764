"""What libraries have printed while the application was on the screen: the last lines in memory, and a file."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chatpaged.pasted_text import clean_text
from chatpaged.paths import log_file, private_dir

MOST_LINES = 2000
LONGEST_LINE = 4000  # characters
LARGEST_FILE = 1_000_000  # bytes


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        time: when it came, in seconds since 1970.
        source: where from: `stdout`, `stderr`, `logging` or `warnings`.
        text: what it says; no control characters.
    """

    time: float
    source: str
    text: str

    def __str__(self) -> str:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.time))} {self.source}: {self.text}"


Listener = Callable[[LogLine], None]


class LogLines:
    """The last lines, and who wants to hear of new ones. Any thread may use it."""

    def __init__(self, path: Path | None = None) -> None:
        """Makes an empty list.

        Args:
            path: the file that lines go to as well; None is the user's log. One that cannot be written is done without.
        """
        self._path = path if path is not None else log_file()
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._listeners: list[Listener] = []
        self._begun: dict[tuple[str, int], str] = {}
        """Text that no newline has ended yet, by source and writer."""
        self._lock = threading.RLock()
        self._telling = threading.local()

    @property
    def lines(self) -> tuple[LogLine, ...]:
        """The last lines, oldest first."""
        with self._lock:
            return tuple(self._lines)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Has somebody hear of each new line, on the thread that it comes from. Returns what ends that."""
        with self._lock:
            self._listeners.append(listener)

        def unsubscribe() -> None:
            with self._lock, suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def feed(self, source: str, text: str, *, writer: int = 0) -> None:
        """Takes in text as it is printed. Whole lines are kept; of one that is overwritten, as progress bars are, the last state.

        Args:
            source: see `LogLine`.
            text: a piece of text.
            writer: what one writes goes into no line of another.
        """
        key = source, writer
        with self._lock:
            *whole, begun = (self._begun.pop(key, "") + text).replace("\r\n", "\n").split("\n")
            if begun:
                self._begun[key] = begun if len(begun) < LONGEST_LINE else _last_state(begun)[:LONGEST_LINE]
        for line in whole:
            self.add(source, _last_state(line))

    def flush(self) -> None:
        """Keeps what no newline has ended."""
        with self._lock:
            begun, self._begun = self._begun, {}
        for (source, _), text in begun.items():
            self.add(source, _last_state(text))

    def add(self, source: str, text: str) -> None:
        """Keeps text of one or more lines; empty ones are left out."""
        now = time.time()
        found = [part.replace("\t", "    ") for part in clean_text(text).split("\n") if part.strip()]
        lines = [LogLine(now, source, part if len(part) <= LONGEST_LINE else f"{part[:LONGEST_LINE]}…") for part in found]
        with self._lock:
            self._lines.extend(lines)
            listeners = list(self._listeners)
            self._write(lines)
        if not getattr(self._telling, "now", False):  # what a listener prints itself is not told: it would never end
            self._telling.now = True
            try:
                for listener in listeners:
                    for line in lines:
                        with suppress(RuntimeError):  # the event loop that it is meant for may have ended
                            listener(line)
            finally:
                self._telling.now = False

    def _write(self, lines: list[LogLine]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        with suppress(OSError):
            private_dir(self._path.parent)
            if self._path.exists() and self._path.stat().st_size + len(text) > LARGEST_FILE:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)


def _last_state(line: str) -> str:
    """What stands behind a carriage return overwrites what stands before it; one at the end waits for what comes."""
    return line.rstrip("\r").rpartition("\r")[2]
