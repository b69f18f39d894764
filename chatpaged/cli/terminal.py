"""What may be written to a terminal, and how answers get to standard output."""

from __future__ import annotations

import os
import re
import sys
from typing import IO

from chatpaged.shown_text import CONTROLS, MARKS, TURNS, sign_for

_HARMFUL = re.compile(f"[{CONTROLS}{TURNS}{MARKS}]")


def printable(text: str) -> str:
    """Text with all control characters but newline and tab replaced by symbols: nothing moves the cursor or changes colours."""
    return _HARMFUL.sub(sign_for, text)


def styled(stream: IO[str], *, no_color: bool) -> bool:
    """Whether text on a stream may be dimmed or coloured. `NO_COLOR` (no-color.org) and terminals that know no styles are respected."""
    return stream.isatty() and not no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class AnswerWriter:
    """Writes an answer as it grows: flushed at once, with exactly one newline at its end.

    On a terminal control characters are shown as symbols; into files and pipes the text goes as it is, in UTF-8.
    """

    def __init__(self, stream: IO[str], *, raw: bool = False) -> None:
        """Makes a writer.

        Args:
            stream: where it writes.
            raw: newlines at the end are the answer's own, be there none or several.
        """
        self._stream = stream
        self._raw = raw
        self._is_terminal = stream.isatty()
        self._newlines = ""
        self._in_reasoning = False

    def write(self, text: str) -> None:
        """Writes more of the answer. Newlines at its end are kept until something follows them."""
        if text:
            self._close_reasoning()
            self._write(text)

    def write_reasoning(self, text: str) -> None:
        """Writes what the model has thought, between marks."""
        if text:
            self._write(text if self._in_reasoning else f"<think>\n{text}")
            self._in_reasoning = True

    def end(self) -> None:
        """Ends the answer."""
        self._close_reasoning()
        if not self._raw:
            self._stream.write("\n")
        self._stream.flush()
        self._newlines = ""

    def _write(self, text: str) -> None:
        text = self._newlines + (printable(text) if self._is_terminal else text)
        body = text if self._raw else text.rstrip("\n")
        self._newlines = text[len(body) :]
        if body:
            self._stream.write(body)
            self._stream.flush()

    def _close_reasoning(self) -> None:
        if self._in_reasoning:
            self._in_reasoning = False
            self._write("\n</think>\n\n")


class ReasoningWriter:
    """Shows on standard error what a model thinks, dimmed; only where that is a terminal."""

    def __init__(self, stream: IO[str], *, dim: bool) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._begin, self._end = ("\x1b[2m", "\x1b[0m") if dim else ("", "")
        self._open = False

    def write(self, text: str) -> None:
        """Writes more of it."""
        if text and self._is_terminal:
            # Each piece is styled by itself: whatever comes between, or ends the process, is not.
            _write_error(self._stream, f"{self._begin}{printable(text)}{self._end}")
            self._open = True

    def end(self) -> None:
        """Leaves an empty line between the thinking and what follows."""
        if self._open:
            _write_error(self._stream, "\n\n")
            self._open = False


def _write_error(stream: IO[str], text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        pass  # nobody can be told; what matters goes to standard output


class Status:
    """One line on standard error that says what is going on, gone when it is over; and lines that stay. Nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replaces the line. Silent unless it is a terminal."""
        if self._is_terminal and not self._quiet:
            _write_error(sys.stderr, f"\r\x1b[K{printable(text)} …")

    def tell(self, text: str) -> None:
        """Says something worth knowing even where nothing can be taken away again: a line of its own there."""
        if self._is_terminal:
            self.show(text)
        else:
            self.note(text)

    def note(self, text: str) -> None:
        """Says something that stays, in a line of its own."""
        if not self._quiet:
            self.clear()
            _write_error(sys.stderr, f"chatpaged: {printable(text)}\n")

    def write(self, text: str) -> None:
        """Writes lines that were asked for."""
        self.clear()
        _write_error(sys.stderr, f"{printable(text)}\n")

    def clear(self) -> None:
        """Takes the line away."""
        if self._is_terminal and not self._quiet:
            _write_error(sys.stderr, "\r\x1b[K")


def configure_streams() -> None:
    """UTF-8 into files and pipes whatever the locale; characters a terminal cannot show become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8", errors="replace")
