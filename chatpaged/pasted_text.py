"""Text from elsewhere, made harmless before it gets into the prompt or onto the screen."""

from __future__ import annotations

import re

from chatpaged.shown_text import CONTROLS, TURNS, normal_lines, sign_for

# What begins with escape and tells a terminal something, such as colours, cursor moves, titles, links; and what hides what a text says.
_LEFT_OUT = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]"
    rf"|[{TURNS}]"
)
_STRANGE = re.compile(rf"[{CONTROLS}{TURNS}\ufdd0-\ufdef\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Text with lines that end in a newline each, without sequences for terminals; other control characters become symbols.

    Args:
        text: from the clipboard, an editor or another program.

    Returns:
        The same text if there was nothing wrong with it.
    """
    text = normal_lines(text)
    if _STRANGE.search(text) is None:
        return text
    return _STRANGE.sub(sign_for, _LEFT_OUT.sub("", text))


def one_line(text: str) -> str:
    """The same on one line, for notices."""
    return clean_text(text).replace("\n", " ").replace("\t", " ")
