"""What values a setting can have: checked in one place, whether they come from a file, a variable or a flag."""

from __future__ import annotations

import difflib
import math
import re
import string
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

Value = str | int | float | bool
"""What TOML can hold of a setting."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LARGEST = 2**63 - 1
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")

_MODIFIERS = frozenset({"alt", "ctrl", "meta", "shift", "super"})
# As Textual calls them, where it does not say what Unicode says.
_CHARACTERS = {"/": "slash", "\\": "backslash", "-": "minus", "+": "plus", "_": "underscore", "@": "at", " ": "space"}


def _character_name(character: str) -> str:
    if character in _CHARACTERS or character.isalnum():
        return _CHARACTERS.get(character, character)
    return unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")


_TYPED = frozenset(_character_name(character) for character in (*string.punctuation, " "))
_NAMED = frozenset(f"f{number}" for number in range(1, 25)) | {
    *("enter", "escape", "tab", "backspace", "delete", "insert"),
    *("home", "end", "pageup", "pagedown", "up", "down", "left", "right"),
}


class Kind(Protocol):
    """One kind of value. What is wrong with a value is told as a `ValueError` that reads well after the setting's name."""

    def describe(self) -> str:
        """The values it takes, in a few words."""

    def check(self, value: object) -> Value:
        """The value that a TOML value stands for.

        Raises:
            ValueError: it is not of this kind.
        """

    def parse(self, text: str) -> Value:
        """The value that a text from a variable or a command line stands for.

        Raises:
            ValueError: it is not of this kind.
        """

    def plain(self, value: Value) -> Value:
        """The value as it is written into a file or given to an option; `check` and `parse` turn it back."""


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    def describe(self) -> str:
        """The values it takes."""
        return "text"

    def check(self, value: object) -> Value:
        """Takes a string."""
        if not isinstance(value, str):
            raise ValueError(f"must be a text in quotes, not {_shown(value)}")  # noqa: TRY004 - one kind of error for all values
        return value

    def parse(self, text: str) -> Value:
        """Takes the text as it is."""
        return text

    def plain(self, value: Value) -> Value:
        """The text."""
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number in a range.

    Attributes:
        minimum: smallest value.
        maximum: largest value; None is no limit.
        above: the smallest value itself is excluded.
        whole: integers only.
        power_of_two: 1, 2, 4 and so on only.
    """

    minimum: float
    maximum: float | None = None
    above: bool = False
    whole: bool = False
    power_of_two: bool = False

    def describe(self) -> str:
        """The values it takes."""
        if self.power_of_two:
            return "a power of two"
        noun = "a whole number" if self.whole else "a number"
        if self.maximum is None:
            return f"{noun}, {'above' if self.above else 'at least'} {self.minimum:g}"
        if self.above:
            return f"{noun} above {self.minimum:g} and at most {self.maximum:g}"
        return f"{noun} between {self.minimum:g} and {self.maximum:g}"

    def check(self, value: object) -> Value:
        """Takes integers, and floats unless whole numbers are wanted."""
        allowed = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed) or not self._in_range(value):
            raise ValueError(f"must be {self.describe()}, not {_shown(value)}")
        return value if self.whole else float(value)

    def parse(self, text: str) -> Value:
        """Takes a number as Python writes it."""
        try:
            value: int | float = int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(f"must be {self.describe()}, not {_shown(text)}") from None
        return self.check(value)

    def plain(self, value: Value) -> Value:
        """The number."""
        return value

    def _in_range(self, value: int | float) -> bool:  # noqa: PYI041 - the two are treated differently
        if math.isnan(value) if isinstance(value, float) else value & (value - 1) and self.power_of_two:
            return False
        if value < self.minimum or (self.above and value == self.minimum):
            return False
        return value <= (_LARGEST if self.maximum is None else self.maximum)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words.

    Attributes:
        options: the words.
        off: the one that an option called `--no-...` stands for.
    """

    options: tuple[str, ...]
    off: str | None = None

    def describe(self) -> str:
        """The values it takes."""
        return f"one of {', '.join(self.options)}"

    def check(self, value: object) -> Value:
        """Takes one of the words."""
        if not isinstance(value, str) or value not in self.options:
            raise ValueError(f"must be {self.describe()}, not {_shown(value)}")
        return value

    def parse(self, text: str) -> Value:
        """Takes one of the words."""
        return self.check(text)

    def plain(self, value: Value) -> Value:
        """The word."""
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """On or off."""

    def describe(self) -> str:
        """The values it takes."""
        return "true or false"

    def check(self, value: object) -> Value:
        """Takes a boolean."""
        if not isinstance(value, bool):
            raise ValueError(f"must be {self.describe()}, not {_shown(value)}")  # noqa: TRY004 - one kind of error for all values
        return value

    def parse(self, text: str) -> Value:
        """Takes true, yes, on and 1, and their opposites."""
        word = text.strip().lower()
        if word not in _TRUE + _FALSE:
            raise ValueError(f"must be {self.describe()}, not {_shown(text)}")
        return word in _TRUE

    def plain(self, value: Value) -> Value:
        """The boolean."""
        return value


