"""A program in a terminal that a script has its hands on: keys go in, what would be on the screen comes out, with the time."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_SIZE = (140, 40)
_SECONDS = 60.0


class Terminal:
    """A process on a terminal of its own.

    Attributes:
        started: when the process was started, on the monotonic clock, as all times here.
        process: the process.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, size: tuple[int, int] = _SIZE, directory: Path | None = None
    ) -> None:
        """Starts a process.

        Args:
            command: program and arguments.
            environment: what it is to find in its environment.
            size: columns and rows.
            directory: where it runs; None is where this one does.
        """
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self._settings = termios.tcgetattr(slave)
        self._written = bytearray()
        self._arrivals: list[tuple[int, float]] = []
        self._more = threading.Condition()
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=directory, env=dict(environment), start_new_session=True
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 1 << 16)
            except OSError:  # nobody has the other side open any more
                return
            with self._more:
                self._written += piece
                self._arrivals.append((len(self._written), time.monotonic()))
                self._more.notify_all()

    @property
    def written(self) -> bytes:
        """All that was written to it."""
        with self._more:
            return bytes(self._written)

    @property
    def has_settings_of_before(self) -> bool:
        """Whether lines, echo and all that are as they were before the process was started."""
        return termios.tcgetattr(self._master) == self._settings

    def send(self, keys: str) -> tuple[int, float]:
        """Presses keys. Returns how much had been written before, and the time."""
        with self._more:
            position, now = len(self._written), time.monotonic()
        os.write(self._master, keys.encode())
        return position, now

    def wait(self, text: str, *, since: int = 0) -> int:
        """Waits until a text has been written after a position. Returns where it ends."""
        wanted, deadline = text.encode(), time.monotonic() + _SECONDS
        with self._more:
            while (at := self._written.find(wanted, since)) < 0:
                if not self._more.wait(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(f"{text!r} has not been written; the last that was: {bytes(self._written[-2000:])!r}")
            return at + len(wanted)

    def time_of(self, text: str, *, since: int = 0) -> float:
        """Waits in the same way. Returns when the text was there."""
        end = self.wait(text, since=since)
        with self._more:
            return next(when for size, when in self._arrivals if size >= end)

    def end(self) -> int:
        """Waits for the end of the process and for the last of what it has written. Returns its exit status."""
        status = self.process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.end()
        os.close(self._master)
