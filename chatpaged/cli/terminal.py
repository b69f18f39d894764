"""What may be written to a terminal, and how answers get to standard output."""

from __future__ import annotations

import sys
from typing import IO

# Control characters become visible symbols: text from a model or a file must not move the cursor or change colours.
_SYMBOLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_SYMBOLS[0x7F] = 0x2421
_SYMBOLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_SYMBOLS |= dict.fromkeys((0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)  # change of direction


def printable(text: str) -> str:
    """Text with all control characters but newline and tab replaced by symbols."""
    return text.translate(_SYMBOLS)


class AnswerWriter:
    """Writes an answer as it grows: flushed at once, with exactly one newline at its end.

    On a terminal control characters are shown as symbols; into files and pipes the text goes as it is, in UTF-8.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._newlines = ""
        self._started = False

    def write(self, text: str) -> None:
        """Writes more of the answer. Newlines at its end are kept until something follows them."""
        text = self._newlines + (printable(text) if self._is_terminal else text)
        body = text.rstrip("\n")
        self._newlines = text[len(body) :]
        if body:
            self._started = True
            self._stream.write(body)
            self._stream.flush()

    def end(self, *, always: bool = True) -> None:
        """Ends the answer. An empty one leaves no line unless `always`."""
        if always or self._started:
            self._stream.write("\n")
            self._stream.flush()
        self._newlines, self._started = "", False


class Status:
    """One line on standard error that says what is going on, gone when it is over. Silent unless it is a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{printable(text)} …")
            sys.stderr.flush()

    def tell(self, text: str) -> None:
        """Says something worth knowing even where nothing can be taken away again: a line of its own there."""
        if self._is_terminal:
            self.show(text)
        else:
            sys.stderr.write(f"chatpaged: {printable(text)}\n")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def configure_streams() -> None:
    """UTF-8 into files and pipes whatever the locale; characters a terminal cannot show become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8", errors="replace")
