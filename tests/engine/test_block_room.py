from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine import block_room
from chatpaged.engine.block_directories import block_entries
from chatpaged.engine.block_files import BlockFileMissingError, BlockFiles
from chatpaged.engine.block_pool import BlockPrefix, chain, root_key
from chatpaged.engine.block_room import DiskRoom
from tests.engine.faulty_access import FaultyAccess

BLOCK_BYTES = 4096
SECOND = 10**9
MUCH = (1 << 50, 1 << 49)


class World:
    """Two models, one clock, one disk."""

    def __init__(self, root: Path, cap: int = 1 << 30, space: tuple[int, int] = MUCH) -> None:
        self.root = root
        self.now = 10**18
        self.access = FaultyAccess(space=space)
        self.models = [self.open_files(bytes([number])) for number in (1, 2)]
        self.size = self.models[0].write(chain(b"", (0,)), bytes(BLOCK_BYTES))
        self.models[0].remove(chain(b"", (0,)).key)
        self.room = DiskRoom(root, cap, access=self.access, clock=lambda: self.now, timer=lambda: self.now / SECOND)

    def open_files(self, fingerprint: bytes) -> BlockFiles:
        return BlockFiles(self.root, fingerprint=fingerprint, block_bytes=BLOCK_BYTES, facts={}, clock=lambda: self.now)

    def write(self, number: int, model: int = 0, index: int = 0) -> BlockPrefix:
        """A block of that number, a second after the one before."""
        self.now += SECOND
        prefix = chain(b"", (number,), index)
        self.room.make_room(self.size)
        self.room.add(self.models[model].path(prefix.key), self.models[model].write(prefix, bytes(BLOCK_BYTES)))
        return prefix

    def there(self) -> set[str]:
        return {path.stem for path in self.root.rglob("*.kv")}

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("*.kv"))


def names(*prefixes: BlockPrefix) -> set[str]:
    return {prefix.key.hex() for prefix in prefixes}


