"""The pool: its layout, its size, its block operations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor import kv_cache as kv_cache_module
from chatpaged.engine.model_executor import memory
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout, choose_num_blocks
from chatpaged.engine.model_executor.memory import format_bytes, free_memory, require_memory
from chatpaged.errors import MemoryBudgetError

CPU = torch.device("cpu")
LAYOUT = KVLayout(num_layers=3, block_size=4, kv_heads=2, head_dim=5, dtype=torch.float32)


@pytest.fixture
def kv_cache() -> KVCache:
    """Ten blocks, every element of which is different."""
    kv_cache = KVCache(LAYOUT, 10, CPU)
    kv_cache.pool.copy_(torch.arange(kv_cache.pool.numel()).view_as(kv_cache.pool))
    return kv_cache


@pytest.fixture
def free_mebibytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine with so much free memory."""
    monkeypatch.setattr(kv_cache_module, "free_memory", lambda _: 100 * 2**20)
    return 100


# --- layout --------------------------------------------------------------------------------------------------------------


def test_block_bytes() -> None:
    assert LAYOUT.block_bytes == 3 * 2 * 4 * 2 * 5 * 4
    # SmolLM2-135M: 720 KiB a block of 16.
    assert KVLayout(num_layers=30, block_size=16, kv_heads=3, head_dim=64, dtype=torch.float32).block_bytes == 720 * 1024


def test_a_block_is_one_contiguous_piece(kv_cache: KVCache) -> None:
    assert kv_cache.pool.shape == (10, 3, 2, 4, 2, 5)
    assert kv_cache.pool.is_contiguous()
    assert kv_cache.pool.stride(0) * kv_cache.pool.itemsize == LAYOUT.block_bytes
    assert kv_cache.pool[7].is_contiguous()


def test_rows_are_keys_and_values_of_one_layer(kv_cache: KVCache) -> None:
    assert kv_cache.rows.data_ptr() == kv_cache.pool.data_ptr()
    index = kv_cache.row_index(torch.tensor([7, 2]))
    for layer in range(3):
        for part in (0, 1):
            for i, block in enumerate((7, 2)):
                assert torch.equal(kv_cache.rows[index[part, i] + 2 * layer], kv_cache.pool[block, layer, part].flatten())


def test_the_null_block_is_zero() -> None:
    assert not KVCache(LAYOUT, 3, CPU).pool[NULL_BLOCK].any()


def test_write_then_gather(kv_cache: KVCache) -> None:
    before = kv_cache.pool.clone()
    key, value = torch.randn(6, 2, 5), torch.randn(6, 2, 5)
    # Five tokens of one sequence, from the middle of block 8 on to block 3, and one of another.
    blocks, offsets = torch.tensor([8, 8, 3, 3, 3, 5]), torch.tensor([2, 3, 0, 1, 2, 3])
    kv_cache.write(1, key, value, kv_cache.slot_index(blocks, offsets))
    keys, values = kv_cache.gather(1, kv_cache.row_index(torch.tensor([8, 3])))
    assert keys.shape == values.shape == (8, 2, 5)
    assert torch.equal(keys[2:7], key[:5])
    assert torch.equal(values[2:7], value[:5])
    assert torch.equal(kv_cache.gather(1, kv_cache.row_index(torch.tensor([5])))[:, 3], torch.stack((key[5], value[5])))
    # And nothing else was touched.
    kv_cache.pool[blocks, 1, 0, offsets] = before[blocks, 1, 0, offsets]
    kv_cache.pool[blocks, 1, 1, offsets] = before[blocks, 1, 1, offsets]
    assert torch.equal(kv_cache.pool, before)


def test_write_of_a_layer_that_is_smaller_than_the_pool(kv_cache: KVCache) -> None:
    before = kv_cache.pool.clone()
    key, value = torch.randn(1, 1, 4), torch.randn(1, 1, 3)
    kv_cache.write(2, key, value, kv_cache.slot_index(torch.tensor([6]), torch.tensor([1])))
    assert torch.equal(kv_cache.pool[6, 2, 0, 1, 0, :4], key[0, 0])
    assert torch.equal(kv_cache.pool[6, 2, 1, 1, 0, :3], value[0, 0])
    assert int((kv_cache.pool != before).sum()) == 4 + 3


