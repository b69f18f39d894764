"""Screens that close once, however often that is asked for before they have gone."""

from __future__ import annotations

from typing import Any

from textual.await_complete import AwaitComplete


class ClosesOnce:
    """Textual closes whatever screen is on top: asked twice in a row, as by a key that repeats, the one below as well.

    Comes before a class of screens, and is none itself, as a screen takes its styles from its first base alone.
    """

    _is_closing = False

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Closes the screen, with a result."""
        if self._is_closing:
            return AwaitComplete()
        self._is_closing = True
        closing: AwaitComplete = super().dismiss(result)  # type: ignore[misc]
        return closing
