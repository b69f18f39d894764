"""Search: what somebody types, as a query that finds it. No text is a syntax error.

What follows a NUL character in a message may not be found: there SQLite's functions for texts stop.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

_SHORTEST_INDEXED = 3  # the index holds trigrams
_MOST_WORDS = 32
_LONGEST_INDEXED = 1000
_EXCERPT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A message that was found.

    Attributes:
        session: the conversation's id.
        title: its name or its beginning.
        message: the message's id.
        role: whose it is.
        created: when it was written, in seconds since 1970.
        excerpt: its text around the first word that was searched for, on one line.
    """

    session: str
    title: str
    message: str
    role: str
    created: float
    excerpt: str


def search_messages(connection: sqlite3.Connection, text: str, limit: int) -> list[SearchHit]:
    """Messages in which every word of a text occurs, newest first. Upper and lower case are the same.

    Args:
        connection: to the store.
        text: words; parts of words as well.
        limit: the most that are given.
    """
    words = _words(text)
    if not words:
        return []
    condition, values = _condition(words)
    rows = connection.execute(
        f"SELECT m.session, s.title, m.id, m.role, m.created, m.content FROM messages m JOIN sessions s ON s.id = m.session "  # noqa: S608 - made of constants
        f"WHERE s.deleted IS NULL AND {condition} ORDER BY m.number DESC LIMIT ?",
        (*values, limit),
    )
    return [
        SearchHit(session=session, title=title, message=message, role=role, created=created, excerpt=_excerpt(content, words[0]))
        for session, title, message, role, created, content in rows
    ]


def _words(text: str) -> list[str]:
    """The different words; a text that is very long is one that was copied, and is looked for as it is."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates can be in no message
    words = list(dict.fromkeys(text.split()))
    return words if len(words) <= _MOST_WORDS and len(text) <= _LONGEST_INDEXED else [text.strip()]


def _condition(words: list[str]) -> tuple[str, list[str]]:
    indexed = [word for word in words if _SHORTEST_INDEXED <= len(word) <= _LONGEST_INDEXED and "\0" not in word]
    conditions, values = [], []
    if indexed:
        conditions.append("m.number IN (SELECT rowid FROM message_texts WHERE message_texts MATCH ?)")
        values.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in indexed))
    for word in words:
        if word not in indexed and len(word) < _SHORTEST_INDEXED and "\0" not in word:
            conditions.append("m.content LIKE ? ESCAPE '\\'")
            values.append("%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%")
        elif word not in indexed:
            conditions.append("instr(m.content, ?) > 0")
            values.append(word)
    return " AND ".join(conditions), values


def _excerpt(content: str, word: str) -> str:
    at = max(0, content.lower().find(word.lower()))
    begin, end = max(0, at - _EXCERPT), at + len(word) + _EXCERPT
    line = " ".join(content[begin:end].split())
    return ("…" if begin else "") + line + ("…" if end < len(content) else "")