def test_there_is_room_while_the_limit_is_not_reached(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = [world.write(number) for number in range(3)]
    assert world.room.make_room(BLOCK_BYTES) == 0
    assert (world.room.num_files, world.room.num_bytes) == (3, world.num_bytes)
    assert world.there() == names(*blocks)


def test_files_used_longest_ago_go_first_whatever_their_model(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = [world.write(number, model=number % 2) for number in range(4)]
    world.now += SECOND
    world.models[0].touch(blocks[:1])
    world.room.cap = 4 * world.size
    assert world.room.make_room(2 * world.size) == 2
    assert world.there() == names(blocks[0], blocks[3])
    assert (world.room.num_files, world.room.num_bytes) == (2, world.num_bytes)


def test_the_beginning_of_a_sequence_outlives_its_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    parent, blocks = b"", []
    for number in range(8):
        blocks.append(chain(parent, (number,), number))
        parent = blocks[-1].key
        world.models[0].write(blocks[-1], bytes(BLOCK_BYTES))
        world.now += SECOND // 1000
    world.room.cap = 5 * world.size
    assert world.room.make_room(0) == 3
    assert world.there() == names(*blocks[:5])


def test_files_written_later_are_taken_in_with_what_was_there_before(tmp_path: Path) -> None:
    world = World(tmp_path, cap=3 * 4263)
    world.write(1, model=0)
    other = DiskRoom(tmp_path, 3 * world.size, access=world.access, clock=lambda: world.now)
    assert other.make_room(2 * world.size) == 0
    assert other.make_room(3 * world.size) == 1
    assert other.num_files == 0


def test_the_limit_holds_though_a_file_is_larger_than_its_block(tmp_path: Path) -> None:
    world = World(tmp_path, cap=3 * BLOCK_BYTES)
    for number in range(5):
        prefix = chain(b"", (number,))
        world.now += SECOND
        world.room.make_room(BLOCK_BYTES)
        world.room.add(world.models[0].path(prefix.key), world.models[0].write(prefix, bytes(BLOCK_BYTES)))
        assert world.num_bytes <= world.room.cap
    assert len(world.there()) == 2


def test_a_block_written_anew_is_counted_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = [world.write(1), world.write(2), world.write(1)]
    assert (world.room.num_files, world.room.num_bytes) == (2, world.num_bytes)
    world.room.cap = 2 * world.size
    world.room.make_room(world.size)
    assert world.there() == names(blocks[2])


def test_a_file_that_was_used_since_is_put_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = [world.write(number) for number in (0, 1, 2, 0)]
    world.now += SECOND
    world.models[0].touch(blocks[1:2])
    world.access.space = (10**9, 5 * 10**7 - world.size)  # and not the limit, below which all is looked through again
    assert world.room.make_room(world.size) == 2
    assert world.there() == names(blocks[1])
    assert (world.room.num_files, world.room.num_bytes) == (1, world.size)


def test_what_is_larger_than_the_limit_finds_no_room(tmp_path: Path) -> None:
    world = World(tmp_path, cap=BLOCK_BYTES)
    with pytest.raises(OSError, match="more than all block files may take") as caught:
        world.room.make_room(BLOCK_BYTES + 1)
    assert caught.value.errno == errno.ENOSPC


@given(st.lists(st.tuples(st.sampled_from(["write", "touch", "remove", "look"]), st.integers(0, 9), st.integers(0, 1)), max_size=60))
@settings(max_examples=40, deadline=None)
def test_the_files_used_last_are_those_that_are_there(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> None:
    world = World(tmp_path_factory.mktemp("room"), cap=5 * 4263)
    used: dict[tuple[int, int], int] = {}
    for action, number, model in steps:
        prefix = chain(bytes([model]), (number,))
        files = world.models[model]
        world.now += SECOND
        if action == "write":
            world.room.make_room(world.size)
            world.room.add(files.path(prefix.key), files.write(prefix, bytes(BLOCK_BYTES)))
            used[number, model] = world.now
        elif action == "touch" and files.has(prefix.key):
            files.touch([prefix])
            used[number, model] = world.now
        elif action == "remove":
            files.remove(prefix.key)
            used.pop((number, model), None)
        elif action == "look":
            world.now += int(block_room.LOOK_AGAIN_SECONDS) * SECOND
        there = {key for key in used if world.models[key[1]].has(chain(bytes([key[1]]), (key[0],)).key)}
        # Nothing that is there is older than something that had to go.
        gone = set(used) - there
        assert not gone or not there or max(used[key] for key in gone) <= min(used[key] for key in there)
        for key in gone:
            del used[key]
        assert world.num_bytes <= world.room.cap


# --- other processes -----------------------------------------------------------------------------------------------------


def test_files_of_others_are_found_after_a_while(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(1)
    world.models[1].write(chain(b"", (2,)), bytes(BLOCK_BYTES))
    world.room.make_room(1)
    assert world.room.num_files == 1
    world.now += int(block_room.LOOK_AGAIN_SECONDS) * SECOND
    world.room.make_room(1)
    assert world.room.num_files == 2


def test_files_of_others_are_found_after_some_were_written(tmp_path: Path) -> None:
    world = World(tmp_path, cap=40 * 4263)
    for number in range(4):
        world.write(number)
    world.models[1].write(chain(b"", (9,)), bytes(BLOCK_BYTES))
    for number in (4, 5):
        world.write(number)
        assert world.room.num_files == number + 1
    world.write(6)
    assert world.room.num_files == 8


def test_files_that_others_have_removed_are_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = [world.write(number) for number in range(3)]
    world.models[0].remove(blocks[0].key)
    world.room.cap = 2 * world.size
    assert world.room.make_room(world.size) == 1
    assert world.there() == names(blocks[2])
    assert world.room.num_files == 1
    world.room.add(world.models[0].path(b"gone"), world.size)
    assert world.room.num_files == 1


def test_files_that_vanish_between_two_looks(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(1)
    world.access.errors["unlink"] = errno.ENOENT
    world.room.cap = world.size
    assert world.room.make_room(world.size) == 0
    assert world.room.num_files == 0


def test_files_that_vanish_while_they_are_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    kept, gone = world.write(1), world.write(2)
    found = list(block_entries(tmp_path / "01"))
    world.models[0].remove(gone.key)
    monkeypatch.setattr(block_room, "block_entries", lambda _: iter(found))
    world.now += int(block_room.LOOK_AGAIN_SECONDS) * SECOND
    world.room.make_room(1)
    assert list(world.room._files) == [str(world.models[0].path(kept.key))]


def test_files_that_cannot_be_removed_stay_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(1)
    world.access.errors["unlink"] = errno.EACCES
    world.room.cap = world.size
    with pytest.raises(OSError, match="cannot be removed") as caught:
        world.room.make_room(world.size)
    assert caught.value.errno == errno.ENOSPC
    assert world.room.num_files == 1


def test_models_that_cannot_be_read_do_not_keep_others_from_being_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.write(1, model=0)
    world.write(2, model=1)

    def partly(directory: Path) -> object:
        if directory.name == "01":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        return block_entries(directory)

    monkeypatch.setattr(block_room, "block_entries", partly)
    world.now += int(block_room.LOOK_AGAIN_SECONDS) * SECOND
    world.room.make_room(1)
    assert world.room.num_files == 1


def test_what_writers_that_died_have_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    world = World(tmp_path)
    kept = world.write(1)
    left = world.models[0].path(kept.key).with_name("unfinished-0123")
    left.write_bytes(b"half")
    os.utime(left, ns=(world.now, world.now))
    for hours in (0.5, 0.4):
        world.now += int(hours * 3600) * SECOND
        world.room.make_room(1)
        assert (world.room.num_files, world.room.num_bytes) == (1, world.size + 4)
    world.now += 600 * SECOND
    world.room.make_room(1)
    assert not left.exists()
    assert (world.room.num_files, world.room.num_bytes) == (1, world.size)


def test_directories_of_models_without_blocks_go_after_an_hour(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in (1, 2):
        os.utime(tmp_path / f"0{number}/manifest.json", ns=(world.now, world.now))
    world.write(1, model=1)
    world.room.make_room(1)
    assert {path.name for path in tmp_path.iterdir()} == {"01", "02"}
    world.now += 3700 * SECOND
    world.room.make_room(1)
    assert {path.name for path in tmp_path.iterdir()} == {"02"}
    world.write(2, model=0)
    assert {path.name for path in tmp_path.iterdir()} == {"01", "02"}


def test_empty_directories_are_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    prefix = world.write(1)
    world.room.cap = world.size
    world.room.make_room(world.size)
    assert not world.models[0].path(prefix.key).parent.exists()


def test_the_root_is_made_again(tmp_path: Path) -> None:
    room = DiskRoom(tmp_path / "blocks", 1 << 20)
    assert room.make_room(1) == 0
    (tmp_path / "blocks").rmdir()
    assert room.make_room(1) == 0
    (tmp_path / "blocks").rmdir()
    (tmp_path / "blocks").touch()
    with pytest.raises(NotADirectoryError):
        room.make_room(1)


def test_a_file_from_the_future_does_not_outlive_all_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.now += 10 * 365 * 86400 * SECOND
    wrong = world.write(1)
    world.now -= 10 * 365 * 86400 * SECOND
    blocks = [world.write(number) for number in (2, 3)]
    room = DiskRoom(tmp_path, 3 * world.size, access=world.access, clock=lambda: world.now)
    assert room.make_room(world.size) == 1
    assert world.there() == names(*blocks)
    assert wrong not in blocks


# --- the disk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "kept"), [(10**9, 5 * 10**7), (10**12, 2**30)])
def test_the_disk_is_not_filled_to_its_end(tmp_path: Path, total: int, kept: int) -> None:
    world = World(tmp_path)
    blocks = [world.write(number) for number in range(3)]
    world.access.space = (total, kept + world.size)
    assert world.room.make_room(world.size) == 0
    world.access.space = (total, kept + world.size - 1)
    assert world.room.make_room(world.size) == 1
    assert world.there() == names(*blocks[1:])
    world.access.space = (total, kept - 2 * world.size)
    with pytest.raises(OSError, match="almost full") as caught:
        world.room.make_room(world.size)
    assert caught.value.errno == errno.ENOSPC
    assert world.there() == set()


def test_the_real_disk_is_asked(tmp_path: Path) -> None:
    total, free = FaultyAccess().disk_space(str(tmp_path))
    assert 0 <= free <= total


def test_room_is_made_quickly(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(200):
        world.write(number)
    before = len(world.access.calls)
    for _ in range(1000):
        world.room.make_room(1)
    assert len(world.access.calls) == before


# --- two processes at once -----------------------------------------------------------------------------------------------

NUM_BLOCKS = 60
SECONDS = 2.0


def payload_of(prefix: BlockPrefix) -> bytes:
    return random.Random(prefix.key).randbytes(BLOCK_BYTES)


def work(root: Path, seed: int, seconds: float) -> int:
    """Writes, reads, uses and removes blocks in a directory where others do the same. Returns how many were read and right."""
    draws = random.Random(seed)
    cap = 20 * (BLOCK_BYTES + 300)
    files = [BlockFiles(root, fingerprint=bytes([number]), block_bytes=BLOCK_BYTES, facts={}) for number in (1, 2)]
    room = DiskRoom(root, cap)
    blocks = [chain(root_key(), (number,), number) for number in range(NUM_BLOCKS)]
    contents = {prefix: payload_of(prefix) for prefix in blocks}
    num_read = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        prefix, mine = draws.choice(blocks), draws.choice(files)
        action = draws.random()
        try:
            if action < 0.4:
                room.make_room(BLOCK_BYTES)
                room.add(mine.path(prefix.key), mine.write(prefix, contents[prefix]))
            elif action < 0.45:
                mine.touch([prefix])
            elif action < 0.5:
                mine.remove(prefix.key)
            elif action < 0.51:
                room = DiskRoom(root, cap)
            else:
                if mine.read(prefix) != contents[prefix]:
                    raise RuntimeError("another block's contents")
                num_read += 1
        except BlockFileMissingError:
            pass
    return num_read


def test_processes_that_share_a_directory_never_see_anything_wrong(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.engine.test_block_room import work\n"
        "print(work(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*arguments, str(seed), str(SECONDS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        for seed in (1, 2)
    ]
    ended = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert [(error, status) for (_, error), status in ended] == [("", 0), ("", 0)]
    assert all(int(out) > 10 for (out, _), _ in ended)
    left = list(tmp_path.rglob("*.kv"))
    assert sum(path.stat().st_size for path in left) <= 26 * (BLOCK_BYTES + 300), "each may add a few that the other does not know of"
    assert not list(tmp_path.rglob("unfinished-*"))
