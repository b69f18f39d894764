"""KV blocks in files, one for each: the tier that is left when the process has ended.

```text
header    magic, version, fingerprint, key, parent's key, index, number of token ids, bytes of keys and values, checksum
token ids int64 each
payload   keys and values
```

Nothing beside a file has to be consistent with it: it comes into being as a whole, by renaming, and what it holds is told by itself and
compared when it is read. The checksum is over everything else in it, so that a file that a power cut has torn is found too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from chatpaged.engine.block_directories import FORMAT, UNFINISHED, Manifest, block_path, open_directory, remove_whatever
from chatpaged.engine.block_pool import BlockPrefix
from chatpaged.engine.file_access import FileAccess
from chatpaged.paths import private_dir

__all__ = ["BlockContents", "BlockFileError", "BlockFileMissingError", "BlockFiles", "FileAccess", "read_block_file"]

STEP_NS = 10_000_000
"""How much older a block seems than the one before it. Blocks of a sequence are written one after the other, yet the first must go last."""
MAX_KEY_BYTES = 32
_MAGIC = b"KVblock\n"
_HEADER = struct.Struct(f"<8sI{3 * f'{MAX_KEY_BYTES + 1}p'}QIQ")
_CHECKSUM = struct.Struct("<I")
_HEAD_BYTES = _HEADER.size + _CHECKSUM.size
_MOST_IDS = 1 << 20
_TRIES = 4

Buffer = bytes | bytearray | memoryview


class BlockFileError(Exception):
    """A block's file is missing, damaged, cannot be read, or holds something else. The message says which."""


class BlockFileMissingError(BlockFileError):
    """There is no file: nothing is wrong, it was removed or never written."""


@dataclass(frozen=True, slots=True)
class BlockContents:
    """What an undamaged file holds.

    Attributes:
        head: header and token ids as they stand in the file, without the checksum.
        fingerprint: of the model.
        key: of the block.
        payload: keys and values.
    """

    head: bytes
    fingerprint: bytes
    key: bytes
    payload: bytearray


