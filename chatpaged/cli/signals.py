"""What Ctrl-C and a request to end do: at once while there is nothing to lose, as an exception while there is.

An exception in the middle of an import, or of the interpreter's own end, would come out as somebody else's traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
TERMINATED = 143

_Handler = Callable[[int, FrameType | None], object]
_STATUS = {"SIGINT": INTERRUPTED, "SIGTERM": TERMINATED, "SIGHUP": TERMINATED}


class Interrupted(BaseException):
    """The user pressed Ctrl-C (SIGINT), or the process was asked to end (SIGTERM, SIGHUP).

    Attributes:
        status: the exit status that says so.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def statuses() -> dict[int, int]:
    """The signals that are handled here, unless they are ignored, and the exit status of each."""
    numbers = {getattr(signal, name): status for name, status in _STATUS.items() if hasattr(signal, name)}
    return {number: status for number, status in numbers.items() if signal.getsignal(number) is not signal.SIG_IGN}


def leave_at_once() -> None:
    """From now on such a signal ends the process without another word."""
    _handle(_leave)


def raise_interrupted() -> None:
    """From now on such a signal raises `Interrupted`."""
    _handle(_raise)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within, such a signal ends the process without another word; afterwards it raises again."""
    with _within(_leave):
        yield


@contextmanager
def dying() -> Iterator[None]:
    """Within, such a signal kills the process, also in the middle of a long call that Python knows nothing of."""
    with _within(signal.SIG_DFL):
        yield


@contextmanager
def _within(handler: _Handler | signal.Handlers) -> Iterator[None]:
    _handle(handler)
    try:
        yield
    finally:
        raise_interrupted()


def _handle(handler: _Handler | signal.Handlers) -> None:
    for name in _STATUS:
        number = getattr(signal, name, None)
        # What is ignored stays ignored: that is how a shell protects jobs in the background.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _status(number: int) -> int:
    return _STATUS[signal.Signals(number).name]


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    try:
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\r\x1b[K")  # a status line that may stand there
    except OSError:
        pass
    os._exit(_status(number))


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise Interrupted(_status(number))
