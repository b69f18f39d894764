"""Conversations as rows of the store, and which of them somebody means."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from chatpaged.conversation import Conversation
from chatpaged.errors import InvalidRequestError
from chatpaged.store_rows import storable

_MOST_NAMED = 5
_COLUMNS = (
    "id, name, title, system, model, created, updated, (SELECT count(*) FROM messages m WHERE m.session = s.id), pinned <> 0, unread <> 0"
)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A conversation as a list shows it.

    Attributes:
        id: its id.
        name: what the user calls it; empty where nobody has said.
        title: the name, else the beginning of the first message.
        system: the system prompt; None leaves it to the chat template.
        model: the model it was last held with.
        created: seconds since 1970.
        updated: likewise, of the last change.
        num_messages: on all branches.
        pinned: whether the user wants it at the top.
        unread: whether something came that the user has not seen.
    """

    id: str
    name: str
    title: str
    system: str | None
    model: str
    created: float
    updated: float
    num_messages: int
    pinned: bool = False
    unread: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """What the store keeps of a conversation besides its messages, as it was at one moment.

    Attributes:
        id: its id.
        name: what the user calls it.
        title: the name, else the beginning of the first message.
        system: the system prompt.
        model: the model it is held with.
        leaf: the message that is looked at.
        created: seconds since 1970.
        updated: likewise, of the last change.
    """

    id: str
    name: str
    title: str
    system: str | None
    model: str
    leaf: str | None
    created: float
    updated: float

    @classmethod
    def of(cls, conversation: Conversation) -> Self:
        """That of a conversation as it is now."""
        return cls(
            conversation.id,
            storable(conversation.name),
            storable(conversation.title),
            storable(conversation.system) if conversation.system is not None else None,
            storable(conversation.model),
            conversation.leaf.id if conversation.leaf is not None else None,
            conversation.created,
            conversation.updated,
        )


def listed(connection: sqlite3.Connection, limit: int | None, *, pinned_first: bool) -> list[SessionInfo]:
    """Conversations that were not thrown away, the one that was last changed first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM sessions s WHERE deleted IS NULL "  # noqa: S608 - names of columns
        "ORDER BY (pinned <> 0 AND ?) DESC, updated DESC, id DESC LIMIT ?",
        (pinned_first, limit if limit is not None else -1),
    )
    values = ((*row[:-2], *map(bool, row[-2:])) for row in rows)
    return [SessionInfo(*row) for row in values]


def meant(text: str, sessions: Sequence[SessionInfo]) -> SessionInfo:
    """The conversation that somebody means; see `Store.resolve`."""
    wanted = text.casefold().strip()
    for rule in _RULES:
        found = [session for session in sessions if wanted and rule(session, wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            raise InvalidRequestError(f"{text!r} may be {_named(found[:_MOST_NAMED])}{more}; give more of the id")
    raise InvalidRequestError(f"no session {text!r}; {_near(wanted, sessions)}")


# The first rule that any conversation satisfies decides.
_RULES = (
    lambda session, wanted: session.id == wanted,
    lambda session, wanted: session.name.casefold() == wanted,
    lambda session, wanted: len(wanted) > 1 and (session.id.startswith(wanted) or session.id.endswith(wanted)),
    lambda session, wanted: session.title.casefold().startswith(wanted),
    lambda session, wanted: wanted in session.title.casefold(),
)


def _named(sessions: Iterable[SessionInfo]) -> str:
    return ", ".join(f"{session.id} ({session.title})" for session in sessions)


def _near(wanted: str, sessions: Sequence[SessionInfo]) -> str:
    if not sessions:
        return "nothing has been saved yet"
    by_text = {text: session for session in reversed(sessions) for text in (session.id, session.title.casefold())}
    near = {by_text[text].id: by_text[text] for text in difflib.get_close_matches(wanted, by_text, _MOST_NAMED)}
    return f"did you mean {_named(near.values())}?" if near else "chatpaged sessions list shows them"
