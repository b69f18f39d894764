from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatpaged.engine import block_directories, block_files
from chatpaged.engine.block_directories import ManifestError, block_entries, model_directories, read_manifest, remove_blocks
from chatpaged.engine.block_files import MAX_KEY_BYTES, STEP_NS, BlockFileError, BlockFileMissingError, BlockFiles, read_block_file
from chatpaged.engine.block_pool import chain, root_key
from chatpaged.engine.file_access import FileAccess
from chatpaged.paths import private_dir
from tests.engine.faulty_access import BROKEN, FULL, FaultyAccess, Killed

BLOCK_BYTES = 96
FINGERPRINT = bytes(range(16))
ROOT_KEY = root_key(b"test")
PREFIX = chain(ROOT_KEY, (5, 0, 2**40, -1), 3)
DATA = bytes(range(7, 7 + BLOCK_BYTES))
FACTS = {"model": "tiny", "weights": "int4"}


def open_files(
    root: Path, access: FileAccess | None = None, *, fingerprint: bytes = FINGERPRINT, block_bytes: int = BLOCK_BYTES
) -> BlockFiles:
    return BlockFiles(root, fingerprint=fingerprint, block_bytes=block_bytes, facts=FACTS, access=access)


def everything(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != "manifest.json")


# --- the way there and back ----------------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    assert not files.has(PREFIX.key)
    size = files.write(PREFIX, DATA)
    assert files.has(PREFIX.key)
    assert files.read(PREFIX) == DATA
    assert isinstance(files.read(PREFIX), bytearray)
    assert files.path(PREFIX.key) == tmp_path / FINGERPRINT.hex() / PREFIX.key.hex()[:2] / f"{PREFIX.key.hex()}.kv"
    assert files.path(PREFIX.key).stat().st_size == size
    assert everything(tmp_path) == [files.path(PREFIX.key)]


def test_another_process_finds_it(tmp_path: Path) -> None:
    open_files(tmp_path).write(PREFIX, DATA)
    assert open_files(tmp_path).read(PREFIX) == DATA


@pytest.mark.parametrize("data", [bytearray(DATA), memoryview(DATA), memoryview(DATA).cast("d"), memoryview(DATA).cast("B", (4, 24))])
def test_any_buffer_is_written(tmp_path: Path, data: bytearray | memoryview) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, data)
    assert files.read(PREFIX) == DATA


