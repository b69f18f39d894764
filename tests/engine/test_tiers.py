"""Over all tiers, with faults: never a wrong token, always a recompute and something that was counted."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_tiers import HostTier
from chatpaged.engine.scheduler_output import BlockOperationKind
from tests.engine.shadow_kv import ShadowError
from tests.engine.tier_world import TierWorld, run_tiers


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("chatpaged")
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("seed", range(15))
def test_random_work_over_all_tiers(tmp_path: Path, seed: int) -> None:
    run_tiers(tmp_path, seed, num_actions=200, rate=0.0)


@pytest.mark.parametrize("seed", range(25))
def test_random_work_with_faults(tmp_path: Path, seed: int) -> None:  # B9
    run_tiers(tmp_path, seed, num_actions=200, rate=0.1)


def test_faults_and_moves_are_reached(tmp_path: Path) -> None:
    faults: set[str] = set()
    totals: dict[str, int] = {}
    for seed in range(20):
        world = run_tiers(tmp_path / str(seed), 1000 + seed, num_actions=200, rate=0.08)
        faults |= world.access.faults
        count(world, totals)
    assert faults >= {"read error", "short read", "flipped bit", "disk full", "short write", "torn write", "killed before the name"}
    missing = [name for name in ("swap_out", "swap_in", "disk_writes", "disk_reads", "disk_drops", "disk_faults") if not totals[name]]
    assert not missing


# --- tests of the test -----------------------------------------------------------------------------------------------------


def _no_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(zlib, "crc32", lambda *_: 0)


def _load_before_save(patch: pytest.MonkeyPatch) -> None:
    take = BlockManager.take_operations
    patch.setattr(BlockManager, "take_operations", lambda self: tuple(reversed(take(self))))


def _blocks_published_before_they_are_there(patch: pytest.MonkeyPatch) -> None:
    take = BlockManager.take_operations
    patch.setattr(BlockManager, "take_operations", lambda self: tuple(o for o in take(self) if o.kind is not BlockOperationKind.SWAP_IN))


def _slot_of_somebody_else(patch: pytest.MonkeyPatch) -> None:
    promote = HostTier.promote
    patch.setattr(
        HostTier, "promote", lambda self, prefix, block: replace(found, source=0) if (found := promote(self, prefix, block)) else None
    )


BUGS = [_no_checksum, _load_before_save, _blocks_published_before_they_are_there, _slot_of_somebody_else]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_seeded_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((ShadowError, RuntimeError)):
        run_many(tmp_path)


def run_many(directory: Path) -> None:
    for seed in range(60):
        run_tiers(directory / str(seed), seed, num_actions=200, rate=0.1)


def count(world: TierWorld, totals: dict[str, int]) -> None:
    blocks = world.harness.scheduler.blocks
    for name, value in {"swap_out": blocks.counters.swap_out, "swap_in": blocks.counters.swap_in, **world.disk.counts()}.items():
        totals[name] = totals.get(name, 0) + value
