"""Where the words that somebody looks for stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable


def has_words(text: str, looked_for: str) -> bool:
    """Whether every word occurs; upper and lower case are the same. No word occurs everywhere."""
    folded = text.casefold()
    return all(word in folded for word in looked_for.casefold().split())


def match_spans(text: str, looked_for: str) -> list[tuple[int, int]]:
    """Beginning and end of each place where one of the words stands, from left to right; places that touch are one.

    Args:
        text: what is looked at.
        looked_for: words; parts of words as well.
    """
    words = sorted(dict.fromkeys(looked_for.split()), key=len, reverse=True)
    if not words:
        return []
    # Looked ahead for, so that one word may begin inside another.
    pattern = re.compile(f"(?=({'|'.join(re.escape(word) for word in words)}))", re.IGNORECASE)
    return _joined(match.span(1) for match in pattern.finditer(text))


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
