"""Text of somebody's with the words that are looked for marked in it; the style of what matters less."""

from __future__ import annotations

from textual.content import Content

from chatpaged.shown_text import shown
from chatpaged.text_matches import match_spans

MUTED = "$foreground 65%"
"""Style of what matters less. In a `Content`, `$text-muted` would be as bright as any text: there Textual ignores its share."""


def marked(text: str, looked_for: str, style: str = "bold underline") -> Content:
    """The text as it may be shown, each place where one of the words stands in this style."""
    text = shown(text)
    content = Content(text)
    for begin, end in match_spans(text, looked_for):
        content = content.stylize(style, begin, end)
    return content
