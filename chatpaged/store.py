"""Conversations on disk. What was said is there before an answer begins, and an answer at most a moment behind.

An answer that is being generated is marked interrupted until it is finished, so that whatever ends the process, nothing has to be
repaired when the store is opened again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Self

from chatpaged.conversation import Conversation, Node
from chatpaged.errors import InvalidRequestError, StoreError
from chatpaged.paths import store_file
from chatpaged.store_database import Database
from chatpaged.store_rows import COLUMNS, insert_nodes, node_row, row_node, storable
from chatpaged.store_search import SearchHit, search_messages
from chatpaged.store_sessions import SessionInfo, SessionState, listed, meant

__all__ = ["SearchHit", "SessionInfo", "SessionState", "Store"]

SECONDS_IN_THE_BIN = 24 * 3600.0
"""How long what was thrown away lies there when whoever threw it away did not empty it."""


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
        self._thrown_away: set[str] = set()
        """By this one: what is still written there is an answer that was stopped, while another process writes because it is used."""

    # --- writing ---------------------------------------------------------------------------------------------------------

    def add_session(self, *conversations: Conversation) -> None:
        """Keeps conversations, with all that is in them: all of them, or none.

        Raises:
            StoreError: one is there already, or they cannot be written.
        """
        self.add_states([(SessionState.of(conversation), conversation.nodes) for conversation in conversations])

    def add_states(self, sessions: Iterable[tuple[SessionState, Sequence[Node]]]) -> None:
        """The same of conversations as they were at one moment, each with its messages."""
        with self._database.writing() as connection:
            for state, nodes in sessions:
                connection.execute(
                    "INSERT INTO sessions (id, name, title, system, model, leaf, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    astuple(state),
                )
                insert_nodes(connection, state.id, nodes)

    def has(self, session_id: str) -> bool:
        """Whether there is such a conversation, also one that was thrown away."""
        with self._database.reading() as connection:
            return _exists(connection, "sessions", session_id)

    def add_message(self, conversation: Conversation, node: Node) -> None:
        """Keeps a message that was added to a conversation, and what the conversation looks at.

        Messages before it that could not be kept when they came are kept now.

        Raises:
            StoreError: the conversation was deleted meanwhile, or cannot be written.
        """
        self.add_path(SessionState.of(conversation), conversation.path(node.id))

    def add_path(self, state: SessionState, path: Sequence[Node]) -> None:
        """The same of a conversation as it was at one moment.

        Args:
            state: the conversation.
            path: the messages up to the new one, from the first one on.
        """
        with self._database.writing() as connection:
            self._update_session(connection, state)
            known = len(path) - 1
            while known and not _exists(connection, "messages", path[known - 1].id):
                known -= 1
            insert_nodes(connection, state.id, path[known:])

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
            (session_id,) = connection.execute("SELECT session FROM messages WHERE id = ?", (node.id,)).fetchone()
            self._revive(connection, session_id)

    def update_session(self, conversation: Conversation) -> None:
        """Keeps system prompt, model and what is looked at. The name is what `rename` has made it, also in another process.

        Raises:
            StoreError: the conversation was deleted meanwhile, or cannot be written.
        """
        self.update_state(SessionState.of(conversation))

    def update_state(self, state: SessionState) -> None:
        """The same of a conversation as it was at one moment."""
        with self._database.writing() as connection:
            self._update_session(connection, state)

    def _update_session(self, connection: sqlite3.Connection, state: SessionState) -> None:
        changed = connection.execute(
            "UPDATE sessions SET system = ?, model = ?, leaf = ?, updated = max(updated, ?) WHERE id = ?",
            (state.system, state.model, state.leaf, state.updated, state.id),
        )
        if not changed.rowcount:
            raise StoreError(f"session {state.id} was deleted meanwhile; what follows cannot be kept in it")
        self._revive(connection, state.id)

    def _revive(self, connection: sqlite3.Connection, session_id: str) -> None:
        """What another process has thrown away and is gone on with here is wanted."""
        if session_id not in self._thrown_away:
            connection.execute("UPDATE sessions SET deleted = NULL WHERE id = ? AND deleted IS NOT NULL", (session_id,))

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
            _delete(connection, session_id)

    def set_pinned(self, session_id: str, *, pinned: bool) -> None:
        """Says whether the user wants a conversation at the top."""
        self._set(session_id, "pinned", pinned)

    def set_unread(self, session_id: str, *, unread: bool) -> None:
        """Says whether something came that the user has not seen."""
        self._set(session_id, "unread", unread)

    def set_draft(self, session_id: str, text: str) -> None:
        """Keeps what is typed and not sent."""
        self._set(session_id, "draft", storable(text))

    def _set(self, session_id: str, column: str, value: object) -> None:
        """What is no part of the conversation changes nothing about when it was last changed; one that is not there has nothing to set."""
        with self._database.writing() as connection:
            connection.execute(f"UPDATE sessions SET {column} = ? WHERE id = ?", (value, session_id))  # noqa: S608 - name of a column

    # --- throwing away -----------------------------------------------------------------------------------------------------

    def throw_away(self, session_id: str, *, now: float | None = None) -> None:
        """Hides a conversation from everything but `undelete`; what is still said in it is kept all the same.

        It comes back by itself when another process, which has it open, goes on with it.
        """
        self._set(session_id, "deleted", time.time() if now is None else now)
        self._thrown_away.add(session_id)

    def undelete(self, session_id: str) -> None:
        """Takes back `throw_away`; without effect if the conversation has been deleted for good."""
        self._set(session_id, "deleted", None)
        self._thrown_away.discard(session_id)

    def purge(self, session_id: str) -> None:
        """Deletes a conversation for good if it is still thrown away."""
        with self._database.writing() as connection:
            if connection.execute("SELECT 1 FROM sessions WHERE id = ? AND deleted IS NOT NULL", (session_id,)).fetchone():
                _delete(connection, session_id)

    def empty_bin(self, *, before: float | None = None) -> int:
        """Deletes for good what was thrown away. Returns how many conversations these were.

        Args:
            before: when, in seconds since 1970; None is a day ago, since another process may still want to take back what it did.
        """
        before = time.time() - SECONDS_IN_THE_BIN if before is None else before
        with self._database.writing() as connection:
            rows = connection.execute("SELECT id FROM sessions WHERE deleted < ?", (before,)).fetchall()
            for (session_id,) in rows:
                _delete(connection, session_id)
        return len(rows)

    def taken_ids(self, conversation: Conversation) -> frozenset[str]:
        """Those ids of a conversation and its messages that the store has already."""
        with self._database.reading() as connection:
            taken = {conversation.id} if _exists(connection, "sessions", conversation.id) else set()
            return frozenset(taken | {node.id for node in conversation.nodes if _exists(connection, "messages", node.id)})

    # --- reading ---------------------------------------------------------------------------------------------------------

    def sessions(self, limit: int | None = None, *, pinned_first: bool = False) -> list[SessionInfo]:
        """Conversations, the one that was last changed first; on demand those first that are pinned."""
        with self._database.reading() as connection:
            return listed(connection, limit, pinned_first=pinned_first)

    def draft(self, session_id: str) -> str:
        """What was typed in a conversation and not sent."""
        with self._database.reading() as connection:
            found = connection.execute("SELECT draft FROM sessions WHERE id = ?", (session_id,)).fetchone()
            return str(found[0]) if found is not None else ""

    def load(self, session_id: str) -> Conversation:
        """A conversation by its whole id.

        Raises:
            InvalidRequestError: there is none.
            StoreError: it cannot be read.
        """
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT name, system, model, created, updated, leaf FROM sessions WHERE id = ? AND deleted IS NULL", (session_id,)
            ).fetchone()
            if found is None:
                raise InvalidRequestError(f"no session {session_id!r}")
            rows = connection.execute(f"SELECT {COLUMNS} FROM messages WHERE session = ? ORDER BY number", (session_id,)).fetchall()  # noqa: S608 - names of columns
        name, system, model, created, updated, leaf = found
        conversation = Conversation(name=name, system=system, model=model, session_id=session_id, now=created)
        try:
            for row in rows:
                conversation.add(row_node(row))
            if leaf is None or any(node.id == leaf for node in conversation.nodes):  # else it could not be kept: the newest is looked at
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
        return meant(text, self.sessions())

    def resolve_message(self, text: str) -> tuple[Conversation, Node]:
        """The message whose id is, begins or ends so, and its conversation.

        Raises:
            InvalidRequestError: there is none, or more than one.
        """
        pattern = text.strip().lower()
        usable = pattern.isascii() and pattern.isalnum()
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT id, session FROM messages WHERE (id = :id OR :id <> '' AND (id GLOB :id || '*' OR id GLOB '*' || :id)) "
                "AND session IN (SELECT id FROM sessions WHERE deleted IS NULL) LIMIT 6",
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


def _delete(connection: sqlite3.Connection, session_id: str) -> None:
    connection.execute("DELETE FROM messages WHERE session = ?", (session_id,))
    connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


def _exists(connection: sqlite3.Connection, table: str, identifier: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} WHERE id = ?", (identifier,)).fetchone() is not None  # noqa: S608 - name of a table
