"""Code in Markdown."""

from __future__ import annotations


def first_code_block(text: str) -> str | None:
    """Contents of the first fenced block of a text, fences left out; None if there is none. One that is not closed goes on to the end."""
    from markdown_it import MarkdownIt

    return next((token.content for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"), None)
