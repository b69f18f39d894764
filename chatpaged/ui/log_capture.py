"""Keeps what libraries print off the screen: Python's streams, `logging`, `warnings`, and what C code writes to descriptors 1 and 2.

```text
print, sys.stderr ──> stream ──┐
logging, warnings ──> handler ─┼─> LogLines
C code, children ──> fd 1, 2 ──> pipes ──> reader thread
Textual ──> sys.__stderr__ ──> a copy of the terminal's descriptor
```
"""

from __future__ import annotations

import codecs
import fcntl
import io
import logging
import os
import selectors
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

from chatpaged.ui.log_lines import LogLines

_OUT, _ERR = 1, 2
_NAMES = {_OUT: "stdout", _ERR: "stderr"}
_PIPE_BYTES = 1 << 20
_PIECE = 1 << 16


class OutputCapture:
    """What was caught, and what is needed while it is being caught.

    Attributes:
        lines: the lines.
    """

    def __init__(self, lines: LogLines) -> None:
        self.lines = lines
        self._streams = {descriptor: _Stream(lines, descriptor) for descriptor in _NAMES}

    def take_prints(self) -> None:
        """Has `print` end in the log also inside a Textual application, which redirects it to itself when it starts (and back, at its end).

        To be called once the application runs, as in `on_mount`.
        """
        sys.stdout, sys.stderr = self._streams[_OUT], self._streams[_ERR]


class _Stream(io.TextIOBase):
    """What stands in for `sys.stdout` or `sys.stderr`."""

    def __init__(self, lines: LogLines, descriptor: int) -> None:
        super().__init__()
        self._lines = lines
        self._descriptor = descriptor

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there
        """What libraries ask for."""
        return "utf-8"

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Adds to the log."""
        self._lines.feed(_NAMES[self._descriptor], text, writer=threading.get_ident())
        return len(text)

    def fileno(self) -> int:
        """The descriptor, which ends in the log as well."""
        return self._descriptor


class _LogHandler(logging.Handler):
    """Log records as lines."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Adds to the log. Tracebacks take several lines."""
        try:
            self._lines.add("logging", self.format(record))
        except Exception:  # noqa: BLE001 - a record whose arguments do not fit its message; logging tells where it was made
            self.handleError(record)


class _Pipes:
    """Descriptors 1 and 2 turned into pipes, and the thread that reads them."""

    def __init__(self, lines: LogLines) -> None:
        self._lines = lines
        self.saved: dict[int, int] = {}
        """Copies of what the descriptors were."""
        self._decoders: dict[int, tuple[str, codecs.IncrementalDecoder]] = {}
        self._wake, self._waker = os.pipe()
        for descriptor, name in _NAMES.items():
            with suppress(OSError):  # it is closed: nobody can write to it
                self._replace(descriptor, name)
        self._thread = threading.Thread(target=self._run, name="chatpaged-log", daemon=True)
        self._thread.start()

    def _replace(self, descriptor: int, name: str) -> None:
        saved = os.dup(descriptor)
        reading, writing = os.pipe()
        with suppress(OSError, AttributeError):  # as large as this system has them
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Who writes into a full pipe with Python's lock held would wait for a thread that waits for the lock.
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        os.dup2(writing, descriptor)
        os.close(writing)
        self.saved[descriptor] = saved
        self._decoders[reading] = name, codecs.getincrementaldecoder("utf-8")("replace")

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for reading in (*self._decoders, self._wake):
                selector.register(reading, selectors.EVENT_READ)
            awake = True
            while awake:
                ready = [int(key.fd) for key, _ in selector.select()]
                awake = self._wake not in ready
                for reading in ready if awake else self._decoders:
                    if not self._read(reading) and awake:
                        selector.unregister(reading)

    def _read(self, reading: int) -> bool:
        """Reads what there is; False at the end of a pipe, which comes when nothing has it open any more."""
        name, decoder = self._decoders[reading]
        with suppress(BlockingIOError):
            while piece := os.read(reading, _PIECE):
                self._lines.feed(name, decoder.decode(piece))
            return False
        return True

    def close(self) -> None:
        """Makes the descriptors what they were, after everything has been read."""
        for descriptor, saved in self.saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        os.write(self._waker, b"x")
        self._thread.join()
        for reading in (*self._decoders, self._wake, self._waker):
            os.close(reading)


@contextmanager
def capture_output(path: Path | None = None) -> Generator[OutputCapture, None, None]:
    """Catches everything that is printed, by whomever, until the end of the block. `sys.__stdout__` and `sys.__stderr__` are the terminal.

    The block also catches what Textual itself prints when an application has crashed.

    Args:
        path: see `LogLines`.
    """
    lines = LogLines(path)
    capture = OutputCapture(lines)
    with ExitStack() as stack:
        stack.callback(lines.flush)
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        pipes = _Pipes(lines)
        stack.callback(pipes.close)
        stack.enter_context(_terminal_for_textual(pipes.saved))
        stack.enter_context(redirect_stdout(capture._streams[_OUT]))  # noqa: SLF001 - of this module
        stack.enter_context(redirect_stderr(capture._streams[_ERR]))  # noqa: SLF001 - likewise
        stack.enter_context(_logged(lines))
        yield capture


@contextmanager
def _terminal_for_textual(saved: dict[int, int]) -> Generator[None, None, None]:
    """Has `sys.__stdout__` and `sys.__stderr__`, which Textual writes to, be what descriptors 1 and 2 were.

    Textual draws on the second one; where that is no terminal (`2>errors.txt`), the first may be.
    """
    before = sys.__stdout__, sys.__stderr__
    screen = next((saved[i] for i in (_ERR, _OUT) if i in saved and os.isatty(saved[i])), None)
    with ExitStack() as stack:
        for stream in before:
            if stream is not None:
                stack.callback(_flush, stream)  # what was printed past `sys.stdout`, while it still ends in the log
        out, err = (_opened(saved.get(i), stream) for i, stream in zip((_OUT, _ERR), before, strict=True))
        if screen is not None and err is not None and not err.isatty():
            err.close()
            err = _opened(screen, before[1])
        try:
            sys.__stdout__, sys.__stderr__ = out, err  # type: ignore[misc, assignment]  # final for type checkers
            yield
        finally:
            sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]  # likewise
            for opened in (out, err):
                if opened is not None:
                    with suppress(OSError):  # the terminal has gone
                        opened.close()


def _opened(descriptor: int | None, like: TextIO | None) -> TextIO | None:
    if descriptor is None or like is None:
        return like
    return open(os.dup(descriptor), "w", encoding=like.encoding, errors=like.errors, buffering=-1, closefd=True)


def _flush(stream: TextIO | None) -> None:
    with suppress(OSError, ValueError, AttributeError):  # it is closed, or none
        if stream is not None:
            stream.flush()


@contextmanager
def _logged(lines: LogLines) -> Generator[None, None, None]:
    """Adds log records and warnings."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
    ) -> None:
        if file is not None:
            shown(message, category, filename, lineno, file, line)
        else:
            lines.add("warnings", f"{Path(filename).name}:{lineno}: {category.__name__}: {message}")

    handler = _LogHandler(lines)
    shown: Any = warnings.showwarning
    logging.getLogger().addHandler(handler)
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown
        logging.getLogger().removeHandler(handler)
