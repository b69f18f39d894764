"""A terminal with nothing between it and the test: what a program writes to it, byte by byte."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.terminal import Terminal
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


class BareTerminal(Terminal):
    """The application, with trouble if it is wanted, on a terminal of its own."""

    def __init__(
        self, directory: Path, *arguments: str, size: tuple[int, int] = (100, 30), environment: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        super().__init__(
            [sys.executable, "-m", "tests.e2e.troubled_app", *arguments],
            surroundings(directory) | {"TERM": "xterm-256color"} | dict(environment or {}),
            size=size,
            directory=REPOSITORY,
        )

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until something holds that is not to be seen."""
        end = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(_LOOK_SECONDS)  # between two looks

    def assert_as_before(self) -> None:
        """Asserts that every mode has been left, after it was entered, and that lines and echo are as they were."""
        written = self.written
        for mode in MODES:
            entered, left = written.rfind(_ON % mode), written.rfind(_OFF % mode)
            assert entered >= 0, f"mode {mode} was never entered"
            assert left > entered, f"mode {mode} was not left"
        assert written.rfind(_ON % CURSOR) > written.rfind(_OFF % CURSOR)
        assert self.has_settings_of_before

    def after_the_screen(self) -> str:
        """The text that stands on the normal screen after the application has left."""
        return _ESCAPES.sub("", self.written.rpartition(_OFF % ALTERNATE_SCREEN)[2].decode())
