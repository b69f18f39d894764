"""A terminal with nothing between it and the test: what a program writes to it, byte by byte."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.cli.runner import REPOSITORY
from tests.e2e.tmux import surroundings

_SECONDS = 60.0
_LOOK_SECONDS = 0.03
_ON = b"\x1b[?%dh"
_OFF = b"\x1b[?%dl"
ALTERNATE_SCREEN = 1049
MODES = (ALTERNATE_SCREEN, 1000, 1003, 1006, 2004)
CURSOR = 25
_ESCAPES = re.compile(r"\x1b\[[0-9;?<=>]*[a-zA-Z]")


class BareTerminal:
    """A program on a terminal of its own.

    Attributes:
        process: the program.
    """

    def __init__(
        self, directory: Path, *arguments: str, size: tuple[int, int] = (100, 30), environment: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self._settings = termios.tcgetattr(self._slave)
        self._written = bytearray()
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.troubled_app", *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            cwd=REPOSITORY,
            env=surroundings(directory) | {"TERM": "xterm-256color"} | dict(environment or {}),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 1 << 16)
            except OSError:
                return  # nobody has it open any more
            with self._more:
                self._written += piece
                self._more.notify_all()

    @property
    def written(self) -> bytes:
        """All that was written to it."""
        with self._more:
            return bytes(self._written)

    def send(self, keys: str) -> int:
        """Presses keys. Returns how much had been written before."""
        before = len(self.written)
        os.write(self._master, keys.encode())
        return before

    def wait(self, text: str, *, since: int = 0) -> int:
        """Waits until a text has been written. Returns where it ends."""
        wanted, end = text.encode(), time.monotonic() + _SECONDS
        with self._more:
            while (at := self._written.find(wanted, since)) < 0:
                assert self._more.wait(end - time.monotonic()), f"{text!r} was not written; the end is {bytes(self._written[-1500:])!r}"
            return at + len(wanted)

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until something holds that is not to be seen."""
        end = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(_LOOK_SECONDS)  # between two looks

    def end(self) -> int:
        """Waits for the end of the program and for the last of what it has written. Returns its exit status."""
        status = self.process.wait(_SECONDS)
        self.settings_are_as_before = termios.tcgetattr(self._slave) == self._settings
        os.close(self._slave)
        self._reader.join(_SECONDS)
        return status

    def assert_as_before(self) -> None:
        """Asserts that every mode has been left, after it was entered, and that lines and echo are as they were."""
        written = self.written
        for mode in MODES:
            entered, left = written.rfind(_ON % mode), written.rfind(_OFF % mode)
            assert entered >= 0, f"mode {mode} was never entered"
            assert left > entered, f"mode {mode} was not left"
        assert written.rfind(_ON % CURSOR) > written.rfind(_OFF % CURSOR)
        assert self.settings_are_as_before

    def after_the_screen(self) -> str:
        """The text that stands on the normal screen after the application has left."""
        return _ESCAPES.sub("", self.written.rpartition(_OFF % ALTERNATE_SCREEN)[2].decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            os.close(self._slave)
            self._reader.join(_SECONDS)
        os.close(self._master)