def test_gather_copies(kv_cache: KVCache) -> None:
    gathered = kv_cache.gather(0, kv_cache.row_index(torch.tensor([4])))
    before = kv_cache.pool.clone()
    gathered.zero_()
    assert torch.equal(kv_cache.pool, before)


# --- size ----------------------------------------------------------------------------------------------------------------


def choose(**options: Any) -> int:
    return choose_num_blocks(LAYOUT, EngineConfig(**options), CPU, 1000)


def test_kv_blocks_are_usable_blocks() -> None:
    assert choose(kv_blocks=7) == 8  # and the null block


def test_kv_memory_bounds_the_whole_pool() -> None:
    assert choose(kv_memory=10 * LAYOUT.block_bytes) == 10
    assert choose(kv_memory=10 * LAYOUT.block_bytes - 1) == 9
    assert choose(kv_memory=2 * LAYOUT.block_bytes) == 2


def test_kv_memory_below_two_blocks() -> None:
    with pytest.raises(MemoryBudgetError, match=r"pool of 1\.9 KiB holds no block: .* at least 1\.9 KiB; use a larger --kv-memory"):
        choose(kv_memory=2 * LAYOUT.block_bytes - 1)


def test_share_of_the_free_memory(free_mebibytes: int) -> None:
    full = free_mebibytes * 2**20
    unlimited = {"max_num_seqs": 10**6, "max_num_batched_tokens": 10**6}
    assert choose(memory_utilization=0.5, **unlimited) == full // 2 // LAYOUT.block_bytes
    assert choose(memory_utilization=1.0, **unlimited) == full // LAYOUT.block_bytes
    assert choose(**unlimited) == int(full * 0.4) // LAYOUT.block_bytes  # the CPU's default


def test_no_more_than_can_be_of_use(free_mebibytes: int) -> None:
    # Two sequences of 1,000 tokens are 250 blocks of 4 each; as many again for ended ones.
    assert choose(max_num_seqs=2) == 2 * 2 * 250 + 1
    assert choose_num_blocks(LAYOUT, EngineConfig(max_num_seqs=2), CPU, 1001) == 2 * 2 * 251 + 1


def test_no_room_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache_module, "free_memory", lambda _: 3 * LAYOUT.block_bytes)
    with pytest.raises(MemoryBudgetError, match=r"2\.8 KiB are free, 40% of that may be used, and one block takes 960 B"):
        choose()


def test_c15_refusal_names_needed_available_and_largest(free_mebibytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", pytest.fail)
    with pytest.raises(MemoryBudgetError) as refused:
        choose(kv_memory=900 * 2**30)
    assert refused.value.exit_code == 5
    message = str(refused.value)
    assert "needs 900.0 GiB, 100.0 MiB are free" in message
    # The option that it proposes is the largest that is taken.
    largest = int(re.findall(r"--kv-blocks (\d+)", message)[-1])
    assert choose(kv_blocks=largest) == largest + 1
    with pytest.raises(MemoryBudgetError, match=f"--kv-blocks {largest + 1} needs"):
        choose(kv_blocks=largest + 1)


def test_c15_on_this_machine() -> None:
    with pytest.raises(MemoryBudgetError, match=r"needs 900\.0 TiB, .* are free; the largest that fits is --kv-blocks \d+"):
        choose(kv_memory=900 * 2**40)


# --- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (900 * 2**30, "900.0 GiB"), (5000 * 2**40, "5000.0 TiB")],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_require_memory() -> None:
    require_memory("the model", 100, 100, "buy more")
    with pytest.raises(MemoryBudgetError, match=r"^the model needs 101 B, 100 B are free; buy more$"):
        require_memory("the model", 101, 100, "buy more")


@pytest.mark.parametrize(
    ("limit", "usage", "room"), [("5000", "2000", 3000), ("2000", "5000", 0), ("max", "2000", None), (None, None, None)]
)
def test_a_container_has_less(
    limit: str | None, usage: str | None, room: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", ())
    uncontained = free_memory(CPU)
    assert uncontained > 10**6
    files = (tmp_path / "limit", tmp_path / "usage")
    for file, text in zip(files, (limit, usage), strict=True):
        if text is not None:
            file.write_text(text + "\n")
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (files,))
    free = free_memory(CPU)
    assert free == room if room is not None else free > 10**6