@dataclass(frozen=True, slots=True)
class Size:
    """An amount of memory in bytes.

    Attributes:
        minimum: 0 where none is possible as well.
    """

    minimum: int = 1

    def describe(self) -> str:
        """The values it takes."""
        return f"a size such as 512M or 2G (powers of 1024), or bytes{'' if self.minimum else '; 0 is none'}"

    def check(self, value: object) -> Value:
        """Takes bytes as an integer, or a text such as "2G"."""
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= _LARGEST:
            raise ValueError(f"must be {self.describe()}, not {_shown(value)}")
        return value

    def parse(self, text: str) -> Value:
        """Takes a text such as 2G, 512M or 1.5GiB."""
        try:
            size = parse_size(text)
        except ValueError:
            size = -1
        if size < self.minimum:
            raise ValueError(f"must be {self.describe()}, not {_shown(text)}")
        return size

    def plain(self, value: Value) -> Value:
        """The size with the largest unit that says it exactly."""
        size = int(value)
        if not size:
            return "0"
        unit, factor = next((unit, factor) for unit, factor in reversed(_FACTORS.items()) if size % factor == 0)
        return f"{size // factor}{unit.upper()}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a terminal, with commas between. They come out as Textual calls them."""

    def describe(self) -> str:
        """The values it takes."""
        return "keys such as ctrl+n or f5, with commas between"

    def check(self, value: object) -> Value:
        """Takes a text with at least one key."""
        if not isinstance(value, str):
            raise ValueError(f"must be {self.describe()}, not {_shown(value)}")  # noqa: TRY004 - one kind of error for all values
        if not value.strip():
            raise ValueError(f"must be {self.describe()}, not empty")
        try:
            return ",".join(_key(key.strip()) for key in value.split(","))
        except ValueError as error:
            raise ValueError(f"must be {self.describe()}: {error}") from None

    def parse(self, text: str) -> Value:
        """Takes the same."""
        return self.check(text)

    def plain(self, value: Value) -> Value:
        """The text."""
        return value


def _key(text: str) -> str:
    """A key as Textual calls it.

    Raises:
        ValueError: there is no such key, or it is typed as text.
    """
    if not text:
        raise ValueError("one of them is empty")
    *modifiers, name = (text[:-1] + "plus" if text.endswith("+") and text[:-1][-1:] in {"", "+"} else text).lower().split("+")
    single = len(name) == 1 and name.isprintable()
    if single and name != "@":  # terminals send ctrl+@ under that name
        name = _character_name(name)
    is_typed = name in _TYPED or single
    if not is_typed and name not in _NAMED:
        near = difflib.get_close_matches(name, sorted(_NAMED | _TYPED), 1)
        raise ValueError(f"{_shown(text)} is no key" + (f"; did you mean {'+'.join((*modifiers, *near))}?" if near else ""))
    if unknown := [modifier for modifier in modifiers if modifier not in _MODIFIERS]:
        raise ValueError(f"{_shown(unknown[0])} in {_shown(text)} is none of {', '.join(sorted(_MODIFIERS))}")
    if is_typed and not set(modifiers) - {"shift"}:
        raise ValueError(f"{text} is typed as text; put ctrl+ or alt+ before it")
    return "+".join((*sorted(set(modifiers)), name))


def parse_size(text: str) -> int:
    """Bytes from a text such as 2G, 512M or 1.5GiB (powers of 1024).

    Raises:
        ValueError: the text is no size; the message begins with the text.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 512M or 2G")
    size = int(Fraction(match[1]) * _FACTORS[match[2].lower()])
    if size > _LARGEST:
        raise ValueError(f"{text!r} is more than any memory holds")
    return size


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