class BlockFiles:
    """The files of the blocks of one model. Every method may be called by any thread, and by any number of processes at once.

    Attributes:
        block_bytes: bytes of keys and values in a block.
    """

    def __init__(
        self,
        root: Path,
        *,
        fingerprint: bytes,
        block_bytes: int,
        facts: Mapping[str, str],
        access: FileAccess | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Makes the model's directory, or takes the one that is there.

        Args:
            root: of the files of all models.
            fingerprint: of all that decides the contents of blocks besides tokens; 1 to 32 bytes.
            block_bytes: bytes of keys and values in a block.
            facts: what people are told about the model; its name is called `model`.
            access: how files are reached.
            clock: nanoseconds since 1970.

        Raises:
            OSError: there can be no such directory.
        """
        if not 0 < len(fingerprint) <= MAX_KEY_BYTES:
            raise ValueError(f"a fingerprint has 1 to {MAX_KEY_BYTES} bytes, not {len(fingerprint)}")
        self.block_bytes = block_bytes
        self._root = root
        self._manifest = Manifest(fingerprint, block_bytes, dict(facts))
        self._access = access or FileAccess()
        self._clock = clock
        self._directory = str(open_directory(root, self._manifest))

    def path(self, prefix_key: bytes) -> Path:
        """Where the file of a block lies, or would."""
        return Path(block_path(self._directory, prefix_key))

    def has(self, prefix_key: bytes) -> bool:
        """Whether there is a file; it may be damaged, or gone when it is read."""
        return self._access.exists(block_path(self._directory, prefix_key))

    def read(self, prefix: BlockPrefix) -> bytearray:
        """Keys and values of a block, checked. A file that does not hold them is removed.

        Raises:
            BlockFileMissingError: there is no such file.
            BlockFileError: it cannot be read, is damaged, or holds another block.
        """
        path = block_path(self._directory, prefix.key)
        contents = read_block_file(path, self.block_bytes, self._access)
        head = self._head(prefix)
        if contents.head != head:
            _reject(self._access, path, _difference(contents.head, head))
        return contents.payload

    def write(self, prefix: BlockPrefix, data: Buffer) -> int:
        """Writes a block as a whole or not at all. Returns the size of its file in bytes.

        Raises:
            OSError: no room, no right to write, a disk that fails. Nothing is left behind.
            ValueError: the block must not reach a disk, or is not `block_bytes` long.
        """
        payload = memoryview(data).cast("B")
        if prefix.is_private:
            raise ValueError("a private block must not reach a disk")
        if payload.nbytes != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {payload.nbytes}")
        head = self._head(prefix)
        checksum = _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head)))
        parts = (memoryview(head[: _HEADER.size] + checksum + head[_HEADER.size :]), payload)
        path = self.path(prefix.key)
        for _ in range(_TRIES - 1):
            try:
                self._save(path, parts, prefix.index)
                break
            except FileNotFoundError:  # a first block, or an empty directory that somebody has removed
                pass
            except IsADirectoryError:
                remove_whatever(path)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed while it is made
                open_directory(self._root, self._manifest)
                private_dir(path.parent)
        else:
            self._save(path, parts, prefix.index)
        return sum(part.nbytes for part in parts)

    def touch(self, prefixes: Iterable[BlockPrefix]) -> None:
        """Notes that blocks were used now: those used longest ago are removed first, and of a sequence the last."""
        now = self._clock()
        for prefix in prefixes:
            with contextlib.suppress(OSError):  # gone, or somebody else's
                self._access.set_time(block_path(self._directory, prefix.key), now - prefix.index * STEP_NS)

    def remove(self, prefix_key: bytes) -> None:
        """Removes a block's file, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            self._access.unlink(block_path(self._directory, prefix_key))

    def _head(self, prefix: BlockPrefix) -> bytes:
        ids = prefix.token_ids
        keys = (self._manifest.fingerprint, prefix.key, prefix.parent_key)
        if max(map(len, keys)) > MAX_KEY_BYTES:
            raise ValueError(f"a key has {MAX_KEY_BYTES} bytes at most")
        return _HEADER.pack(_MAGIC, FORMAT, *keys, prefix.index, len(ids), self.block_bytes) + struct.pack(f"<{len(ids)}q", *ids)

    def _save(self, path: Path, parts: Iterable[memoryview], index: int) -> None:
        unfinished = str(path.with_name(f"{UNFINISHED}{secrets.token_hex(12)}"))
        descriptor = self._access.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                for part in parts:
                    _write_all(self._access, descriptor, part)
                self._access.set_time(descriptor, self._clock() - index * STEP_NS)
            finally:
                self._access.close(descriptor)
            self._access.replace(unfinished, str(path))
        except BaseException:
            with contextlib.suppress(OSError):
                self._access.unlink(unfinished)
            raise


def read_block_file(path: str, block_bytes: int | None, access: FileAccess) -> BlockContents:
    """What a file holds, if it is whole. One that is not is removed.

    Args:
        path: the file.
        block_bytes: bytes of keys and values in it; None for what the file says.
        access: how it is reached.

    Raises:
        BlockFileMissingError: there is no such file.
        BlockFileError: it cannot be read, or is damaged.
    """
    try:
        # A pipe must not wait for somebody who writes.
        descriptor = access.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BlockFileMissingError(f"{path}: there is no such file") from None
    except OSError as error:
        raise BlockFileError(f"{path}: {error.strerror}") from error
    try:
        return _read(path, descriptor, block_bytes, access)
    except OSError as error:
        if error.errno == errno.EIO:  # it will not be read another time either
            _reject(access, path, "the disk cannot read it")
        raise BlockFileError(f"{path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            access.close(descriptor)


def _read(path: str, descriptor: int, block_bytes: int | None, access: FileAccess) -> BlockContents:
    status = access.stat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        _reject(access, path, "no file")
    header = bytearray(_HEAD_BYTES)
    if not _fill(access, descriptor, header):
        _reject(access, path, "cut short")
    magic, version, fingerprint, key, _, _, num_ids, num_bytes = _HEADER.unpack_from(header)
    if (magic, version) != (_MAGIC, FORMAT):
        _reject(access, path, "no block of this version")
    is_expected = num_bytes == block_bytes or block_bytes is None
    if not is_expected or num_ids > _MOST_IDS or status.st_size != _HEAD_BYTES + 8 * num_ids + num_bytes:
        _reject(access, path, "damaged: its size is wrong")
    ids, payload = bytearray(8 * num_ids), bytearray(num_bytes)
    if not (_fill(access, descriptor, ids) and _fill(access, descriptor, payload)):
        _reject(access, path, "cut short")
    head = bytes(header[: _HEADER.size] + ids)
    if _CHECKSUM.unpack_from(header, _HEADER.size)[0] != zlib.crc32(payload, zlib.crc32(head)):
        _reject(access, path, "damaged: its checksum is wrong")
    return BlockContents(head, fingerprint, key, payload)


def _fill(access: FileAccess, descriptor: int, buffer: bytearray) -> bool:
    """Reads until a buffer is full. False if the file ends before."""
    rest = memoryview(buffer)
    while rest:
        count = access.read(descriptor, rest)
        if count == 0:
            return False
        rest = rest[count:]
    return True


def _difference(found: bytes, expected: bytes) -> str:
    """Which part of what a file holds is another than was expected."""
    names = ("magic", "version", "fingerprint", "key", "parent", "index", "number of tokens", "size")
    parts = zip(names, _HEADER.unpack_from(found), _HEADER.unpack_from(expected), strict=True)
    return f"of another {next((name for name, there, wanted in parts if there != wanted), 'text')}"


def _reject(access: FileAccess, path: str, reason: str) -> NoReturn:
    with contextlib.suppress(OSError):
        access.unlink(path)
    raise BlockFileError(f"{path}: {reason}")


def _write_all(access: FileAccess, descriptor: int, data: memoryview) -> None:
    while data:
        written = access.write(descriptor, data)
        if written == 0:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]
