"""Texts that end an answer, found while it comes in."""

from __future__ import annotations


class StopTexts:
    """Holds text back as long as a stop text may be beginning in it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def append(self, piece: str) -> tuple[str, bool]:
        """Takes more text; returns what may be shown, and whether a stop text was found (then nothing may follow)."""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """What was held back and is no stop text after all."""
        text, self._held = self._held, ""
        return text


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins, but is not all of, `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
