"""Blocks in files: written by a thread of its own, read and checked when they are wanted.

```text
save      ticket ──> the executor leaves a copy of the block under it ──> DiskWriter (thread) ──> block file
promote   file read, ids and checksum compared ──> ticket ──> the executor copies what lies under it into a device block
```

A block that waits for its file is found as if it had one. Whatever goes wrong on the way (a full disk, a damaged file, a read error) is
counted, and the block is computed again.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from chatpaged.engine.block_files import BlockFileError, BlockFileMissingError, BlockFiles
from chatpaged.engine.block_pool import BlockPrefix
from chatpaged.engine.disk_writer import DiskWriter
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.tier_policy import TierKind, TierPolicy

_log = logging.getLogger(__name__)
MAX_REMEMBERED = 2**17
"""Keys that are kept in mind; beyond, all are forgotten, and files looked at once more."""
MAX_PENDING_BYTES = 256 * 2**20
"""Blocks that may wait for the disk; more are dropped, since the engine never waits for it."""


@dataclass(slots=True)
class DiskCounters:
    """What happened to block files since the start.

    Attributes:
        disk_writes: blocks written.
        disk_reads: blocks read.
        disk_drops: blocks that were not written, since too many were waiting or the disk refused.
        disk_faults: files that were damaged, or could not be read.
    """

    disk_writes: int = 0
    disk_reads: int = 0
    disk_drops: int = 0
    disk_faults: int = 0


@dataclass(slots=True)
class _Pending:
    """A block on its way to its file; `data` is there once the executor has seen its ticket."""

    prefix: BlockPrefix
    data: bytearray | None = None


class TurnClock:
    """When the blocks of a turn count as used: all of them together, so that the beginning of a chat outlives its end."""

    def __init__(self) -> None:
        self.advance()

    def advance(self) -> None:
        """A turn has come to its end, or a chat is looked at."""
        self._now_ns = time.time_ns()

    def __call__(self) -> int:
        """Nanoseconds since 1970."""
        return self._now_ns


class DiskTier:
    """The block files of one model, as a memory tier. Satisfies `BlockExchange`: the executor leaves and finds contents here."""

    def __init__(
        self, files: BlockFiles, writer: DiskWriter, policy: TierPolicy, clock: TurnClock, *, max_pending_bytes: int = MAX_PENDING_BYTES
    ) -> None:
        self.counters = DiskCounters()
        self._files = files
        self._writer = writer
        self._policy = policy
        self._clock = clock
        self._max_pending = max(1, max_pending_bytes // files.block_bytes)
        self._pending: dict[bytes, _Pending] = {}
        self._saves: dict[int, _Pending] = {}
        self._loads: dict[int, _Pending | bytearray] = {}
        self._unusable: set[bytes] = set()
        self._proven: set[bytes] = set()
        # Asked for in each step by whoever waits, so that the system is not; others may have removed a file meanwhile.
        self._known: set[bytes] = set()
        self._tickets = itertools.count()

    # --- for the block manager -----------------------------------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        """Blocks on their way to a file."""
        self._settle()
        return len(self._pending)

    @property
    def can_save(self) -> bool:
        """Whether one more block may wait."""
        return self.num_pending < self._max_pending

    def save(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """See `BlockTier.save`."""
        if prefix.is_private or prefix.key in self._pending or self._has_whole_file(prefix.key):
            return None
        if not self.can_save:
            self.counters.disk_drops += 1
            return None
        ticket = next(self._tickets)
        self._pending[prefix.key] = self._saves[ticket] = _Pending(prefix)
        return BlockOperation(BlockOperationKind.SAVE, block, ticket)

    def _has_whole_file(self, key: bytes) -> bool:
        """Whether there is a file; once one was damaged, whether it is one that was read or written by this process."""
        return self._files.has(key) and (key in self._proven or not self.counters.disk_faults)

    def contains(self, prefix: BlockPrefix) -> bool:
        """Whether there may be a file, by its name; what is in it is looked at when it is wanted."""
        pending = self._pending.get(prefix.key)
        if pending is not None:
            return pending.prefix == prefix
        if prefix.key in self._known:
            return True
        found = prefix.key not in self._unusable and self._files.has(prefix.key)
        if found:
            _remember(self._known, prefix.key)
        return found

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """See `BlockTier.promote`."""
        pending = self._pending.get(prefix.key)
        found = pending if pending is not None and pending.prefix == prefix else self._read(prefix)
        if found is None:
            return None
        ticket = next(self._tickets)
        self._loads[ticket] = found
        return BlockOperation(BlockOperationKind.LOAD, ticket, block)

    def touch(self, prefixes: Iterable[BlockPrefix]) -> None:
        """See `BlockTier.touch`."""
        self._clock.advance()
        self._files.touch(prefixes)

    def counts(self) -> dict[str, int]:
        """All counters, and the blocks that wait."""
        return {"disk_pending": self.num_pending, **asdict(self.counters)}

    def _read(self, prefix: BlockPrefix) -> bytearray | None:
        begin = time.perf_counter()
        try:
            data = self._files.read(prefix)
        except BlockFileMissingError:  # another process has made room
            self._known.discard(prefix.key)
            return None
        except BlockFileError as error:
            self._known.discard(prefix.key)
            self._unusable.add(prefix.key)
            self.counters.disk_faults += 1
            _log.warning("a block is computed again: %s", error)
            return None
        self.counters.disk_reads += 1
        _remember(self._proven, prefix.key)
        self._policy.observe_moves(TierKind.DISK, 1, time.perf_counter() - begin)
        return data

    def _settle(self) -> None:
        """Hears what became of the blocks that were to be written."""
        while not self._writer.results.empty():
            written = self._writer.results.get()
            self._pending.pop(written.prefix.key, None)
            if written.error is None:
                self.counters.disk_writes += 1
                _remember(self._proven, written.prefix.key)
                self._unusable.discard(written.prefix.key)
            else:
                self.counters.disk_drops += 1

    # --- for the executor ------------------------------------------------------------------------------------------------

    def leave(self, ticket: int, data: bytearray) -> None:
        """Takes the contents of a block that is to be written."""
        pending = self._saves.pop(ticket)
        pending.data = data
        self._writer.put(pending.prefix, data)

    def fetch(self, ticket: int) -> bytearray:
        """Gives the contents of a block that comes up."""
        found = self._loads.pop(ticket)
        if not isinstance(found, _Pending):
            return found
        if found.data is None:
            raise RuntimeError(f"ticket {ticket}: a block is wanted back before its contents were left")
        return found.data

    def close(self, seconds: float | None = None) -> None:
        """Writes what waits, for so long at most."""
        self._writer.close(seconds)
        self._settle()


def _remember(keys: set[bytes], key: bytes) -> None:
    if len(keys) >= MAX_REMEMBERED:
        keys.clear()
    keys.add(key)
