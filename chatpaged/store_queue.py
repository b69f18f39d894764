"""Writes to the store that wait for their turn, and how far they are.

One thread puts them in, another takes them out. What fails for a reason that may pass goes back to the head: order is never changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chatpaged.conversation import Node
from chatpaged.store import SessionState, Store

Write = Callable[[Store], object]
Key = tuple[str, object]

RETRY_SECONDS = 5.0
"""How long after a failure the next try is, if nothing else is written meanwhile."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that is to be added, and what is needed for that."""

    state: SessionState
    path: Sequence[Node]

    def __call__(self, store: Store) -> None:
        """Does it."""
        if store.has(self.state.id):
            store.add_path(self.state, self.path)
        else:  # another program has deleted it for good; who goes on with it wants what is in view kept
            store.add_states([(self.state, self.path)])

    def grown(self, node: Node) -> NewMessage:
        """The same with what the message has become."""
        return replace(self, path=(*self.path[:-1], node))


@dataclass(frozen=True, slots=True)
class GrownMessage:
    """A message that has changed."""

    node: Node

    def __call__(self, store: Store) -> None:
        """Does it."""
        store.update_message(self.node)

    def grown(self, node: Node) -> GrownMessage:
        """The same with what the message has become since."""
        return GrownMessage(node)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A write.

    Attributes:
        number: how many came before it.
        key: what it is about; there is one entry about the same at most.
        write: what is to be done.
    """

    number: int
    key: Key
    write: Write


class WriteQueue:
    """What is to be written, in order. Thread-safe."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._current: _Entry | None = None
        """What is being written now."""
        self._changed = threading.Condition()
        self._count = 0
        self._stuck = -1
        """The entry that somebody has waited for in vain."""
        self._pausing = False
        """The last try has failed, and nothing has come since."""
        self._asked = self._begun = self._answered = 0
        """Calls of `flush`: how many there were, before the try that is going on, and before the last one that came to an end."""
        self._is_closed = False

    # --- who writes --------------------------------------------------------------------------------------------------------

    def put(self, write: Write, key: Key | None = None) -> None:
        """Puts a write at the end; an earlier one under the same key is dropped."""
        with self._changed:
            key = key if key is not None else ("", self._count)
            self._entries.pop(key, None)
            self._add(_Entry(self._count, key, write))

    def put_message(self, node: Node, write: NewMessage | None = None) -> None:
        """Puts what a message is now, in the place of what is queued of it: what is behind that may need it.

        Args:
            node: the message.
            write: how it is added; None if it was added before.
        """
        key = ("message", node.id)
        with self._changed:
            queued = self._entries.get(key)
            if queued is not None and isinstance(queued.write, NewMessage | GrownMessage):
                self._add(replace(queued, write=queued.write.grown(node)))
            else:
                self._add(_Entry(self._count, key, write if write is not None else GrownMessage(node)))

    def _add(self, entry: _Entry) -> None:
        self._entries[entry.key] = entry
        self._count += 1
        self._pausing = False
        self._changed.notify_all()

    def wait_for_earlier(self, seconds: float) -> None:
        """Waits until all writes that were put in before have been done. Nobody waits twice for one that takes longer than that."""
        with self._changed:
            count = self._count
            if self._changed.wait_for(lambda: self._oldest() >= count or self._pausing or self._oldest() == self._stuck, seconds):
                return
            self._stuck = self._oldest()

    def flush(self, seconds: float) -> bool:
        """Waits until everything has been done; what has failed is tried once more.

        Returns:
            Whether it has; False if it failed again or takes longer.
        """
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._pausing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_done() or self._answered >= asked, seconds)
            return self._is_done()

    def close(self) -> None:
        """Lets `take` end once everything has been done, or when it fails."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _is_done(self) -> bool:
        return not self._entries and self._current is None

    def _oldest(self) -> int:
        """The number of the oldest write that has not been done."""
        if self._current is not None:
            return self._current.number
        return next(iter(self._entries.values())).number if self._entries else self._count

    # --- the writer ----------------------------------------------------------------------------------------------------------

    def take(self) -> Write | None:
        """Waits for the next write; None is the end. It must be followed by `done` or `failed`."""
        with self._changed:
            while not self._entries or self._pausing:
                if self._is_closed:
                    return None
                if not self._changed.wait_for(lambda: self._is_closed or bool(self._entries and not self._pausing), self._patience()):
                    self._pausing = False
            _, self._current = self._entries.popitem(last=False)
            self._begun = self._asked
            return self._current.write

    def _patience(self) -> float | None:
        return RETRY_SECONDS if self._pausing else None

    def done(self) -> None:
        """The write that was taken has been done, or never can be."""
        with self._changed:
            self._current = None
            self._changed.notify_all()

    def failed(self) -> None:
        """The write that was taken goes back to the head, unless a newer one is queued in its place."""
        with self._changed:
            entry, self._current = self._current, None
            if entry is not None:
                newer = self._entries.get(entry.key)
                if newer is not None and isinstance(newer.write, GrownMessage) and isinstance(entry.write, NewMessage):
                    newer = self._entries[entry.key] = replace(entry, write=entry.write.grown(newer.write.node))
                elif newer is None:
                    newer = self._entries[entry.key] = entry
                if newer.number == entry.number:
                    self._entries.move_to_end(entry.key, last=False)
            self._pausing = True
            self._answered = self._begun
            self._changed.notify_all()
