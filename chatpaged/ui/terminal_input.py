"""What a terminal sends, read with more care than Textual 8 does.

- Alt+Enter comes as escape and return from most terminals and tmux; Textual takes it for Enter, which would send.
- A paste with an escape character in it makes Textual take the rest of it for keys, Enter among them. Here it stays one piece.
- A terminal that has gone (a closed window, a lost connection) lets Textual wait forever for somebody to take what it writes, and keep
  a core busy reading nothing. Here the application ends, and everything is kept.
- Bytes that are not UTF-8 end Textual's input thread, and the application with it. Here they are shown as what they are: unreadable.

`App(driver_class=TerminalDriver)` uses it.
"""

from __future__ import annotations

import os
import selectors
import time
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Any, TextIO, cast

from textual._parser import ParseError
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key, Paste
from textual.message import Message

_ESCAPE = "\x1b"
_ALT_ENTER = "\x1b\r"
# xterm's "modifyOtherKeys" form, which tmux can send: Textual makes the name of the character itself.
_NAMES = {"shift+\r": "shift+enter", "\r": "alt+enter", "ctrl+\r": "ctrl+enter"}
_SECONDS = 0.1
_READ = 65536


class TerminalParser(XTermParser):
    """Turns what a terminal sends into keys, pastes and events of the mouse."""

    def __init__(self, debug: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        """Makes a parser."""
        self._pasted: list[str] | None = None
        self._tail = ""  # of a paste: may be the beginning of its end
        self._held = ""  # outside of one: may be the beginning of its beginning
        self._held_since = 0.0
        self._after_escape = False
        super().__init__(debug)

    def feed(self, data: str) -> Iterable[Message]:
        """Yields what is complete. No text is the end of all input."""
        data, at_end, self._held = self._held + data, not data, ""
        while data:
            if self._pasted is not None:
                data = yield from self._feed_paste(self._pasted, data)
            else:
                data = yield from self._feed_keys(data, at_end=at_end)
        if at_end:
            yield from super().feed("")

    def tick(self) -> Iterable[Message]:
        """Yields what becomes complete by nothing following it."""
        if self._held and time.monotonic() > self._held_since + _SECONDS:
            held, self._held, self._after_escape = self._held, "", False
            yield from super().feed(held)
        yield from super().tick()
        self._after_escape = self._after_escape and self._timeout_time is not None  # else it was the key

    def _feed_keys(self, data: str, *, at_end: bool) -> Generator[Message, None, str]:
        after_escape = BRACKETED_PASTE_START[1:]
        if self._after_escape and not at_end and data != after_escape and after_escape.startswith(data):
            self._hold(data)
            return ""
        if self._after_escape and data.startswith(after_escape):
            # The escape is in the base class already: it gets an empty paste, whose event nobody needs.
            for _ in super().feed(after_escape + BRACKETED_PASTE_END):
                pass
            before, found, rest = "", BRACKETED_PASTE_START, data[len(after_escape) :]
        else:
            before, found, rest = data.partition(BRACKETED_PASTE_START)
        if not found and not at_end and (length := _beginning_at_end(before)):
            self._hold(before[-length:])
            before = before[:-length]
        if before:
            yield from super().feed(before)
        self._after_escape = before.endswith(_ESCAPE)
        if found:
            self._pasted = []
        return rest

    def _hold(self, data: str) -> None:
        """Keeps what may be the beginning of a paste until more of it comes, or nothing for a moment."""
        self._held, self._held_since = data, time.monotonic()

    def _feed_paste(self, pasted: list[str], data: str) -> Generator[Message, None, str]:
        text = self._tail + data
        inside, found, rest = text.partition(BRACKETED_PASTE_END)
        if not found:
            kept = len(BRACKETED_PASTE_END) - 1
            pasted.append(text[:-kept])
            self._tail = text[-kept:]
            return ""
        self._pasted, self._tail = None, ""
        yield Paste("".join([*pasted, inside]).replace("\x00", ""))
        return rest

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:  # noqa: FBT001, FBT002 - as in the base class
        if sequence == _ALT_ENTER:
            yield Key("alt+enter", None)
            return
        for event in super()._sequence_to_key_events(sequence, alt):
            name = _NAMES.get(event.key)
            yield event if name is None else Key(name, None)


def _beginning_at_end(data: str) -> int:
    """How many characters at the end may be the beginning of a paste's mark; a single escape is a key, for which nobody waits."""
    lengths = range(len(BRACKETED_PASTE_START) - 1, 1, -1)
    return next((length for length in lengths if data.endswith(BRACKETED_PASTE_START[:length])), 0)


class _LastingFile:
    """The terminal to write to, which may go away: what is written then is lost, and nothing else."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Writes, if it can."""
        with suppress(OSError):
            return self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Writes what has been held back, if it can."""
        with suppress(OSError):
            self._file.flush()


class TerminalDriver(LinuxDriver):
    """Textual's driver with this parser."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        """Prepares it, as the base class does."""
        super().__init__(app, **options)
        # Textual's thread that writes would end with an error, and whoever writes would wait for it forever.
        self._file = cast(Any, _LastingFile(cast(TextIO, self._file)))

    def _read(self) -> bytes:
        """What has been typed; nothing if the terminal has gone."""
        with suppress(OSError):
            return os.read(self.fileno, _READ)
        return b""

    def run_input_thread(self) -> None:
        """Reads from the terminal until the application ends or steps aside."""
        parser = TerminalParser(self._debug)
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_SECONDS):
                    read = self._read()
                    if not read:
                        self._app.call_later(getattr(self._app, "action_hang_up", self._app.action_quit))
                        break
                    if data := decoder.decode(read):
                        for message in parser.feed(data):
                            self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)
        try:
            for _ in parser.feed(""):
                pass  # half of something, and nobody left to see it
        except (EOFError, ParseError):
            pass
