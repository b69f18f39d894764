"""Room for block files: those of all models together stay below a limit, and the disk is never filled to its end.

```text
make_room    files used longest ago, of whatever model  ──>  looked at once more  ──>  removed, or put back if they were used meanwhile
```

What lies on the disk is looked through once and then kept in mind. Other processes write, use and remove files as well, so it is looked
through again from time to time; in between each process may add a small part of the limit without the others' knowing.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chatpaged.engine.block_directories import (
    MANIFEST,
    block_entries,
    is_unfinished,
    model_directories,
    remove_directory,
    remove_empty,
)
from chatpaged.engine.file_access import FileAccess
from chatpaged.paths import private_dir

LOOK_AGAIN_SECONDS = 60.0
LOOK_AGAIN_SHARE = 16
"""Looked through again after files of this part of the limit have been added."""
KEPT_FREE_BYTES = 2**30
KEPT_FREE_SHARE = 20
ABANDONED_NS = 3600 * 10**9
"""After this time nobody still writes a file, and nobody will write into a directory without one."""


@dataclass(frozen=True, slots=True)
class _File:
    used_ns: int
    size: int
    order: int
    """Those with the lowest number go first."""


class DiskRoom:
    """What the block files of all models take, and which of them go first. Belongs to one thread."""

    def __init__(
        self,
        root: Path,
        cap: int,
        *,
        access: FileAccess | None = None,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Looks at nothing yet.

        Args:
            root: of the files of all models.
            cap: bytes that they may take.
            access: how files are reached.
            clock: nanoseconds since 1970, as files have them.
            timer: seconds, for how long ago something was.
        """
        self.cap = cap
        self._root = root
        self._access = access or FileAccess()
        self._clock = clock
        self._timer = timer
        self._files: dict[str, _File] = {}
        # When and which; those that are not in `_files` so any more are passed over.
        self._oldest: list[tuple[int, str]] = []
        self._num_bytes = 0
        self._num_added = 0
        self._looked: float | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that block files take, as far as is known."""
        return self._num_bytes

    @property
    def num_files(self) -> int:
        """Blocks that have a file, as far as is known."""
        return len(self._files)

    def make_room(self, num_bytes: int) -> int:
        """Removes files until one more fits. Returns how many were removed.

        Args:
            num_bytes: what is about to be written.

        Raises:
            OSError: `ENOSPC` when it does not fit even without them; or the directory cannot be made or read.
        """
        if num_bytes > self.cap:
            raise OSError(errno.ENOSPC, f"{num_bytes} bytes are more than all block files may take ({self.cap})", str(self._root))
        private_dir(self._root)
        if self._looked is None or self._timer() - self._looked >= LOOK_AGAIN_SECONDS or self._num_added > self.cap // LOOK_AGAIN_SHARE:
            self._look()
        removed = self._shrink(self.cap - num_bytes)
        total, free = self._access.disk_space(str(self._root))
        missing = min(total // KEPT_FREE_SHARE, KEPT_FREE_BYTES) + num_bytes - free
        if missing > 0:
            before = self._num_bytes
            removed += self._shrink(before - missing)
            if before - self._num_bytes < missing:
                raise OSError(errno.ENOSPC, "the disk is almost full", str(self._root))
        if self._num_bytes > self.cap - num_bytes:
            raise OSError(errno.ENOSPC, "block files cannot be removed", str(self._root))
        return removed

    def add(self, path: Path, size: int) -> None:
        """Counts a file that was written.

        Args:
            path: the file.
            size: its bytes.
        """
        self._forget(str(path))
        with contextlib.suppress(OSError):  # removed already, by another process
            self._keep(str(path), self._file(self._access.stat(str(path)).st_mtime_ns, size))
        self._num_added += size
        self._shrink(self.cap)  # a file is larger than the block in it

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Looks through all files, and clears away what others have left behind."""
        self._files, self._oldest, self._num_bytes, self._num_added = {}, [], 0, 0
        for directory in model_directories(self._root):
            before = self._num_bytes
            with contextlib.suppress(OSError):  # one that cannot be read must not keep the others from being used
                for entry in block_entries(directory):
                    self._note(entry)
                if self._num_bytes == before:
                    self._clear_away(directory)
        heapq.heapify(self._oldest)
        self._looked = self._timer()

    def _note(self, entry: os.DirEntry[str]) -> None:
        """Counts a file that was found."""
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if not is_unfinished(entry.name):
                file = self._file(status.st_mtime_ns, status.st_size)
                self._files[entry.path] = file
                self._oldest.append((file.order, entry.path))
            elif status.st_mtime_ns < self._clock() - ABANDONED_NS:
                self._access.unlink(entry.path)
                return
            self._num_bytes += status.st_size

    def _clear_away(self, directory: Path) -> None:
        """Removes the directory of a model that has had no blocks for long. Whoever still wants to write into it makes it again."""
        if self._access.stat(str(directory / MANIFEST)).st_mtime_ns < self._clock() - ABANDONED_NS:
            remove_directory(directory)

    def _shrink(self, limit: int) -> int:
        """Removes files, those used longest ago first, until no more than `limit` bytes are left or none can be removed."""
        removed = 0
        while self._num_bytes > limit and self._oldest:
            order, path = heapq.heappop(self._oldest)
            file = self._files.get(path)
            if file is not None and order == file.order:
                removed += self._remove(path, file)
        return removed

    def _remove(self, path: str, file: _File) -> bool:
        """Removes a file unless it was used meanwhile."""
        try:
            used_ns = self._access.stat(path).st_mtime_ns
            if used_ns != file.used_ns:
                self._forget(path)
                self._keep(path, self._file(used_ns, file.size))
                return False
            self._access.unlink(path)
        except FileNotFoundError:
            self._forget(path)
            return False
        except OSError:  # it stays, and is counted
            return False
        self._forget(path)
        remove_empty(os.path.dirname(path))
        return True

    def _keep(self, path: str, file: _File) -> None:
        self._files[path] = file
        self._num_bytes += file.size
        heapq.heappush(self._oldest, (file.order, path))

    def _forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            self._num_bytes -= file.size

    def _file(self, used_ns: int, size: int) -> _File:
        # A time that is still to come is a clock that was wrong: such a file must not outlive all others.
        return _File(used_ns, size, used_ns if used_ns < self._clock() + ABANDONED_NS else 0)
