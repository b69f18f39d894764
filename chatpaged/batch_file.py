"""The file a batch writes: each line in one piece at its end, so that whatever ends the process, at most the last line is torn."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from chatpaged.batch_output import read_line
from chatpaged.errors import InvalidRequestError


class FinishedRows:
    """The rows an output has already, by their lines in the input: one bit each.

    Attributes:
        ok: how many were answered.
        failed: how many were not.
    """

    def __init__(self) -> None:
        self._bits = bytearray()
        self.ok = 0
        self.failed = 0

    def add(self, number: int, *, ok: bool) -> None:
        """Notes a row.

        Raises:
            ValueError: it is there already.
        """
        if number in self:
            raise ValueError(f"line {number} of the input has an answer before it")
        byte, bit = divmod(number, 8)
        self._bits.extend(bytes(max(0, byte + 1 - len(self._bits))))
        self._bits[byte] |= 1 << bit
        if ok:
            self.ok += 1
        else:
            self.failed += 1

    def __contains__(self, number: int) -> bool:
        byte, bit = divmod(number, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)


class OutputFile:
    """An output that nobody else writes while it is open."""

    def __init__(self, path: Path, *, resume: bool = False, overwrite: bool = False) -> None:
        """Opens it, and makes it if it is not there.

        Args:
            path: where it is. What is no regular file, such as a device or a named pipe, is written to as it is.
            resume: add to what is there.
            overwrite: drop what is there.

        Raises:
            InvalidRequestError: there is something in it and neither was said, it cannot be opened, or another batch writes it.
        """
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise InvalidRequestError(f"cannot write {path}: {error.strerror}") from error
        try:
            status = os.fstat(self._descriptor)
            self.is_regular = stat.S_ISREG(status.st_mode)
            if self.is_regular:
                self._claim(status)
                # Looked at only now: before, another batch may have been writing it.
                self._decide(resume=resume, overwrite=overwrite)
        except BaseException:
            self.close()
            raise

    def _claim(self, status: os.stat_result) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(status, self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        except OSError:
            return  # a file system without locks
        if not is_ours:
            raise InvalidRequestError(f"another batch writes {self.path} at this moment")

    def _decide(self, *, resume: bool, overwrite: bool) -> None:
        if overwrite:
            os.ftruncate(self._descriptor, 0)
        if not self.is_empty and not resume:
            raise InvalidRequestError(f"{self.path} exists; --resume goes on with it, --overwrite starts anew")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return os.fstat(self._descriptor).st_size == 0

    def write(self, line: bytes) -> None:
        """Adds a line."""
        while line:
            line = line[os.write(self._descriptor, line) :]

    def finished(self, *, without_failed: bool = False) -> FinishedRows:
        """Finds out what is in it already; a last line that is torn is cut off.

        Args:
            without_failed: take out the rows that have failed, so that they can be run again.

        Raises:
            InvalidRequestError: a line is not a batch's output.
        """
        found = FinishedRows()
        any_failed = False
        length = 0
        for i, line in enumerate(self._whole_lines(), 1):
            length += len(line)
            try:
                number, ok = read_line(line)
                any_failed |= not ok
                if ok or not without_failed:
                    found.add(number, ok=ok)
            except ValueError as error:
                raise InvalidRequestError(f"cannot resume {self.path}: line {i} of it is no output of a batch ({error})") from error
        os.ftruncate(self._descriptor, length)
        if without_failed and any_failed:
            self._drop_failed()
        return found

    def _whole_lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))

    def _drop_failed(self) -> None:
        """Puts a file without the failed rows in the place of this one."""
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.writelines(line for line in self._whole_lines() if read_line(line)[1])
                file.flush()
                os.fsync(descriptor)
            os.fchmod(descriptor, stat.S_IMODE(os.fstat(self._descriptor).st_mode))
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
            Path(name).replace(self.path)
        except BaseException:
            os.close(descriptor)
            Path(name).unlink(missing_ok=True)
            raise
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Closes it; another batch may write it from now on."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
