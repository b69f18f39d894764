"""The few calls of the system by which block files are read and written, in one place, so that tests can let them fail."""

from __future__ import annotations

import os
import shutil


class FileAccess:
    """Really does it. Descriptors are those of the system; every method raises OSError."""

    def open(self, path: str, flags: int) -> int:
        """Opens a file; a new one belongs to its owner only. Links are not followed."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, descriptor: int) -> None:
        """Closes it."""
        os.close(descriptor)

    def read(self, descriptor: int, buffer: memoryview) -> int:
        """Reads into a buffer. Returns how many bytes, 0 at the end."""
        return os.readv(descriptor, (buffer,))

    def write(self, descriptor: int, data: memoryview) -> int:
        """Writes. Returns how many bytes, which may be fewer than there are."""
        return os.write(descriptor, data)

    def stat(self, target: str | int) -> os.stat_result:
        """What is known of a path or a descriptor."""
        return os.stat(target)

    def exists(self, path: str) -> bool:
        """Whether there is something; no error."""
        return os.access(path, os.F_OK)

    def set_time(self, target: str | int, time_ns: int) -> None:
        """Sets when a file was last used."""
        os.utime(target, ns=(time_ns, time_ns))

    def replace(self, source: str, target: str) -> None:
        """Gives a file its name, in place of whatever had it."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Removes a file."""
        os.unlink(path)

    def disk_space(self, path: str) -> tuple[int, int]:
        """Bytes of the disk on which something lies: all, and those that are free for us."""
        usage = shutil.disk_usage(path)
        return usage.total, usage.free
