"""The store for who must never wait: an event loop that draws a screen.

```text
event loop ── writes ──>  queue ──>  writer thread: one after another, in order
           ── reads ──>   reader thread: after the writes that were asked for before, or a second later without them
```

Another process may hold SQLite's lock for seconds, and a disk may be full for longer. So a write that fails for a reason that may pass
stays at the head of the queue and is tried again: with the next write, every few seconds, and at the end. The queue stays short, since a
message that has grown replaces what is queued of it. Conversations go on changing on the event loop, therefore what a write needs is
taken down when it is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from chatpaged.conversation import Conversation, Node
from chatpaged.errors import ChatpagedError, StoreError
from chatpaged.store import SessionState, Store
from chatpaged.store_queue import NewMessage, Write, WriteQueue

_log = logging.getLogger(__name__)
T = TypeVar("T")

TOLD_SECONDS = 60.0
"""How long one kind of failure is not told again."""
BEHIND_SECONDS = 1.0
"""How long a read waits for the writes before it."""
_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
    }
)


class BackgroundStore:
    """Writes in order on a thread of its own, reads on another. Methods without a word on blocking return at once.

    The methods with names of those of `Store` do the same, later. What goes wrong is told to `on_error`.

    Attributes:
        opened: done when the store can be used. Its error is that of the first try to open it; there will be others.
    """

    def __init__(self, path: Path | None = None, *, on_error: Callable[[StoreError], None]) -> None:
        """Begins to open the store, and to delete for good what was thrown away long ago.

        Args:
            path: the file; None is that of the user.
            on_error: is told what could not be written, each kind of failure once a minute at most. Called on the writer thread.
        """
        self.opened: Future[None] = Future()
        self._path = path
        self._on_error = on_error
        self._told: dict[str, float] = {}
        self._thrown_away: set[str] = set()
        self._is_closed = False
        self._queue = WriteQueue()
        self._reading: Store | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="chatpaged-store-reader")
        self._writer = threading.Thread(target=self._run, name="chatpaged-store-writer", daemon=True)
        self.write(Store.empty_bin)
        self._writer.start()

    # --- writing -----------------------------------------------------------------------------------------------------------

    def add_session(self, *conversations: Conversation) -> None:
        """See `Store.add_session`."""
        sessions = [(SessionState.of(conversation), conversation.nodes) for conversation in conversations]
        self.write(lambda store: store.add_states(sessions))

    def add_message(self, conversation: Conversation, node: Node) -> None:
        """See `Store.add_message`."""
        self._check_open()
        self._queue.put_message(node, NewMessage(SessionState.of(conversation), conversation.path(node.id)))

    def update_message(self, node: Node) -> None:
        """See `Store.update_message`."""
        self._check_open()
        self._queue.put_message(node)

    def update_session(self, conversation: Conversation) -> None:
        """See `Store.update_session`."""
        state = SessionState.of(conversation)
        self._write_last(("session", state.id), lambda store: store.update_state(state))

    def rename(self, session_id: str, name: str) -> None:
        """See `Store.rename`."""
        self.write(lambda store: store.rename(session_id, name))

    def set_pinned(self, session_id: str, *, pinned: bool) -> None:
        """See `Store.set_pinned`."""
        self.write(lambda store: store.set_pinned(session_id, pinned=pinned))

    def set_unread(self, session_id: str, *, unread: bool) -> None:
        """See `Store.set_unread`."""
        self._write_last(("unread", session_id), lambda store: store.set_unread(session_id, unread=unread))

    def set_draft(self, session_id: str, text: str) -> None:
        """See `Store.set_draft`."""
        self._write_last(("draft", session_id), lambda store: store.set_draft(session_id, text))

    def throw_away(self, session_id: str) -> None:
        """See `Store.throw_away`. What is still thrown away when the store is closed is deleted for good then."""
        self.write(lambda store: store.throw_away(session_id))
        self._thrown_away.add(session_id)

    def undelete(self, session_id: str) -> None:
        """See `Store.undelete`."""
        self.write(lambda store: store.undelete(session_id))
        self._thrown_away.discard(session_id)

    def delete(self, session_id: str) -> None:
        """See `Store.delete`."""
        self.write(lambda store: store.delete(session_id))
        self._thrown_away.discard(session_id)

    def write(self, function: Write) -> None:
        """Runs a function on the writer thread, after all writes that were asked for before.

        Raises:
            StoreError: the store has been closed.
        """
        self._check_open()
        self._queue.put(function)

    def _write_last(self, key: tuple[str, object], function: Write) -> None:
        """The same, in place of what is queued about the same."""
        self._check_open()
        self._queue.put(function, key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store has been closed; what comes now is not kept")

    # --- reading -----------------------------------------------------------------------------------------------------------

    def read(self, function: Callable[[Store], T]) -> asyncio.Future[T]:
        """Runs a function on the reader thread: `await store.read(lambda store: store.search("cats"))`.

        It sees the writes that were asked for before it, unless these take longer than a second. Cancelling it spares the work if
        it has not begun.

        Raises:
            StoreError: the store has been closed, or cannot be opened or read.
        """
        self._check_open()
        return asyncio.wrap_future(self._reader.submit(self._read, function))

    def _read(self, function: Callable[[Store], T]) -> T:
        self._queue.wait_for_earlier(BEHIND_SECONDS)
        if self._reading is None:
            self._reading = Store(self._path)
        return function(self._reading)

    # --- the end -----------------------------------------------------------------------------------------------------------

    def flush(self, seconds: float) -> bool:
        """Waits until everything is on disk; what has failed before is tried once more. Blocks.

        Returns:
            Whether it is; False if it failed again or takes longer.
        """
        return self._queue.flush(seconds)

    def close(self, seconds: float = 10.0) -> bool:
        """Writes what there is, deletes for good what was thrown away and not taken back, and ends. Blocks.

        Args:
            seconds: how long to wait for all of that. The threads do not keep the process from ending.

        Returns:
            Whether everything is on disk.
        """
        if self._is_closed:
            return self._queue.flush(0.0)
        for session_id in sorted(self._thrown_away):
            self._purge(session_id)
        self._is_closed = True
        end = time.monotonic() + seconds
        is_kept = self._queue.flush(seconds)
        self._queue.close()
        self._reader.submit(self._close_reading)
        self._reader.shutdown(wait=False)
        self._writer.join(max(0.0, end - time.monotonic()))
        return is_kept

    def _purge(self, session_id: str) -> None:
        self.write(lambda store: store.purge(session_id))

    def _close_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()

    # --- on the writer thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        store = self._open_first()
        while (write := self._queue.take()) is not None:
            try:
                store = store if store is not None else Store(self._path)
                write(store)
            except StoreError as error:
                self._tell(error)
                if store is None or _may_pass(error):
                    self._queue.failed()
                else:
                    self._queue.done()
            except Exception as error:  # noqa: BLE001 - the top of the thread: the next write may do better
                if not isinstance(error, ChatpagedError):
                    _log.exception("a write to the store has failed")
                self._tell(StoreError(f"cannot keep a change: {error}"))
                self._queue.done()
            else:
                self._queue.done()
        if store is not None:
            store.close()

    def _open_first(self) -> Store | None:
        try:
            store = Store(self._path)
        except StoreError as error:
            self.opened.set_exception(error)
            return None
        self.opened.set_result(None)
        return store

    def _tell(self, error: StoreError) -> None:
        now, text = time.monotonic(), str(error)
        if now - self._told.get(text, -TOLD_SECONDS) >= TOLD_SECONDS:
            self._told[text] = now
            with suppress(RuntimeError):  # the event loop that it is meant for may have ended
                self._on_error(error)


def _may_pass(error: StoreError) -> bool:
    """Whether the same write may succeed later."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _PASSING
    return isinstance(cause, OSError)
