"""Conversations on disk. What was said is there before an answer begins, and an answer at most a moment behind.

An answer that is being generated is marked interrupted until it is finished, so that whatever ends the process, nothing has to be
repaired when the store is opened again.
"""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from chatpaged.conversation import Conversation, Node
from chatpaged.errors import InvalidRequestError, StoreError
from chatpaged.paths import store_file
from chatpaged.store_database import Database
from chatpaged.store_rows import COLUMNS, insert_nodes, node_row, row_node, storable
from chatpaged.store_search import SearchHit, search_messages

_MOST_NAMED = 5
_SESSION_COLUMNS = "id, name, title, system, model, created, updated, (SELECT count(*) FROM messages m WHERE m.session = s.id)"


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
    """

    id: str
    name: str
    title: str
    system: str | None
    model: str
    created: float
    updated: float
    num_messages: int


class Store:
    """All conversations of a user. Any number of processes may have it open."""

    def __init__(self, path: Path | None = None, *, create: bool = True) -> None:
        """Opens the store.

        Args:
            path: the file; None is that of the user.
            create: make it if there is none. Without, what is not there reads as empty.

        Raises:
            StoreError: it cannot be used.
        """
        path = path if path is not None else store_file()
        self._database = Database(path if create or path.exists() else None)

    # --- writing ---------------------------------------------------------------------------------------------------------

    def add_session(self, *conversations: Conversation) -> None:
        """Keeps conversations, with all that is in them: all of them, or none.

        Raises:
            StoreError: one is there already, or they cannot be written.
        """
        with self._database.writing() as connection:
            for conversation in conversations:
                values = (conversation.id, conversation.name, conversation.title, conversation.system, conversation.model)
                leaf = conversation.leaf.id if conversation.leaf is not None else None
                connection.execute(
                    "INSERT INTO sessions (id, name, title, system, model, leaf, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(storable(value) if value is not None else None for value in values),
                        leaf,
                        conversation.created,
                        conversation.updated,
                    ),
                )
                insert_nodes(connection, conversation.id, conversation.nodes)

    def add_message(self, conversation: Conversation, node: Node) -> None:
        """Keeps a message that was added to a conversation, and what the conversation looks at.

        Messages before it that could not be kept when they came are kept now.

        Raises:
            StoreError: the conversation was deleted meanwhile, or cannot be written.
        """
        with self._database.writing() as connection:
            _update_session(connection, conversation)
            missing = [node]
            while (parent := missing[0].parent) is not None and not _exists(connection, "messages", parent):
                missing.insert(0, conversation.node(parent))
            insert_nodes(connection, conversation.id, missing)

    def update_message(self, node: Node) -> None:
        """Keeps what a message has become.

        Raises:
            StoreError: it was deleted meanwhile, or cannot be written.
        """
        columns = [name.strip() for name in COLUMNS.split(",")]
        with self._database.writing() as connection:
            changed = connection.execute(
                f"UPDATE messages SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = ?",  # noqa: S608 - names of columns
                (*node_row(node), node.id),
            )
            if not changed.rowcount:
                raise StoreError(f"message {node.id} was deleted meanwhile; what it has become cannot be kept")

    def update_session(self, conversation: Conversation) -> None:
        """Keeps system prompt, model and what is looked at. The name is what `rename` has made it, also in another process.

        Raises:
            StoreError: the conversation was deleted meanwhile, or cannot be written.
        """
        with self._database.writing() as connection:
            _update_session(connection, conversation)

    def rename(self, session_id: str, name: str) -> None:
        """Gives a conversation a name; an empty one takes it away.

        Raises:
            InvalidRequestError: there is no such conversation.
        """
        conversation = self.load(session_id)
        conversation.name = " ".join(name.split())
        with self._database.writing() as connection:
            values = map(storable, (conversation.name, conversation.title))
            connection.execute("UPDATE sessions SET name = ?, title = ? WHERE id = ?", (*values, session_id))

    def delete(self, session_id: str) -> None:
        """Deletes a conversation for good."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM messages WHERE session = ?", (session_id,))
            connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def taken_ids(self, conversation: Conversation) -> frozenset[str]:
        """Those ids of a conversation and its messages that the store has already."""
        with self._database.reading() as connection:
            taken = {conversation.id} if _exists(connection, "sessions", conversation.id) else set()
            return frozenset(taken | {node.id for node in conversation.nodes if _exists(connection, "messages", node.id)})

    # --- reading ---------------------------------------------------------------------------------------------------------

    def sessions(self, limit: int | None = None) -> list[SessionInfo]:
        """Conversations, the one that was last changed first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                f"SELECT {_SESSION_COLUMNS} FROM sessions s ORDER BY updated DESC, id DESC LIMIT ?",  # noqa: S608 - names of columns
                (limit if limit is not None else -1,),
            )
            return [SessionInfo(*row) for row in rows]

    def load(self, session_id: str) -> Conversation:
        """A conversation by its whole id.

        Raises:
            InvalidRequestError: there is none.
            StoreError: it cannot be read.
        """
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT name, system, model, created, updated, leaf FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            if found is None:
                raise InvalidRequestError(f"no session {session_id!r}")
            rows = connection.execute(f"SELECT {COLUMNS} FROM messages WHERE session = ? ORDER BY number", (session_id,)).fetchall()  # noqa: S608 - names of columns
        name, system, model, created, updated, leaf = found
        conversation = Conversation(name=name, system=system, model=model, session_id=session_id, now=created)
        try:
            for row in rows:
                conversation.add(row_node(row))
            conversation.branch(leaf)
        except (InvalidRequestError, ValueError) as error:
            raise StoreError(f"session {session_id} in the store {self._database.path} is damaged: {error}") from error
        conversation.updated = updated
        return conversation

    def search(self, text: str, limit: int = 50) -> list[SearchHit]:
        """Messages in which every word of a text occurs, newest first."""
        with self._database.reading() as connection:
            return search_messages(connection, text, limit)

    def resolve(self, text: str) -> SessionInfo:
        """The conversation that somebody means: its id, the beginning or the end of its id, its name, or a part of its title.

        Raises:
            InvalidRequestError: none is meant, or more than one; near ones are named.
        """
        sessions = self.sessions()
        wanted = text.casefold().strip()
        for rule in _RULES:
            found = [session for session in sessions if wanted and rule(session, wanted)]
            if len(found) == 1:
                return found[0]
            if found:
                more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
                raise InvalidRequestError(f"{text!r} may be {_named(found[:_MOST_NAMED])}{more}; give more of the id")
        raise InvalidRequestError(f"no session {text!r}; {_near(wanted, sessions)}")

    def resolve_message(self, text: str) -> tuple[Conversation, Node]:
        """The message whose id is, begins or ends so, and its conversation.

        Raises:
            InvalidRequestError: there is none, or more than one.
        """
        pattern = text.strip().lower()
        usable = pattern.isascii() and pattern.isalnum()
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT id, session FROM messages WHERE id = :id OR :id <> '' AND (id GLOB :id || '*' OR id GLOB '*' || :id) LIMIT 6",
                {"id": pattern if usable else ""},
            ).fetchall()
        exact = [row for row in rows if row[0] == pattern] or rows
        if not exact:
            raise InvalidRequestError(f"no message {text!r}; chatpaged sessions show ID lists the ids of messages")
        if len(exact) > 1:
            raise InvalidRequestError(f"{text!r} may be one of {len(exact)} or more messages; give more of the id")
        conversation = self.load(exact[0][1])
        return conversation, conversation.node(exact[0][0])

    def latest(self) -> SessionInfo | None:
        """The conversation that was last changed."""
        return next(iter(self.sessions(1)), None)

    def close(self) -> None:
        """Ends the connection."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


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


def _exists(connection: sqlite3.Connection, table: str, identifier: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} WHERE id = ?", (identifier,)).fetchone() is not None  # noqa: S608 - name of a table


def _update_session(connection: sqlite3.Connection, conversation: Conversation) -> None:
    values = (storable(value) if value is not None else None for value in (conversation.system, conversation.model))
    leaf = conversation.leaf.id if conversation.leaf is not None else None
    changed = connection.execute(
        "UPDATE sessions SET system = ?, model = ?, leaf = ?, updated = max(updated, ?) WHERE id = ?",
        (*values, leaf, conversation.updated, conversation.id),
    )
    if not changed.rowcount:
        raise StoreError(f"session {conversation.id} was deleted meanwhile; what follows cannot be kept in it")
