"""Text of somebody's with the words that are looked for marked in it."""

from __future__ import annotations

from textual.content import Content

from chatpaged.shown_text import shown
from chatpaged.text_matches import match_spans


def marked(text: str, looked_for: str, style: str = "bold underline") -> Content:
    """The text as it may be shown, each place where one of the words stands in this style."""
    text = shown(text)
    content = Content(text)
    for begin, end in match_spans(text, looked_for):
        content = content.stylize(style, begin, end)
    return content
