"""A terminal that goes away while the application is on it."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any, cast

import pytest
from textual.app import App
from textual.drivers._writer_thread import WriterThread

from chatpaged.ui.terminal_input import TerminalDriver
from tests.ui.patient_pilot import SECONDS


class Asked(App[None]):
    """Notes what it is asked for from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def call_later(self, callback: Any, *args: Any, **kwargs: Any) -> bool:
        self.calls.append(callback)
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of the terminal that the driver will be on; the test closes it."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as raw, os.fdopen(os.dup(slave), "w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "__stdin__", raw)
        monkeypatch.setattr(sys, "__stderr__", out)
        yield master


async def made(app: Asked) -> TerminalDriver:
    return TerminalDriver(app)


def driver_of(app: Asked) -> TerminalDriver:
    """Drivers are made while a loop runs."""
    return asyncio.run(made(app))


def within_seconds(thread: threading.Thread) -> bool:
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


def test_whoever_writes_never_waits_for_it(terminal: int) -> None:
    driver = driver_of(Asked())
    writer = driver._writer_thread = WriterThread(cast(IO[str], driver._file))
    writer.start()
    os.close(terminal)

    def write() -> None:
        for _ in range(200):
            driver.write("x" * 100)
        driver.close()

    assert within_seconds(threading.Thread(target=write, daemon=True))
    assert not writer.is_alive()


def test_the_application_is_asked_to_end(terminal: int) -> None:
    app = Asked()
    driver = driver_of(app)
    os.close(terminal)
    assert within_seconds(threading.Thread(target=driver.run_input_thread, daemon=True))
    assert app.calls == [app.action_quit]
