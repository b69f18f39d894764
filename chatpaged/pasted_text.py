"""Text from elsewhere, made harmless before it gets into the prompt or onto the screen."""

from __future__ import annotations

import re

# What begins with escape and tells a terminal something: colours, cursor moves, titles, links.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ud800-\udfff]")
_SYMBOLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_SYMBOLS[0x7F] = 0x2421
_SYMBOLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))  # changes of direction, which hide what a text says
_SYMBOLS |= dict.fromkeys((*range(0x80, 0xA0), *range(0xFDD0, 0xFDF0), *range(0xD800, 0xE000)), 0xFFFD)


def clean_text(text: str) -> str:
    """Text with lines that end in a newline each, without sequences for terminals; other control characters become symbols.

    Args:
        text: from the clipboard, an editor or another program.

    Returns:
        The same text if there was nothing wrong with it.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _CONTROLS.search(text) is None:
        return text
    return _SEQUENCES.sub("", text).translate(_SYMBOLS)


def one_line(text: str) -> str:
    """The same on one line, for notices."""
    return clean_text(text).replace("\n", " ").replace("\t", " ")
