"""Blocks on their way to files and back, the thread that writes, and a disk that does not want to."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chatpaged.engine import disk_tier, disk_writer
from chatpaged.engine.block_files import BlockFiles, FileAccess
from chatpaged.engine.block_pool import BlockPrefix, chain
from chatpaged.engine.block_room import DiskRoom
from chatpaged.engine.block_tiers import HostTier, LowerTiers
from chatpaged.engine.disk_tier import DiskTier, TurnClock
from chatpaged.engine.disk_writer import DiskWriter
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.tier_policy import TierKind, TierPolicy
from tests.engine.tier_world import PromptWriter

SAVE, LOAD = BlockOperationKind.SAVE, BlockOperationKind.LOAD
SIZE = 64


class FullDisk(FileAccess):
    """No room as long as `is_full`."""

    is_full = True

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")
        return super().write(descriptor, data)


def prefix_of(number: int, *, is_private: bool = False) -> BlockPrefix:
    return chain(b"parent", (number, number + 1), number, is_private=is_private)


def contents(number: int) -> bytearray:
    return bytearray([number]) * SIZE


def make(
    root: Path,
    *,
    access: FileAccess | None = None,
    writer: Callable[[BlockFiles, DiskRoom], DiskWriter] = PromptWriter,
    max_pending_bytes: int = 10 * SIZE,
) -> DiskTier:
    clock = TurnClock()
    files = BlockFiles(root, fingerprint=b"model", block_bytes=SIZE, facts={"model": "m"}, access=access, clock=clock)
    return DiskTier(files, writer(files, DiskRoom(root, 10**6)), TierPolicy(16), clock, max_pending_bytes=max_pending_bytes)


def save(tier: DiskTier, number: int) -> None:
    operation = tier.save(prefix_of(number), 5)
    assert operation is not None
    assert (operation.kind, operation.source) == (SAVE, 5)
    tier.leave(operation.destination, contents(number))


def load(tier: DiskTier, number: int) -> bytearray | None:
    operation = tier.promote(prefix_of(number), 6)
    if operation is None:
        return None
    assert (operation.kind, operation.destination) == (LOAD, 6)
    return tier.fetch(operation.source)


def test_what_is_saved_is_found_by_the_next_process(tmp_path: Path) -> None:
    tier = make(tmp_path)
    save(tier, 1)
    tier.close()
    again = make(tmp_path)
    assert again.contains(prefix_of(1))
    assert not again.contains(prefix_of(2))
    assert load(again, 1) == contents(1)
    assert (again.counters.disk_reads, tier.counters.disk_writes) == (1, 1)


def test_a_block_is_saved_once(tmp_path: Path) -> None:
    tier = make(tmp_path)
    save(tier, 1)
    assert tier.save(prefix_of(1), 7) is None
    assert make(tmp_path).save(prefix_of(1), 7) is None


def test_private_blocks_are_never_saved(tmp_path: Path) -> None:
    assert make(tmp_path).save(prefix_of(1, is_private=True), 7) is None


def test_a_block_that_waits_is_found_as_if_it_had_a_file(tmp_path: Path) -> None:
    tier = make(tmp_path, writer=DiskWriter)
    operation = tier.save(prefix_of(1), 5)
    assert operation is not None
    assert tier.contains(prefix_of(1))
    assert tier.save(prefix_of(1), 5) is None
    back = tier.promote(prefix_of(1), 6)
    assert back is not None
    tier.leave(operation.destination, contents(1))
    assert tier.fetch(back.source) == contents(1)
    tier.close(10.0)
    assert tier.counts()["disk_pending"] == 0
    assert load(make(tmp_path), 1) == contents(1)


def test_a_block_with_the_same_key_that_waits_is_another_one(tmp_path: Path) -> None:
    tier = make(tmp_path)
    assert tier.save(prefix_of(1), 5) is not None
    other = BlockPrefix(prefix_of(1).key, b"parent", (8, 9), 1)
    assert not tier.contains(other)
    assert tier.promote(other, 6) is None


def test_operations_out_of_order_are_noticed(tmp_path: Path) -> None:
    tier = make(tmp_path)
    tier.save(prefix_of(1), 5)
    back = tier.promote(prefix_of(1), 6)
    assert back is not None
    with pytest.raises(RuntimeError, match="before its contents"):
        tier.fetch(back.source)


def test_more_than_may_wait_is_dropped(tmp_path: Path) -> None:
    tier = make(tmp_path, max_pending_bytes=2 * SIZE)
    assert [tier.save(prefix_of(number), 5) is not None and tier.can_save for number in range(3)] == [True, False, False]
    assert tier.counters.disk_drops == 1


def test_a_damaged_file_is_a_fault_and_never_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = make(tmp_path)
    save(tier, 1)
    tier.counts()
    (path,) = tmp_path.rglob("*.kv")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert tier.contains(prefix_of(1))
    assert load(tier, 1) is None
    assert tier.counters.disk_faults == 1
    assert "computed again" in caplog.text
    path.write_bytes(data)  # a disk that brings it back
    assert not tier.contains(prefix_of(1))
    path.unlink()
    save(tier, 1)
    tier.counts()
    assert tier.contains(prefix_of(1))
    assert load(tier, 1) == contents(1)


def test_after_damage_files_that_were_not_read_are_written_again(tmp_path: Path) -> None:
    tier = make(tmp_path)
    for number in range(4):
        save(tier, number)
    tier.close()
    for path in tmp_path.rglob("*.kv"):
        if path != BlockFiles(tmp_path, fingerprint=b"model", block_bytes=SIZE, facts={"model": "m"}).path(prefix_of(0).key):
            path.write_bytes(path.read_bytes()[:20])
    again = make(tmp_path)
    assert load(again, 0) == contents(0)
    assert load(again, 1) is None
    assert again.save(prefix_of(0), 5) is None
    for number in (1, 2, 3):
        save(again, number)
    again.close()
    healed = make(tmp_path)
    assert [load(healed, number) for number in range(4)] == [contents(number) for number in range(4)]


def test_beginnings_outlive_ends_however_long_writing_takes(tmp_path: Path) -> None:
    tier = make(tmp_path)
    save(tier, 0)
    tier.touch([prefix_of(0)])
    time.sleep(0.05)
    save(tier, 1)
    ages = [path.stat().st_mtime_ns for path in (tier._files.path(prefix_of(0).key), tier._files.path(prefix_of(1).key))]
    assert ages[0] > ages[1]


def test_files_beyond_the_limit_are_removed_at_the_end(tmp_path: Path) -> None:
    tier = make(tmp_path)
    for number in range(20):
        save(tier, number)
    tier.close()
    files = BlockFiles(tmp_path, fingerprint=b"model", block_bytes=SIZE, facts={"model": "m"})
    DiskTier(files, DiskWriter(files, DiskRoom(tmp_path, 2000)), TierPolicy(16), TurnClock()).close()
    assert 0 < sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 2000


def test_a_file_that_others_have_removed_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = make(tmp_path)
    save(tier, 1)
    tier.counts()
    next(tmp_path.rglob("*.kv")).unlink()
    assert load(tier, 1) is None
    assert (tier.counters.disk_faults, caplog.text) == (0, "")


def test_a_full_disk_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    access = FullDisk()
    tier = make(tmp_path, access=access)
    for number in range(3):
        save(tier, number)
    assert tier.counts() == {"disk_pending": 0, "disk_writes": 0, "disk_reads": 0, "disk_drops": 3, "disk_faults": 0}
    assert len(caplog.records) == 1
    assert not list(tmp_path.rglob("*.kv"))
    access.is_full = False
    later = time.monotonic() + disk_writer.PAUSE_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    save(tier, 4)
    assert tier.counts()["disk_writes"] == 1


def test_the_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    class Slow(FileAccess):
        def write(self, descriptor: int, data: memoryview) -> int:
            time.sleep(0.05)
            return super().write(descriptor, data)

    tier = make(tmp_path, access=Slow(), writer=DiskWriter)
    for number in range(10):
        save(tier, number)
    tier.close(0.01)
    assert tier.num_pending > 0


def test_only_so_many_keys_are_kept_in_mind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "MAX_REMEMBERED", 3)
    tier = make(tmp_path, max_pending_bytes=100 * SIZE)
    for number in range(10):
        save(tier, number)
    tier.counts()
    assert all(tier.contains(prefix_of(number)) for number in range(10))
    assert len(tier._known) <= 3
    assert all(load(tier, number) == contents(number) for number in range(10))
    assert len(tier._proven) <= 3


def test_nothing_to_write(tmp_path: Path) -> None:
    make(tmp_path, writer=DiskWriter).close()
    assert not list(tmp_path.rglob("*.kv"))


def test_a_block_that_is_touched_outlives_others(tmp_path: Path) -> None:
    tier = make(tmp_path)
    save(tier, 1)
    path = next(tmp_path.rglob("*.kv"))
    before = path.stat().st_mtime_ns
    tier.touch([prefix_of(1), prefix_of(2)])
    assert path.stat().st_mtime_ns > before


# --- several tiers -----------------------------------------------------------------------------------------------------------


def tiers(root: Path, *, num_slots: int = 2, is_file: bool = False) -> tuple[LowerTiers, DiskTier]:
    disk = make(root)
    return LowerTiers(TierPolicy(16), HostTier(num_slots, is_file=is_file), disk), disk


def kinds(operations: tuple[BlockOperation, ...]) -> list[str]:
    return [operation.kind.value for operation in operations]


def test_a_block_goes_to_host_memory_and_if_it_is_worth_it_to_a_file(tmp_path: Path) -> None:
    lower, _ = tiers(tmp_path)
    assert kinds(lower.demote(prefix_of(1), 5, is_unsaved=False)) == ["swap_out"]
    assert kinds(lower.demote(prefix_of(2), 5, is_unsaved=True)) == ["swap_out", "save"]
    assert lower.demote(prefix_of(2), 5, is_unsaved=True) == ()
    assert lower.num_blocks == 2
    assert lower.can_save


def test_private_blocks_stay_out_of_host_memory_that_is_a_file(tmp_path: Path) -> None:
    lower, _ = tiers(tmp_path, is_file=True)
    assert lower.demote(prefix_of(1, is_private=True), 5, is_unsaved=True) == ()
    lower, _ = tiers(tmp_path)
    assert kinds(lower.demote(prefix_of(1, is_private=True), 5, is_unsaved=True)) == ["swap_out"]


def test_host_memory_is_asked_first_and_the_one_used_longest_ago_leaves_it(tmp_path: Path) -> None:
    lower, disk = tiers(tmp_path)
    save(disk, 1)
    for number in (1, 2):
        lower.demote(prefix_of(number), 5, is_unsaved=False)
    back = lower.promote(prefix_of(1), 6)
    assert back is not None
    assert back.kind is BlockOperationKind.SWAP_IN
    lower.demote(prefix_of(3), 5, is_unsaved=False)  # in the place of 2
    assert not lower.contains(prefix_of(2))
    lower.touch([prefix_of(1), prefix_of(9)])
    lower.demote(prefix_of(4), 5, is_unsaved=False)  # in the place of 3
    assert [lower.contains(prefix_of(number)) for number in (1, 3, 4)] == [True, False, True]
    lower.demote(prefix_of(5), 5, is_unsaved=False)  # 1 has left, but has a file
    back = lower.promote(prefix_of(1), 6)
    assert back is not None
    assert back.kind is LOAD
    assert lower.promote(prefix_of(2), 6) is None


def test_a_slot_whose_key_collides_is_taken(tmp_path: Path) -> None:
    host = HostTier(2)
    assert host.demote(prefix_of(1), 5) is not None
    other = BlockPrefix(prefix_of(1).key, b"parent", (8, 9), 1)
    assert not host.contains(other)
    assert host.promote(other, 6) is None
    assert host.demote(other, 5) == BlockOperation(BlockOperationKind.SWAP_OUT, 5, 0)
    assert host.num_blocks == 1


def test_slow_tiers_are_not_asked(tmp_path: Path) -> None:
    lower, disk = tiers(tmp_path)
    save(disk, 1)
    lower.demote(prefix_of(2), 5, is_unsaved=False)
    lower.policy.observe_prefill(160, 0.16)
    lower.policy.observe_moves(TierKind.DISK, 1, 1.0)
    assert [lower.contains(prefix_of(number)) for number in (1, 2, 3)] == [False, True, False]
    lower.policy.observe_moves(TierKind.HOST, 1, 1.0)
    assert not lower.contains(prefix_of(2))
    assert lower.counts()["tier_declined"] == 2


def test_without_files() -> None:
    lower = LowerTiers(TierPolicy(16), HostTier(2))
    assert (lower.keeps_files, lower.can_save, lower.save(prefix_of(1), 5)) == (False, False, None)
    assert kinds(lower.demote(prefix_of(1), 5, is_unsaved=True)) == ["swap_out"]
    assert lower.promote(prefix_of(2), 5) is None
    lower.touch([prefix_of(1)])
    assert lower.counts() == {"tier_declined": 0, "tier_ms_saved": 0}
