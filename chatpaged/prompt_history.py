"""What was sent before, across chats and runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from chatpaged.paths import private_dir, replace_file, state_dir
from chatpaged.prompt_draft import PromptDraft

MOST_KEPT = 1000
_LONGEST_KEPT = 20_000
_PRIVATE = 0o600


def history_file() -> Path:
    """Where the history is kept."""
    return state_dir() / "prompt-history.jsonl"


class PromptHistory:
    """Drafts that were sent, oldest first, each once. Worth remembering, never worth failing for."""

    def __init__(self, path: Path | None = None) -> None:
        """Makes an empty history.

        Args:
            path: its file, a line each; None keeps it in memory.
        """
        self._path = path
        self._entries: list[PromptDraft] = []
        self._unsaved: deque[PromptDraft] = deque()  # one thread adds to it while another saves

    @property
    def entries(self) -> tuple[PromptDraft, ...]:
        """What was sent, oldest first."""
        return tuple(self._entries)

    def read(self) -> list[PromptDraft]:
        """What is in the file; nothing if it cannot be read. It may be slow: not for the loop of an application."""
        if self._path is None:
            return []
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return []
        return [PromptDraft.from_json(line) for line in lines if line]

    def merge(self, older: Iterable[PromptDraft]) -> None:
        """Takes over what `read` has found, as older than what was added since."""
        self._entries = _latest([*older, *self._entries])

    def add(self, draft: PromptDraft) -> None:
        """Adds what is sent now. It is not yet in the file."""
        if not draft.is_blank:
            self._entries = _latest([*self._entries, draft])
            self._unsaved.append(draft)

    def save(self) -> None:
        """Adds to the file what is new, whatever other processes have added. It may be slow: not for the loop of an application."""
        if self._path is None or not self._unsaved:
            return
        import filelock  # noqa: PLC0415 - only writing needs it

        new = []
        while self._unsaved:
            new.append(self._unsaved.popleft())
        try:
            private_dir(self._path.parent)
            with filelock.FileLock(self._path.with_name(f".{self._path.name}.lock"), mode=_PRIVATE, timeout=5):
                kept = [draft for draft in _latest([*self.read(), *new]) if len(draft.text) <= _LONGEST_KEPT]
                replace_file(self._path, "".join(f"{draft.to_json()}\n" for draft in kept), _PRIVATE)
        except (OSError, filelock.Timeout):
            self._unsaved.extendleft(reversed(new))  # a full disk, a read-only home: perhaps next time


def _latest(drafts: list[PromptDraft]) -> list[PromptDraft]:
    """Each draft once, where it was sent last."""
    newest_first = list(dict.fromkeys(reversed(drafts)))[:MOST_KEPT]
    return newest_first[::-1]


class HistoryWalk:
    """A walk through a history. What is changed on the way is remembered until the walk ends; behind the newest is what was being typed."""

    def __init__(self, history: PromptHistory) -> None:
        """Begins behind the newest entry."""
        self._history = history
        self._drafts: list[PromptDraft] = []
        self._index = 0

    def end(self) -> None:
        """Forgets the walk: something was sent, or another chat is in view."""
        self._drafts = []

    def move(self, step: int, current: PromptDraft) -> PromptDraft | None:
        """Goes to an older (-1) or newer (1) entry.

        Args:
            step: where to.
            current: what is in the prompt now.

        Returns:
            What to show; None if there is nothing there.
        """
        if not self._drafts:
            self._drafts = [*self._history.entries, current]
            self._index = len(self._drafts) - 1
        index = self._index + step
        if not 0 <= index < len(self._drafts):
            return None
        self._drafts[self._index] = current
        self._index = index
        return self._drafts[index]
