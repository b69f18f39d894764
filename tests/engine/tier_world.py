"""Shadow memory over all tiers, with files that fail in every way, and runs that follow one another on the same files."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterable
from pathlib import Path

from chatpaged.engine.block_files import BlockFiles, FileAccess
from chatpaged.engine.block_pool import BlockPrefix
from chatpaged.engine.block_room import DiskRoom
from chatpaged.engine.block_tiers import HostTier, LowerTiers
from chatpaged.engine.disk_tier import DiskTier, TurnClock
from chatpaged.engine.disk_writer import DiskWriter, Written
from chatpaged.engine.sequence import Keep
from chatpaged.engine.tier_policy import TierPolicy
from tests.engine.shadow_kv import Harness
from tests.engine.workload import random_prompt


class PromptWriter(DiskWriter):
    """Writes at once, on the thread that asks: what happens is the same each time."""

    def put(self, prefix: BlockPrefix, data: bytearray) -> None:
        self.results.put(Written(prefix, self._write(prefix, data)))


class SlowTiers(TierPolicy):
    """Beside somebody who reads along only one block comes back in a step."""

    block_seconds = 1.0


class Killed(BaseException):
    """The process ends here."""


class FaultyAccess(FileAccess):
    """Files on a bad day.

    Attributes:
        rate: how often each call goes wrong, 0 to 1.
        faults: what has gone wrong, for tests that want to know whether everything has.
    """

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng = rng
        self.rate = rate
        self.faults: set[str] = set()

    def _fails(self, what: str) -> bool:
        if self._rng.random() >= self.rate:
            return False
        self.faults.add(what)
        return True

    def read(self, descriptor: int, buffer: memoryview) -> int:
        if self._fails("read error"):
            raise OSError(errno.EIO, "bad sector")
        if len(buffer) > 1 and self._fails("short read"):
            return super().read(descriptor, buffer[: len(buffer) // 2])
        count = super().read(descriptor, buffer)
        if count and self._fails("flipped bit"):
            buffer[self._rng.randrange(count)] ^= 1 << self._rng.randrange(8)
        return count

    def write(self, descriptor: int, data: memoryview) -> int:
        if self._fails("disk full"):
            raise OSError(errno.ENOSPC, "no space left")
        if len(data) > 1 and self._fails("short write"):
            return super().write(descriptor, data[: len(data) // 2])
        if self._fails("torn write"):  # the system says it has written, and loses the end
            super().write(descriptor, data[: len(data) // 2])
            return len(data)
        return super().write(descriptor, data)

    def replace(self, source: str, target: str) -> None:
        if self._fails("killed before the name"):
            raise Killed
        super().replace(source, target)

    def unlink(self, path: str) -> None:
        if self._fails("cannot remove"):
            raise OSError(errno.EACCES, "not yours")
        super().unlink(path)


class TierWorld:
    """Engines one after the other on the same files, each with random limits of its own."""

    def __init__(self, directory: Path, rng: random.Random, *, rate: float) -> None:
        self._directory = directory
        self._rng = rng
        self.access = FaultyAccess(rng, 0.0)
        self._rate = rate
        self.block_size = rng.choice([1, 2, 4])
        self.harness, self.disk = self._start()

    def _start(self) -> tuple[Harness, DiskTier]:
        rng = self._rng
        self.access.rate = 0.0  # the directory itself is there
        fingerprint = rng.choice([b"this model", b"this model", b"another"])
        files = BlockFiles(
            self._directory, fingerprint=fingerprint, block_bytes=8 * self.block_size, facts={"model": "shadow"}, access=self.access
        )
        room = DiskRoom(self._directory, rng.choice([3000, 100_000]), access=self.access)
        policy = rng.choice([TierPolicy, SlowTiers])(self.block_size)
        disk = DiskTier(files, PromptWriter(files, room), policy, TurnClock())
        tiers = LowerTiers(policy, HostTier(rng.choice([0, 2, 8]), is_file=rng.random() < 0.5), disk)
        max_num_seqs = rng.randint(1, 4)
        harness = Harness(
            num_blocks=rng.randint(4, 16),
            block_size=self.block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + rng.choice([0, 5, 20]),
            tier=tiers,
            exchange=disk,
            fingerprint=fingerprint,
            policy=policy,
        )
        self.access.rate = self._rate
        return harness, disk

    def act(self) -> None:
        """Does one random thing."""
        rng, scheduler = self._rng, self.harness.scheduler
        choice = rng.random()
        groups = scheduler.groups()
        longest = min(scheduler.config.max_model_len - 1, scheduler.blocks.capacity)
        if choice < 0.25:
            self.harness.add(
                random_prompt(rng, longest),
                max_tokens=rng.randint(1, 12),
                n=rng.choice([1, 1, 2]),
                priority=rng.choice([0, 0, 1, 2]),
                interactive=rng.random() < 0.3,
                salt=rng.choice([b"", b"", b"private"]),
                keep=rng.choice(list(Keep)),
            )
        elif choice < 0.29 and groups:
            scheduler.abort(rng.choice(groups).request_id)
        elif choice < 0.36:
            keys = scheduler.blocks.prefix_keys(random_prompt(rng, longest))
            if rng.random() < 0.5:
                scheduler.blocks.look_at(keys)
            else:
                scheduler.blocks.retained.pin(rng.choice("ab"), keys)
        elif choice < 0.40:
            self.harness.work_ahead(rng.randint(1, 8))
        else:
            self.harness.step()
        scheduler.check_invariants()

    def damage(self, files: Iterable[Path]) -> None:
        """Does something to files that only a broken disk does."""
        for path in files:
            data = bytearray(path.read_bytes() or b" ")
            kind = self._rng.randrange(4)
            if kind == 0:
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            elif kind == 1:
                del data[self._rng.randrange(len(data)) :]
            elif kind == 2:
                data += b"more"
            path.write_bytes(data if kind < 3 else b"")

    def restart(self) -> None:
        """Ends the process in one way or another and begins a new one on the same files."""
        with contextlib.suppress(Killed):
            while self.harness.scheduler.has_unfinished and self._rng.random() < 0.9:
                self.harness.step()
            self.harness.work_ahead(100)
        files = sorted(self._directory.rglob("*.kv"))
        self.damage(path for path in files if self._rng.random() < self._rate)
        self.harness, self.disk = self._start()


def run_tiers(directory: Path, seed: int, *, num_actions: int, rate: float) -> TierWorld:
    """A whole random run over several processes; every answer is checked as it comes."""
    rng = random.Random(seed)
    world = TierWorld(directory, rng, rate=rate)
    for _ in range(num_actions):
        try:
            world.act()
        except Killed:
            world.harness, world.disk = world._start()
        if rng.random() < 0.03:
            world.restart()
    while True:
        with contextlib.suppress(Killed):
            world.harness.run()
            return world
        world.harness, world.disk = world._start()
