"""From a rendered template, with marks in it, to token ids.

Marks are characters that occur in no message and not in the template:

- Inside outside texts each character that could begin or end a control token is exchanged for a mark. After rendering,
  whatever matches a control token was written by the template; all else is encoded as text, the characters put back.
- A reply that comes with the ids it was generated as is replaced by a placeholder. The ids take its place afterwards: a
  reply is never encoded anew, so the keys and values computed for it stay valid.
- A text that begins with a space is kept apart from the template's text before it, so that the ids are those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chatpaged.engine.reasoning import ReasoningMarkers
from chatpaged.engine.tokenizer import Tokenizer, unused_characters
from chatpaged.messages import ChatMessage, ReplySpan

ANSWER, REASONING, WHOLE, TEXT = "a", "r", "w", ""
"""What a piece of a prompt is: a reply's answer, its thinking, both; or text."""


def texts_in(value: object) -> Iterator[str]:
    """All texts of a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_in(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


class Marks:
    """Characters that are used by none of the texts of one prompt."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        edges = tokenizer.control_edges
        self.cut, self._opening, self._closing, *hidden = unused_characters(texts, 3 + len(edges))
        self._hide = str.maketrans(edges, "".join(hidden))
        self._restore = str.maketrans("".join(hidden), edges)
        self._place = re.compile(f"{self._opening}([{ANSWER}{REASONING}])([0-9]+){self._closing}")

    def hide(self, text: str) -> str:
        """Outside text as a template may see it."""
        return text.translate(self._hide)

    def hide_in(self, value: object) -> object:
        """A value with all texts in it hidden."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list | tuple):
            return [self.hide_in(item) for item in value]
        if isinstance(value, Mapping):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        return value

    def restore(self, text: str) -> str:
        """The text behind hidden one."""
        return text.translate(self._restore)

    def placeholder(self, kind: str, index: int) -> str:
        """Stands for ids of a message."""
        return f"{self._opening}{kind}{index}{self._closing}"

    def pieces(self, rendered: str, places: Container[int]) -> list[Piece] | None:
        """Rendered text, cut at its placeholders; None if the template has broken one of them or made one up.

        Args:
            rendered: what the template wrote.
            places: numbers of the messages that placeholders were given for.
        """
        split = self._place.split(rendered)
        if any(mark in text for text in split[::3] for mark in (self._opening, self._closing)):
            return None
        if any(int(index) not in places for index in split[2::3]):
            return None
        pieces = [Piece(TEXT, text=split[0])]
        for kind, index, text in zip(split[1::3], split[2::3], split[3::3], strict=True):
            pieces += [Piece(kind, index=int(index)), Piece(TEXT, text=text)]
        return pieces


@dataclass(slots=True)
class Piece:
    """Part of a prompt: text with marks in it, or ids of a message."""

    kind: str
    text: str = ""
    index: int = -1


def join_reasoning(
    pieces: Sequence[Piece], messages: Mapping[int, ChatMessage], markers: ReasoningMarkers | None, *, keep: bool
) -> list[Piece]:
    """Decides which replies stand in the prompt with their thinking.

    Where the template writes a reply's thinking, all between its opening marker and the answer gives way to the ids as they were
    generated. With `keep`, the thinking that it leaves out is put back as well.
    """
    joined: list[Piece] = []
    i = 0
    while i < len(pieces):
        piece = pieces[i]
        if piece.kind == REASONING and markers is not None and _is_region(pieces, i, markers):
            before = joined[-1]
            before.text = before.text[: before.text.rindex(markers.start)]
            piece = Piece(WHOLE, index=piece.index)
            i += 2
        elif piece.kind == ANSWER and keep and messages[piece.index].reasoning_ids:
            piece = Piece(WHOLE, index=piece.index)
        joined.append(piece)
        i += 1
    return joined


def _is_region(pieces: Sequence[Piece], i: int, markers: ReasoningMarkers) -> bool:
    before, after = pieces[i - 1], pieces[i + 1]
    return (
        markers.start in before.text
        and after.text.strip() == markers.end.strip()
        and i + 2 < len(pieces)
        and (pieces[i + 2].kind, pieces[i + 2].index) == (ANSWER, pieces[i].index)
    )


class Assembly:
    """A prompt that is being put together.

    Attributes:
        text: what there is so far, to read.
        ids: the same as token ids.
        replies: where the ids of replies stand.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Marks) -> None:
        self._tokenizer = tokenizer
        self._marks = marks
        # The last text and its ids: what comes next may be encoded together with it. `_begun`: something stands before it.
        self._begun = False
        self._last = ""
        self._last_ids: list[int] = []
        self.text: list[str] = []
        self.ids: list[int] = []
        self.replies: list[ReplySpan] = []

    def add_text(self, marked: str) -> None:
        """Adds text with marks in it."""
        for segment in marked.split(self._marks.cut):
            self._begun = bool(self.ids)
            self._last = segment
            self._last_ids = self._encode(segment)
            self.ids += self._last_ids
            self.text.append(self._marks.restore(segment))

    def extend_text(self, marked: str) -> tuple[int, ...]:
        """Goes on with the last text. The ids that are there stay, whatever the two would be together.

        Returns:
            The ids that were added.
        """
        joint = self._last + marked
        ids = self._encode(joint)
        known = len(self._last_ids)
        if ids[:known] == self._last_ids:
            self._last, self._last_ids = joint, ids
            added = ids[known:]
        else:
            self._begun = bool(self.ids)
            self._last, self._last_ids = marked, self._encode(marked)
            added = self._last_ids
        self.ids += added
        self.text.append(self._marks.restore(marked))
        return tuple(added)

    def add_reply(self, index: int, message: ChatMessage, *, reasoning: bool) -> None:
        """Adds the ids of a reply, with those of its thinking or without."""
        start = len(self.ids)
        if reasoning:
            self.ids += message.reasoning_ids
            self.text.append(self._tokenizer.transcribe(message.reasoning_ids))
        answer = len(self.ids)
        self.ids += message.token_ids or ()
        self.text.append(message.content)
        self.replies.append(ReplySpan(index, start, answer, len(self.ids)))
        self._begun, self._last, self._last_ids = bool(self.ids), "", []

    def _encode(self, segment: str) -> list[int]:
        parts = [self._marks.restore(part) for part in self._tokenizer.split_control(segment)]
        return self._tokenizer.encode_parts(parts, continued=self._begun)
