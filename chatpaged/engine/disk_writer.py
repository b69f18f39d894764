"""The thread that writes block files, so that nobody who waits for a token waits for a disk."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass

from chatpaged.engine.block_files import BlockFiles
from chatpaged.engine.block_pool import BlockPrefix
from chatpaged.engine.block_room import DiskRoom

_log = logging.getLogger(__name__)
DISK_THREAD = "chatpaged-disk"
PAUSE_SECONDS = 30.0
"""How long nothing is written after the disk has refused."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a block that was to be written: `error` is None when it has a file."""

    prefix: BlockPrefix
    error: OSError | None


class DiskWriter:
    """Writes blocks one after the other. `put`, `results` and `close` belong to the engine thread; the files' room to the writer.

    Attributes:
        results: what became of the blocks, in order.
    """

    def __init__(self, files: BlockFiles, room: DiskRoom) -> None:
        self._files = files
        self._room = room
        self._blocks: queue.SimpleQueue[tuple[BlockPrefix, bytearray] | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[Written] = queue.SimpleQueue()
        self._gives_up = threading.Event()
        self._resume = 0.0
        self._thread: threading.Thread | None = None

    def put(self, prefix: BlockPrefix, data: bytearray) -> None:
        """Hands a block over."""
        self._started()
        self._blocks.put((prefix, data))

    def _started(self) -> threading.Thread:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=DISK_THREAD, daemon=True)
            self._thread.start()
        return self._thread

    def close(self, seconds: float | None = None) -> None:
        """Writes what is left, for so long at most; what is not written then is only computed again.

        Files beyond the limit are removed, also where nothing was written: it may have been another one in an earlier run.
        """
        thread = self._started()
        self._blocks.put(None)
        thread.join(seconds)
        self._gives_up.set()

    def _run(self) -> None:
        while not self._gives_up.is_set():
            item = self._blocks.get()
            if item is None:
                with contextlib.suppress(OSError):
                    self._room.make_room(0)
                return
            self.results.put(Written(item[0], self._write(*item)))

    def _write(self, prefix: BlockPrefix, data: bytearray) -> OSError | None:
        if time.monotonic() < self._resume:
            return OSError("not written: the disk has refused shortly before")
        try:
            self._room.make_room(len(data))
            self._room.add(self._files.path(prefix.key), self._files.write(prefix, data))
        except OSError as error:
            self._resume = time.monotonic() + PAUSE_SECONDS
            _log.warning("no block can be written to the cache on disk, the next try is in %.0f seconds: %s", PAUSE_SECONDS, error)
            return error
        return None
