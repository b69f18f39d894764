"""What libraries have printed, and what has gone wrong: followed, filtered, copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Log, Static

from chatpaged.amounts import counted
from chatpaged.shown_text import shown
from chatpaged.text_matches import has_words
from chatpaged.ui.screens.dialog import Dialog, Hint

_REFRESH = 0.1


class LogSource(Protocol):
    """Where lines come from. Lines may be dropped at the beginning, and the last one may change."""

    @property
    def lines(self) -> Sequence[str]:
        """All lines that are kept, oldest first."""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called after each change, in any thread. Returns what ends that."""


class LogScreen(Dialog[None]):
    """The screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll('scroll_up')", show=False),
        Binding("down", "scroll('scroll_down')", show=False),
        Binding("pageup", "scroll('page_up')", show=False),
        Binding("pagedown", "scroll('page_down')", show=False),
        Binding("ctrl+home", "scroll('scroll_home')", show=False),
        Binding("ctrl+end", "scroll('scroll_end')", show=False),
        Binding("f5,ctrl+y", "copy_all", show=False),
    ]
    HINTS: ClassVar[tuple[Hint, ...]] = (
        ("Esc", "close", "close"),
        ("Ctrl+Y", "copy all", "copy_all"),
        ("↑↓", "scroll", ""),
        ("Ctrl+End", "follow", "scroll('scroll_end')"),
    )
    DEFAULT_CSS = """
    LogScreen {
        & > Frame { height: 90%; max-width: 100%; }
        &.-narrow > Frame { height: 100%; }
        & Log { height: 1fr; margin-top: 1; background: transparent; padding: 0 1; scrollbar-size: 1 1; }
        &.-narrow Log { margin-top: 0; }
        & #log-status { color: $text-muted; padding: 0 1; margin-top: 1; }
        &.-narrow #log-status { margin-top: 0; }
    }
    """

    def __init__(self, source: LogSource) -> None:
        """Shows lines.

        Args:
            source: where they come from.
        """
        super().__init__("Log")
        self._source = source
        self._field = Input(placeholder="Filter", id="log-filter", select_on_focus=True)
        self._log = Log(highlight=False, auto_scroll=True)
        self._log.can_focus = False
        self._status = Static("", id="log-status", markup=False)
        self._taken: list[str] = []
        self._shown: list[str] = []
        self._stale = True
        self._unsubscribe: Callable[[], None] | None = None

    def compose_body(self) -> ComposeResult:
        """The filter, the lines, and how many there are."""
        yield self._field
        yield self._log
        yield self._status

    def on_mount(self) -> None:
        """Follows what is written."""
        self._field.focus()
        self._unsubscribe = self._source.subscribe(self._hear)
        self.set_interval(_REFRESH, self._refresh)
        self._refresh()

    def on_unmount(self) -> None:
        """Nothing more is wanted."""
        if self._unsubscribe is not None:
            self._unsubscribe()

    @property
    def listed(self) -> tuple[str, ...]:
        """The lines that fit the filter."""
        return tuple(self._shown)

    def _hear(self) -> None:
        self._stale = True  # called in any thread: the rest happens here

    def _refresh(self) -> None:
        """Takes over new lines; only where old ones are other ones, all is written anew."""
        if not self._stale:
            return
        self._stale = False
        lines, before = list(self._source.lines), len(self._taken)
        grown = lines[:before] == self._taken
        self._taken = lines
        if grown:
            self._write(lines[before:])
        else:
            self._write_anew()

    def _write_anew(self) -> None:
        self._log.clear()
        self._shown = []
        self._write(self._taken)

    def _write(self, lines: Sequence[str]) -> None:
        fitting = [shown(line).replace("\n", " ") for line in lines if has_words(line, self._field.value)]
        self._shown += fitting
        if fitting:
            self._log.write_lines(fitting)
        number, text = len(self._shown), counted(len(self._taken), "line")
        if number != len(self._taken):
            text = f"{number:,} of {text}"
        self._status.update(text if self._taken else "Nothing has been printed.")

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        event.stop()
        self._write_anew()

    def action_scroll(self, what: str) -> None:
        """Scrolls the lines."""
        getattr(self._log, f"action_{what}")()

    def action_copy_all(self) -> None:
        """Copies what is listed."""
        self.app.copy_to_clipboard("\n".join(self._shown))
        self.notify(f"{counted(len(self._shown), 'line')} copied")