def test_a_block_is_written_anew(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    for data in (bytes(BLOCK_BYTES), DATA):
        files.write(PREFIX, data)
    assert files.read(PREFIX) == DATA
    files.remove(PREFIX.key)
    files.remove(PREFIX.key)
    assert not files.has(PREFIX.key)
    assert everything(tmp_path) == []


def test_what_must_not_be_written_is_refused(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    with pytest.raises(ValueError, match="private"):
        files.write(replace(PREFIX, is_private=True), DATA)
    with pytest.raises(ValueError, match="96 bytes, not 95"):
        files.write(PREFIX, DATA[1:])
    with pytest.raises(ValueError, match="32 bytes at most"):
        files.write(replace(PREFIX, parent_key=bytes(MAX_KEY_BYTES + 1)), DATA)
    for fingerprint in (b"", bytes(MAX_KEY_BYTES + 1)):
        with pytest.raises(ValueError, match="1 to 32 bytes"):
            open_files(tmp_path, fingerprint=fingerprint)
    assert everything(tmp_path) == []


def test_only_the_owner_can_look_into_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files = open_files(tmp_path / "cache" / "blocks")
        files.write(PREFIX, DATA)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*"))}
    assert len(modes) == 6
    assert {path: mode for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_the_beginning_of_a_sequence_seems_to_be_used_after_its_end(tmp_path: Path) -> None:
    now = 10**18
    files = BlockFiles(tmp_path, fingerprint=FINGERPRINT, block_bytes=BLOCK_BYTES, facts=FACTS, clock=lambda: now)
    first, second = chain(ROOT_KEY, (1,), 0), chain(ROOT_KEY, (2,), 1)
    files.write(first, DATA)
    now += STEP_NS // 2  # it takes a moment
    files.write(second, DATA)
    assert [files.path(prefix.key).stat().st_mtime_ns - 10**18 for prefix in (first, second)] == [0, -STEP_NS // 2]
    now += 10**9
    files.touch([first, PREFIX, second])  # one that is not there is passed over
    assert [files.path(prefix.key).stat().st_mtime_ns - now for prefix in (first, second)] == [0, -STEP_NS]


# --- files that cannot be used -------------------------------------------------------------------------------------------


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BlockFileMissingError, match="no such file"):
        open_files(tmp_path).read(PREFIX)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[BlockFiles, bytes]:
    files = open_files(tmp_path_factory.mktemp("flipped"))
    files.write(PREFIX, DATA)
    return files, files.path(PREFIX.key).read_bytes()


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flip_is_found_and_the_file_removed(flipped: tuple[BlockFiles, bytes], data: st.DataObject) -> None:
    files, whole = flipped
    place, flip = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    path = files.path(PREFIX.key)
    path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
    with pytest.raises(BlockFileError, match=path.name):
        files.read(PREFIX)
    assert not path.exists()


def test_every_single_bit_is_covered(flipped: tuple[BlockFiles, bytes]) -> None:
    files, whole = flipped
    path = files.path(PREFIX.key)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        with pytest.raises(BlockFileError):
            read_block_file(str(path), BLOCK_BYTES, FileAccess())


def test_any_other_length_is_found(flipped: tuple[BlockFiles, bytes]) -> None:
    files, whole = flipped
    path = files.path(PREFIX.key)
    for wrong in [whole[:length] for length in range(len(whole))] + [whole + bytes(more) for more in (1, 8, 1000)]:
        path.write_bytes(wrong)
        with pytest.raises(BlockFileError, match=r"cut short|size is wrong"):
            files.read(PREFIX)
        assert not path.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token_ids": (5, 0, 2**40, 0)}, "another text"),
        ({"token_ids": (5, 0, 2**40)}, "another number of tokens"),
        ({"parent_key": root_key(b"other")}, "another parent"),
        ({"index": 4}, "another index"),
    ],
)
def test_a_file_of_another_block(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    with pytest.raises(BlockFileError, match=reason):
        files.read(replace(PREFIX, **change))  # type: ignore[arg-type]
    assert not files.has(PREFIX.key)


def test_a_file_under_a_wrong_name(tmp_path: Path) -> None:
    files, others = open_files(tmp_path), open_files(tmp_path, fingerprint=bytes(16))
    other = chain(PREFIX.key, (1,))
    files.write(PREFIX, DATA)
    others.write(other, DATA)
    files.path(PREFIX.key).rename(files.path(other.key).parent.parent / "x")
    files.path(other.key).parent.mkdir(exist_ok=True)
    (files.path(other.key).parent.parent / "x").rename(files.path(other.key))
    with pytest.raises(BlockFileError, match="another key"):
        files.read(other)
    others.path(other.key).rename(files.path(other.key))
    with pytest.raises(BlockFileError, match="another fingerprint"):
        files.read(other)


def test_files_of_other_formats_and_sizes(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    with pytest.raises(BlockFileError, match="size is wrong"):
        read_block_file(str(files.path(PREFIX.key)), BLOCK_BYTES + 8, FileAccess())
    files.write(PREFIX, DATA)
    assert read_block_file(str(files.path(PREFIX.key)), None, FileAccess()).payload == DATA
    files.path(PREFIX.key).write_bytes(b"x" * 400)
    with pytest.raises(BlockFileError, match="no block of this version"):
        files.read(PREFIX)


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    files = open_files(tmp_path)
    path = files.path(PREFIX.key)
    files.write(PREFIX, DATA)
    if kind == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(BlockFileError, match=path.name):
        files.read(PREFIX)
    files.write(PREFIX, DATA)
    assert files.read(PREFIX) == DATA
    assert everything(tmp_path / FINGERPRINT.hex()) == [path]


# --- disks that fail -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 7, 100])
def test_reads_and_writes_in_pieces(tmp_path: Path, most: int) -> None:
    files = open_files(tmp_path, FaultyAccess(most=most))
    files.write(PREFIX, DATA)
    assert files.read(PREFIX) == DATA
    assert open_files(tmp_path).read(PREFIX) == DATA


@pytest.mark.parametrize("method", ["open", "write", "set_time", "close", "replace"])
@pytest.mark.parametrize("number", [FULL, BROKEN, errno.EDQUOT, errno.EMFILE])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, method: str, number: int) -> None:
    access = FaultyAccess()
    files = open_files(tmp_path, access)
    files.write(PREFIX, DATA)
    access.errors[method] = number
    with pytest.raises(OSError, match=os.strerror(number)):
        files.write(PREFIX, bytes(BLOCK_BYTES))
    access.errors.clear()
    assert files.read(PREFIX) == DATA, "the old one stays"
    assert everything(tmp_path) == [files.path(PREFIX.key)]


def test_a_write_that_fails_where_nothing_can_be_removed(tmp_path: Path) -> None:
    files = open_files(tmp_path, FaultyAccess(errors={"write": FULL, "unlink": errno.EROFS}))
    with pytest.raises(OSError, match=os.strerror(FULL)):
        files.write(PREFIX, DATA)


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing was written"):
        open_files(tmp_path, FaultyAccess(most=0)).write(PREFIX, DATA)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("method", "number", "stays"), [("read", BROKEN, False), ("read", errno.ENOMEM, True), ("open", errno.EMFILE, True)]
)
def test_a_read_that_fails(tmp_path: Path, method: str, number: int, stays: bool) -> None:
    files = open_files(tmp_path, FaultyAccess(errors={method: number}))
    open_files(tmp_path).write(PREFIX, DATA)
    with pytest.raises(BlockFileError, match="cannot read it" if not stays else os.strerror(number)):
        files.read(PREFIX)
    assert files.has(PREFIX.key) == stays


def test_a_descriptor_that_fails_to_close_after_reading(tmp_path: Path) -> None:
    open_files(tmp_path).write(PREFIX, DATA)
    assert open_files(tmp_path, FaultyAccess(errors={"close": BROKEN})).read(PREFIX) == DATA


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    class Shrinking(FaultyAccess):
        def read(self, descriptor: int, buffer: memoryview) -> int:
            return super().read(descriptor, buffer) if len(self.calls) < 4 else 0

    open_files(tmp_path).write(PREFIX, DATA)
    with pytest.raises(BlockFileError, match="cut short"):
        open_files(tmp_path, Shrinking()).read(PREFIX)


@pytest.mark.parametrize("method", ["write", "set_time", "replace"])
def test_a_writer_that_is_stopped(tmp_path: Path, method: str) -> None:
    files = open_files(tmp_path, FaultyAccess(kills={method}))
    with pytest.raises(Killed):
        files.write(PREFIX, DATA)
    assert everything(tmp_path) == []
    assert not files.has(PREFIX.key)


DYING = """
import os, sys
from pathlib import Path
from chatpaged.engine.file_access import FileAccess
from tests.engine.test_block_files import DATA, PREFIX, open_files

class Dying(FileAccess):
    def replace(self, source, target):
        os._exit(9)

open_files(Path(sys.argv[1]), Dying()).write(PREFIX, DATA)
"""


def test_a_writer_that_dies_between_writing_and_renaming(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 9
    files = open_files(tmp_path)
    assert not files.has(PREFIX.key)
    (left,) = everything(tmp_path)
    assert left.name.startswith("unfinished-")
    files.write(PREFIX, DATA)
    assert files.read(PREFIX) == DATA


def test_directories_that_vanish_are_made_again(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    remove_blocks(tmp_path / FINGERPRINT.hex())
    assert list(tmp_path.iterdir()) == []
    files.write(PREFIX, DATA)
    assert files.read(PREFIX) == DATA
    assert read_manifest(tmp_path / FINGERPRINT.hex()).facts == FACTS


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    directory = tmp_path / FINGERPRINT.hex()

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert remove_blocks(directory) == [files.path(PREFIX.key), directory / "manifest.json"]
    with monkeypatch.context() as patch:
        patch.setattr(block_directories, "block_entries", refuse)
        assert remove_blocks(directory) == [directory]
    assert remove_blocks(directory) == []


def test_a_directory_that_vanishes_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vanished: list[Path] = []

    def vanishing(path: Path) -> Path:
        if not vanished:
            vanished.append(path)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return private_dir(path)

    files = open_files(tmp_path)
    monkeypatch.setattr(block_files, "private_dir", vanishing)
    files.write(PREFIX, DATA)
    assert vanished
    assert files.read(PREFIX) == DATA


def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.path(PREFIX.key).parent.touch()
    with pytest.raises(NotADirectoryError):
        files.write(PREFIX, DATA)
    with pytest.raises(BlockFileError):
        files.read(PREFIX)


def test_directories_that_vanish_each_time(tmp_path: Path) -> None:
    access = FaultyAccess(errors={"replace": errno.ENOENT})
    with pytest.raises(FileNotFoundError):
        open_files(tmp_path, access).write(PREFIX, DATA)
    assert access.calls.count("replace") == 3, "the first try has not come so far"
    assert everything(tmp_path) == []


# --- the manifest --------------------------------------------------------------------------------------------------------


def test_the_manifest_tells_what_this_is(tmp_path: Path) -> None:
    open_files(tmp_path)
    (directory,) = model_directories(tmp_path)
    assert json.loads((directory / "manifest.json").read_text()) == {
        "format": 1,
        "fingerprint": FINGERPRINT.hex(),
        "block_bytes": BLOCK_BYTES,
        "facts": FACTS,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "\xff",
        "[" * 100_000,
        '{"format": 1}',
        '{"format": 2, "fingerprint": "FP", "block_bytes": 96, "facts": {}}',
        '{"format": 1, "fingerprint": "FP", "block_bytes": "96", "facts": {}}',
        '{"format": 1, "fingerprint": "FP", "block_bytes": 96, "facts": []}',
        '{"format": 1, "fingerprint": 5, "block_bytes": 96, "facts": {}}',
        '{"format": 1, "fingerprint": "xx", "block_bytes": 96, "facts": {}}',
        '{"format": 1, "fingerprint": "00", "block_bytes": 96, "facts": {}}',
        '{"format": 1, "fingerprint": "FP", "block_bytes": 97, "facts": {}}',
    ],
)
def test_blocks_beside_a_manifest_that_is_wrong_are_removed(tmp_path: Path, text: str) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    directory = tmp_path / FINGERPRINT.hex()
    (directory / "foreign.txt").touch()
    (directory / "manifest.json").write_text(text.replace("FP", FINGERPRINT.hex()), encoding="latin-1")
    assert not open_files(tmp_path).has(PREFIX.key)
    assert sorted(path.name for path in directory.iterdir()) == ["foreign.txt", "manifest.json"]
    assert read_manifest(directory).block_bytes == BLOCK_BYTES


def test_blocks_beside_a_manifest_that_is_missing_or_tells_other_facts_stay(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    manifest = tmp_path / FINGERPRINT.hex() / "manifest.json"
    manifest.unlink()
    assert open_files(tmp_path).read(PREFIX) == DATA
    manifest.write_text(manifest.read_text().replace("tiny", "large"))
    assert open_files(tmp_path).read(PREFIX) == DATA
    assert read_manifest(manifest.parent).facts == FACTS


def test_a_manifest_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / FINGERPRINT.hex()).mkdir()
    os.mkfifo(tmp_path / FINGERPRINT.hex() / "manifest.json")
    with pytest.raises(ManifestError, match="no file"):
        read_manifest(tmp_path / FINGERPRINT.hex())
    open_files(tmp_path).write(PREFIX, DATA)
    assert read_manifest(tmp_path / FINGERPRINT.hex()).facts == FACTS


def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        open_files(tmp_path / "file")


def test_what_is_not_ours_is_not_seen(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(PREFIX, DATA)
    directory = tmp_path / FINGERPRINT.hex()
    for name in ("x", "0", "g0", "00" * 33, "file"):
        (tmp_path / name).mkdir()
        (directory / name).mkdir()
    (tmp_path / "00").touch()
    (tmp_path / "01").symlink_to(directory)
    (directory / "02").symlink_to(files.path(PREFIX.key).parent)
    (files.path(PREFIX.key).parent / "foreign").touch()
    assert model_directories(tmp_path) == [directory]
    assert [entry.path for entry in block_entries(directory)] == [str(files.path(PREFIX.key))]
    assert model_directories(tmp_path / "nowhere") == []
    remove_blocks(directory)
    assert (files.path(PREFIX.key).parent / "foreign").exists()
