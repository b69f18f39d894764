"""Text of models, users and files as it may be shown: nothing in it moves a cursor, changes a colour or hides what follows."""

from __future__ import annotations

import re

# Each as what stands between the brackets of a regular expression.
CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
"""Control characters: C0 without tab and newline, DEL, C1."""
TURNS = r"\u202a-\u202e\u2066-\u2069"
"""What turns the direction of text around, and so hides what it says."""
MARKS = r"\u200e\u200f"
"""What says the direction of its neighbours."""
_PICTURES = 0x2400
_HARMFUL = re.compile(rf"[{CONTROLS}{TURNS}{MARKS}\u2028\u2029]")  # the last two are further ends of lines


def normal_lines(text: str) -> str:
    """The text with lines that end with a newline alone."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def shown(text: str) -> str:
    """The text with every control character replaced by a sign for it, and lines that end with a newline alone.

    Each sign is as long as what it stands for, so that positions stay the same (apart from ends of lines).
    """
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub(sign_for, normal_lines(text))


def sign_for(match: re.Match[str]) -> str:
    """The sign for the character that was found: its picture if it has one."""
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == 0x7F else "�"
