"""Block files on a disk that does what disks do."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from chatpaged.engine.file_access import FileAccess


class Killed(BaseException):
    """The process ends here, as far as a test can have it."""


@dataclass
class FaultyAccess(FileAccess):
    """Fails where it is told to.

    Attributes:
        most: bytes that one call reads or writes.
        errors: numbers of errors, by the name of the method that fails with it.
        kills: methods in which the process ends.
        space: what is said of the disk; the truth where None.
        calls: names of the methods that were called.
    """

    most: int = 1 << 30
    errors: dict[str, int] = field(default_factory=dict)
    kills: set[str] = field(default_factory=set)
    space: tuple[int, int] | None = None
    calls: list[str] = field(default_factory=list)

    def open(self, path: str, flags: int) -> int:
        self._call("open")
        return super().open(path, flags)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._call("close")

    def read(self, descriptor: int, buffer: memoryview) -> int:
        self._call("read")
        return super().read(descriptor, buffer[: self.most])

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data[: self.most]) if self.most else 0
        self._call("write")
        return written

    def stat(self, target: str | int) -> os.stat_result:
        self._call("stat")
        return super().stat(target)

    def set_time(self, target: str | int, time_ns: int) -> None:
        self._call("set_time")
        super().set_time(target, time_ns)

    def replace(self, source: str, target: str) -> None:
        self._call("replace")
        super().replace(source, target)

    def unlink(self, path: str) -> None:
        self._call("unlink")
        super().unlink(path)

    def disk_space(self, path: str) -> tuple[int, int]:
        return self.space or super().disk_space(path)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.kills:
            raise Killed
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]))


FULL = errno.ENOSPC
BROKEN = errno.EIO
