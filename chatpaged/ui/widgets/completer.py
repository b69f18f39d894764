"""What is proposed for the text at the cursor, and what is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from pathlib import Path

from textual.geometry import Region
from textual.widget import Widget

from chatpaged.errors import ChatpagedError
from chatpaged.prompt_completion import Candidate, Choices, Proposals, candidates, proposals_at
from chatpaged.slash_commands import Completes, find_command
from chatpaged.ui.background import instead
from chatpaged.ui.widgets.completions import Completions
from chatpaged.ui.widgets.prompt_area import PromptArea


class Completer:
    """Keeps the list above a prompt in step with the text.

    Attributes:
        popup: the list.
    """

    def __init__(self, area: PromptArea, popup: Completions, choices: Choices, directory: Path) -> None:
        """Makes one for a text and a list.

        Args:
            area: the text.
            popup: the list.
            choices: where names come from.
            directory: where relative file names begin.
        """
        self.popup = popup
        self._choices = choices
        self._area = area
        self._directory = directory
        self._wanted: Proposals | None = None
        self._shown: Proposals | None = None
        self._dismissed: tuple[Completes, int] | None = None

    def close(self) -> None:
        """Proposes nothing until something else is typed."""
        self.popup.close()
        self._wanted = self._shown = self._dismissed = None

    def refresh(self, *, wanted: bool) -> None:
        """The text or the cursor has changed.

        Args:
            wanted: whether anything may be proposed.
        """
        if wanted and self._area.selection.is_empty and self._area.has_focus:
            row, column = self._area.cursor_location
            now = proposals_at(self._area.document.get_line(row)[:column], first_line=row == 0)
        else:
            now = None
        if now == self._wanted:
            return
        self._wanted = now
        if _place(now) != self._dismissed:
            self._dismissed = None
        if now is None or self._dismissed is not None:
            self.popup.close()
        elif now.completes is Completes.COMMAND:
            self._show(now, candidates(now, self._choices, self._directory))  # they are all in memory
        else:
            if _place(self._shown) != _place(now):
                self.popup.close()
            instead(self.popup, "completions", self._find, now)

    def on_key(self, names: AbstractSet[str], send_keys: AbstractSet[str]) -> bool:
        """A key was pressed while the text has the cursor.

        Args:
            names: of the key.
            send_keys: keys that send, unless they accept what is marked.

        Returns:
            Whether the key was for the list.
        """
        if not self.popup.is_open:
            return False
        if "escape" in names:
            self._dismissed = _place(self._wanted)
            self.popup.close()
        elif names & {"up", "down"}:
            self.popup.move(-1 if "up" in names else 1)
        elif "tab" in names:
            if self.popup.candidate is None:
                self.popup.move(1)
            self.accept(self.popup.candidate)
        elif names & send_keys and not self._is_whole(self.popup.candidate):
            self.accept(self.popup.candidate)
        else:
            return False
        return True

    def accept(self, candidate: Candidate | None) -> None:
        """Puts what was chosen in the place of what was typed."""
        wanted = self._wanted
        if candidate is None or wanted is None or self._shown != wanted:
            return  # the list is older than what is typed
        row, column = self._area.cursor_location
        line = self._area.document.get_line(row)
        ends = wanted.mention and not candidate.goes_on and not line[column : column + 1].isspace()
        self.popup.close()
        text = candidate.text + (" " if ends else "")
        self._area.replace(text, (row, wanted.start), (row, column), maintain_selection_offset=False)

    async def _find(self, wanted: Proposals) -> None:
        try:
            found = await asyncio.to_thread(candidates, wanted, self._choices, self._directory)
        except (ChatpagedError, OSError):
            found = []
        if wanted == self._wanted:
            self._show(wanted, found)

    def _show(self, wanted: Proposals, found: list[Candidate]) -> None:
        self._shown = wanted
        if len(found) == 1 and not found[0].goes_on and self._is_whole(found[0]):
            found = []
        around = self.popup.parent.region if isinstance(self.popup.parent, Widget) else Region()
        self.popup.show(found, mark_first=not wanted.optional, rows=around.y, width=around.width)

    def _is_whole(self, candidate: Candidate | None) -> bool:
        """Whether what is typed is what would be chosen, so that Enter sends it."""
        if self._wanted is None or candidate is None or self._shown != self._wanted:
            return True
        row, column = self._area.cursor_location
        typed = self._area.document.get_line(row)[self._wanted.start : column]
        if self._wanted.completes is Completes.COMMAND and self._wanted.start == 0 and find_command(typed[1:]) is not None:
            return True
        return candidate.text.rstrip() == typed


def _place(wanted: Proposals | None) -> tuple[Completes, int] | None:
    """What stays the same while one word is typed."""
    return (wanted.completes, wanted.start) if wanted is not None else None
