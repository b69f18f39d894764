"""Blocks move as they are told to, byte by byte, on layouts of both kinds of pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from chatpaged import paths
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor import block_moves
from chatpaged.engine.model_executor.block_moves import BlockMoves, make_host_rows, swap_bytes
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.errors import InvalidRequestError, MemoryBudgetError

COPY, SWAP_OUT, SWAP_IN = BlockOperationKind.COPY, BlockOperationKind.SWAP_OUT, BlockOperationKind.SWAP_IN
SAVE, LOAD = BlockOperationKind.SAVE, BlockOperationKind.LOAD
CPU = torch.device("cpu")


class Shelf:
    """A `BlockExchange` that keeps everything."""

    def __init__(self) -> None:
        self.kept: dict[int, bytearray] = {}

    def leave(self, ticket: int, data: bytearray) -> None:
        self.kept[ticket] = data

    def fetch(self, ticket: int) -> bytearray:
        return self.kept[ticket]


@pytest.fixture(params=["float32", "float16", "bfloat16", "bytes"])
def pool(request: pytest.FixtureRequest) -> torch.Tensor:
    if request.param == "bytes":
        return torch.randint(0, 256, (10, 96), dtype=torch.uint8)
    dtype = getattr(torch, request.param)
    kv_cache = KVCache(KVLayout(num_layers=3, block_size=4, kv_heads=2, head_dim=5, dtype=dtype), 10, CPU)
    kv_cache.pool.copy_(torch.randn(kv_cache.pool.shape))
    return kv_cache.pool


@pytest.fixture
def moves(pool: torch.Tensor) -> BlockMoves:
    block_bytes = pool[0].numel() * pool.itemsize
    moves = BlockMoves(pool, make_host_rows(4 * block_bytes, block_bytes, CPU))
    moves.exchange = Shelf()
    return moves


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")


def test_copies_are_made_in_order(pool: torch.Tensor, moves: BlockMoves) -> None:
    original = pool.clone()
    moves.apply([BlockOperation(COPY, 1, 2), BlockOperation(COPY, 3, 1), BlockOperation(COPY, 2, 4), BlockOperation(COPY, 1, 5)])
    expected = original.clone()
    for block, source in {2: 1, 1: 3, 4: 1, 5: 3}.items():
        expected[block] = original[source]
    assert torch.equal(pool, expected)


def test_what_goes_down_comes_back_bit_by_bit(pool: torch.Tensor, moves: BlockMoves) -> None:  # C5
    original = pool.clone()
    down = [BlockOperation(SWAP_OUT, 3, 0), BlockOperation(COPY, 1, 3), BlockOperation(SAVE, 4, 7), BlockOperation(COPY, 1, 4)]
    moves.apply([*down, BlockOperation(SWAP_IN, 0, 6), BlockOperation(LOAD, 7, 8)])
    expected = original.clone()
    for block, source in {3: 1, 4: 1, 6: 3, 8: 4}.items():
        expected[block] = original[source]
    assert torch.equal(pool, expected)


def test_a_slot_that_is_taken_anew_holds_the_new_block(pool: torch.Tensor, moves: BlockMoves) -> None:
    original = pool.clone()
    moves.apply(
        [BlockOperation(SWAP_OUT, 1, 2), BlockOperation(SWAP_IN, 2, 5), BlockOperation(SWAP_OUT, 3, 2), BlockOperation(SWAP_IN, 2, 6)]
    )
    assert torch.equal(pool[5], original[1])
    assert torch.equal(pool[6], original[3])


def test_a_saved_block_is_a_copy(pool: torch.Tensor, moves: BlockMoves) -> None:
    original = pool.clone()
    moves.apply([BlockOperation(SAVE, 2, 0)])
    pool.zero_()
    moves.apply([BlockOperation(LOAD, 0, 2)])
    assert torch.equal(pool[2], original[2])


@pytest.mark.parametrize(("kind", "match"), [(SWAP_IN, "host"), (SWAP_OUT, "host"), (SAVE, "save"), (LOAD, "load")])
def test_moves_without_a_tier_are_refused(pool: torch.Tensor, kind: BlockOperationKind, match: str) -> None:
    before = pool.clone()
    with pytest.raises(RuntimeError, match=match):
        BlockMoves(pool).apply([BlockOperation(kind, 1, 2)])
    assert torch.equal(pool, before)


# --- host memory ---------------------------------------------------------------------------------------------------------


def test_rows_of_host_memory_are_a_file_without_a_name(tmp_path: Path) -> None:
    rows = make_host_rows(1000, 300, CPU)
    assert rows is not None
    assert rows.shape == (3, 300)
    rows.fill_(7)
    assert int(rows.sum()) == 7 * 900
    assert list((tmp_path / "cache").iterdir()) == []
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_no_swap_space_is_no_memory() -> None:
    assert make_host_rows(0, 300, CPU) is None


def test_a_swap_space_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"holds no block.*300 B.*--swap-space"):
        make_host_rows(299, 300, CPU)


def test_a_swap_space_larger_than_the_disk_is_refused() -> None:
    with pytest.raises(MemoryBudgetError, match=r"900\.0 TiB on the disk.*are free"):
        make_host_rows(900 * 2**40, 2**20, CPU)


def test_a_disk_that_gets_full_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _offset: int, _size: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryBudgetError, match="--swap-space"):
        make_host_rows(900, 300, CPU)


def test_a_system_that_cannot_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    rows = make_host_rows(900, 300, CPU)
    assert rows is not None
    rows[2].fill_(1)
    assert int(rows.sum()) == 300


def test_default_swap_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_moves, "free_memory", lambda _: 8 * 2**30)
    assert swap_bytes(EngineConfig(), CPU) == 0
    assert swap_bytes(EngineConfig(), torch.device("cuda")) == 2 * 2**30
    assert swap_bytes(EngineConfig(swap_space=5), torch.device("cuda")) == 5
    monkeypatch.setattr(block_moves, "free_memory", lambda _: 800 * 2**30)
    assert swap_bytes(EngineConfig(), torch.device("cuda")) == 4 * 2**30


def test_swap_space_that_nobody_asked_for_is_done_without(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    cuda = torch.device("cuda")
    with pytest.raises(MemoryBudgetError, match="--swap-space needs"):
        make_host_rows(900, 300, cuda)
    assert make_host_rows(900, 300, cuda, asked_for=False) is None
    assert "no swap space: 900 B of pinned memory cannot be had" in caplog.text
    assert make_host_rows(299, 300, cuda, asked_for=False) is None


def test_default_swap_space_wastes_no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_moves, "free_memory", lambda _: 10 * 2**30)
    assert swap_bytes(EngineConfig(), torch.device("cuda")) == 2 * 2**30
    monkeypatch.setattr(block_moves, "free_memory", lambda _: 0)
    assert swap_bytes(EngineConfig(), torch.device("cuda")) == 0
