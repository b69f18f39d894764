"""How far a download is: often, for a terminal, and now and then, for a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from chatpaged.amounts import disk_size

_INTERVAL = 0.2  # seconds between two changes of the line on a terminal
_TOLD = 4  # lines in a log, but for the first


class Progress:
    """Counts the bytes of one download of several files.

    Attributes:
        begun: whether anything is being downloaded yet.
    """

    def __init__(self, name: str, tell: Callable[[str], None], show: Callable[[str], None]) -> None:
        """Notes who is to hear about what.

        Args:
            name: what is being fetched.
            tell: hears a few times.
            show: hears several times a second.
        """
        self._name = name
        self._tell = tell
        self._show = show
        self._total = 0
        self._done = 0
        self._received = 0
        self._started = self._last = time.monotonic()
        self.begun = False

    def begin(self, total: int) -> None:
        """Says what is coming. `total` is in bytes."""
        self._total = total
        self.begun = True
        self._started = time.monotonic()
        self._tell(f"fetching {self._name} ({disk_size(total)}, once)")

    def advance(self, count: int) -> None:
        """Counts bytes that are there already; fewer than none when a file has to begin again."""
        self._done += count

    def receive(self, count: int) -> None:
        """Counts bytes that came just now."""
        before = self._done
        self._done += count
        self._received += count
        now = time.monotonic()
        if self._total and self._done * _TOLD // self._total > before * _TOLD // self._total and self._done < self._total:
            self._tell(self.state())
        elif now - self._last >= _INTERVAL:
            self._last = now
            self._show(self.state())

    def say(self, text: str) -> None:
        """Shows something else for a while."""
        self._show(text)

    def state(self) -> str:
        """How far it is, in words."""
        if not self.begun:
            return f"nothing of {self._name} was fetched"
        share = 100 * self._done // self._total if self._total else 100
        speed = self._received / max(time.monotonic() - self._started, 1e-3)
        return f"fetched {disk_size(self._done)} of {disk_size(self._total)} of {self._name} ({share} %, {disk_size(speed)}/s)"
