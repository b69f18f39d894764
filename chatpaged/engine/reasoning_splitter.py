"""Tells a model's thinking from its answer while both come in."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from chatpaged.engine.reasoning import ReasoningMarkers
from chatpaged.engine.stop_texts import overlap


class _Part(enum.Enum):
    START = enum.auto()
    """Nothing but space so far, or what may become a marker."""
    REASONING = enum.auto()
    ANSWER = enum.auto()


@dataclass(frozen=True, slots=True)
class SplitText:
    """New text, sorted."""

    reasoning: str
    answer: str


class ReasoningSplitter:
    """Takes the pieces of one reply and sorts them.

    A reply may begin with a block of thinking, or the prompt has opened one already. Markers further on are text like any
    other. Space around thinking belongs to neither part, and neither do the line ends before the answer; a reply without thinking keeps all
    of its space.
    """

    def __init__(self, markers: ReasoningMarkers | None, *, inside: bool = False) -> None:
        """Makes a splitter.

        Args:
            markers: what the model writes around its thinking; None takes everything for the answer.
            inside: the prompt has opened a block of thinking.
        """
        self._start = markers.start if markers is not None else ""
        self._end = markers.end if markers is not None else ""
        self._answer_start = markers.answer_start if markers is not None else ""
        self._part = _Part.ANSWER if markers is None else _Part.REASONING if inside else _Part.START
        self._held = ""
        self._skips_space = inside
        self.has_reasoning = inside
        """Whether there is any thinking, be it empty."""
        self.saw_marker = False
        self._may_repeat_start = True

    @property
    def in_answer(self) -> bool:
        """Whether all that follows belongs to the answer."""
        return self._part is _Part.ANSWER

    def append(self, piece: str) -> SplitText:
        """Takes more text; returns what is certain."""
        self._held += piece
        if self._part is _Part.START:
            self._leave_start()
        reasoning = self._take_reasoning() if self._part is _Part.REASONING else ""
        return SplitText(reasoning, self._take_answer() if self._part is _Part.ANSWER else "")

    def flush(self) -> SplitText:
        """The rest."""
        rest, self._held = self._held, ""
        if self._part is _Part.REASONING:
            return SplitText(rest.rstrip(), "")
        return SplitText("", rest)

    def _leave_start(self) -> None:
        text = self._held.lstrip()
        for marker, part in ((self._start, _Part.REASONING), (self._answer_start, _Part.ANSWER)):
            if marker and text.startswith(marker):
                self._enter(part, text[len(marker) :])
                return
        if not any(marker.startswith(text) for marker in (self._start, self._answer_start)):
            self._part = _Part.ANSWER

    def _enter(self, part: _Part, rest: str) -> None:
        self._part = part
        self._held = rest
        self._skips_space = self.saw_marker = True
        self.has_reasoning = self.has_reasoning or part is _Part.REASONING

    def _take_reasoning(self) -> str:
        self._skip_space()
        if self._may_repeat_start and not self._pass_repeated_start():
            return ""
        before, found, after = self._held.partition(self._end)
        if found:
            self._enter(_Part.ANSWER, after)
            return before.rstrip()
        # Space is held back as well: it is dropped if the end comes.
        certain = before[: len(before) - overlap(before, self._end)].rstrip()
        self._held = before[len(certain) :]
        return certain

    def _pass_repeated_start(self) -> bool:
        """Drops an opening marker that the model writes although there is one. Returns whether it is certain what is there."""
        if self._start.startswith(self._held) and self._held != self._start:
            return False
        self._may_repeat_start = False
        if self._held.startswith(self._start):
            self._held = self._held[len(self._start) :]
            self._skips_space = True
            self._skip_space()
        return True

    def _take_answer(self) -> str:
        self._skip_space()
        text, self._held = self._held, ""
        return text

    def _skip_space(self) -> None:
        if self._skips_space:
            self._held = self._held.lstrip("\r\n") if self.in_answer else self._held.lstrip()
            self._skips_space = not self._held
