"""The application in a terminal that a script has its hands on: keys go in, what would be on the screen comes out, with the time."""

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
from typing import Self

_COLUMNS, _ROWS = 140, 40
_SECONDS = 60.0


class Terminal:
    """A process on a terminal of its own.

    Attributes:
        started: when the process was started, on the monotonic clock, as all times here.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a process.

        Args:
            command: program and arguments.
            environment: what it is to find in its environment.
        """
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self._seen = bytearray()
        self._arrivals: list[tuple[int, float]] = []
        self._more = threading.Condition()
        self.started = time.monotonic()
        self._process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=dict(environment), start_new_session=True)
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 1 << 16)
            except OSError:  # nobody has the other side open any more
                return
            with self._more:
                self._seen += piece
                self._arrivals.append((len(self._seen), time.monotonic()))
                self._more.notify_all()

    @property
    def position(self) -> int:
        """How much has been written so far."""
        with self._more:
            return len(self._seen)

    def send(self, keys: str) -> tuple[int, float]:
        """Presses keys. Returns what had been written before, and the time."""
        position, now = self.position, time.monotonic()
        os.write(self._master, keys.encode())
        return position, now

    def wait(self, text: str, *, since: int = 0, seconds: float = _SECONDS) -> float:
        """Waits until a text has been written after a position. Returns when it was."""
        wanted = text.encode()
        deadline = time.monotonic() + seconds
        with self._more:
            while (at := self._seen.find(wanted, since)) < 0:
                if not self._more.wait(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(f"{text!r} has not been shown; the last that was: {bytes(self._seen[-2000:])!r}")
            end = at + len(wanted)
            return next(when for size, when in self._arrivals if size >= end)

    def end(self, keys: str) -> int:
        """Presses keys that end the process. Returns its exit status."""
        self.send(keys)
        return self._process.wait(_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
