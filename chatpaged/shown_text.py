"""Text of models, users and files as it may be shown: nothing in it moves a cursor, changes a colour or hides what follows."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, further ends of lines, and the marks that turn the direction of text around.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PICTURES = 0x2400


def shown(text: str) -> str:
    """The text with every control character replaced by a sign for it, and lines that end with a newline alone.

    Each sign is as long as what it stands for, so that positions stay the same (apart from ends of lines).
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(_sign, text.replace("\r\n", "\n").replace("\r", "\n"))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == 0x7F else "�"
