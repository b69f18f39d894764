"""Long pasted texts as units of a text that an editor for plain text can show: chips.

A chip is a run of characters that Unicode reserves for use inside programs, so that nobody can type or paste one:

```text
U+FDD0  its number in hexadecimal, U+FDE0..U+FDEF  filling, U+FDD2  U+FDD1
```

The run is as long as the longest label the chip can get; what is seen of it is painted over it. So wrapping, the cursor and undo
need to know nothing of chips, and a label can change without a change of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from chatpaged.amounts import large_number
from chatpaged.pasted_text import clean_text
from chatpaged.prompt_draft import Pasted, PromptDraft

_OPEN, _CLOSE, _FILL = "\ufdd0", "\ufdd1", "\ufdd2"
_DIGITS = {format(value, "x"): chr(0xFDE0 + value) for value in range(16)}
_VALUES = str.maketrans({mark: digit for digit, mark in _DIGITS.items()})
_CHIP = re.compile(f"{_OPEN}([\ufde0-\ufdef]+){_FILL}*{_CLOSE}")
_LONGEST_COUNT = "312k"
# Below these a paste is text like any other.
_MOST_LINES = 20
_MOST_CHARACTERS = 2000
# Above these a text is too long for a few rows: laying it out would take a noticeable time.
_MOST_LINES_SHOWN = 1000
_MOST_CHARACTERS_SHOWN = 50_000


def is_long(text: str) -> bool:
    """Whether a pasted text becomes a chip."""
    return len(text) > _MOST_CHARACTERS or text.count("\n") >= _MOST_LINES


def is_too_long(text: str) -> bool:
    """Whether a text cannot be shown in full."""
    return len(text) > _MOST_CHARACTERS_SHOWN or text.count("\n") > _MOST_LINES_SHOWN


@dataclass(frozen=True, slots=True)
class ChipSpan:
    """Where a chip is in a line."""

    number: int
    start: int
    end: int

    def has_inside(self, column: int) -> bool:
        """Whether a column is in it, and not at one of its ends."""
        return self.start < column < self.end


class Chips:
    """The chips of one text, also those that undoing may bring back."""

    def __init__(self) -> None:
        """None at first."""
        self._texts: dict[int, str] = {}
        self._tokens: dict[int, int] = {}
        self._next = 0

    def clear(self) -> None:
        """Forgets all of them. Their numbers are not used again."""
        self._texts.clear()
        self._tokens.clear()

    def add(self, text: str) -> tuple[int, str]:
        """A new chip: its number, and what stands for it."""
        number, self._next = self._next, self._next + 1
        self._texts[number] = text
        digits = "".join(_DIGITS[digit] for digit in format(number, "x"))
        filling = _FILL * (len(self._label(number, _LONGEST_COUNT)) - len(digits) - 2)
        return number, f"{_OPEN}{digits}{filling}{_CLOSE}"

    def text(self, number: int) -> str:
        """What was pasted."""
        return self._texts[number]

    def set_tokens(self, number: int, tokens: int) -> bool:
        """Says how many tokens a chip has; returns whether there is such a chip."""
        if number not in self._texts:
            return False
        self._tokens[number] = tokens
        return True

    def uncounted(self) -> dict[int, str]:
        """Texts of which nobody has counted the tokens yet, by number."""
        return {number: text for number, text in self._texts.items() if number not in self._tokens}

    def label(self, number: int) -> str:
        """What is shown for a chip."""
        tokens = self._tokens.get(number)
        return self._label(number, large_number(tokens) if tokens is not None else "")

    def _label(self, number: int, count: str) -> str:
        text = self._texts[number]
        lines = text.count("\n") + (not text.endswith("\n"))
        size = f"{lines} lines" if lines > 1 else f"{large_number(len(text))} characters"
        return f"[pasted {size}, {count} tokens]" if count else f"[pasted {size}]"

    def spans(self, line: str) -> list[ChipSpan]:
        """The chips of a line."""
        return [ChipSpan(_number(match), *match.span()) for match in _CHIP.finditer(line)] if _OPEN in line else []

    def draft(self, text: str) -> PromptDraft:
        """A text with chips as plain data."""
        return PromptDraft(tuple(self._parts(text)))

    def _parts(self, text: str) -> Iterator[str | Pasted]:
        done = 0
        for span in self.spans(text):
            if span.start > done:
                yield text[done : span.start]
            yield Pasted(self._texts[span.number])
            done = span.end
        if done < len(text):
            yield text[done:]

    def marked(self, draft: PromptDraft) -> tuple[str, dict[int, str]]:
        """A draft as a text with chips, and the texts of those by number. What is too long to be shown becomes a chip as well."""
        pieces, added = [], {}
        for part in draft.parts:
            text = part.text if isinstance(part, Pasted) else clean_text(part)
            if isinstance(part, Pasted) or is_too_long(text):
                number, marks = self.add(text)
                added[number] = text
                pieces.append(marks)
            else:
                pieces.append(text)
        return "".join(pieces), added


def _number(match: re.Match[str]) -> int:
    return int(match[1].translate(_VALUES), 16)
