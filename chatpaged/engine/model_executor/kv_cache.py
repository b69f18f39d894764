"""The KV pool: keys and values of all blocks in one tensor.

```text
pool [num_blocks, num_layers, 2, block_size, kv_heads, head_dim]      2: keys, values

block 0 (null)   layer 0 K | layer 0 V | layer 1 K | layer 1 V | ...
block 1          layer 0 K | layer 0 V | ...
                 └ block_size x kv_heads x head_dim ┘
```

Block-major: a block of all layers is one contiguous piece, so copying it or moving it to another memory is one copy.
For the kernels a layer's keys of block b are row `2 (b num_layers + layer)` of a two-dimensional view, its values the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.memory import format_bytes, free_memory
from chatpaged.errors import MemoryBudgetError

DEFAULT_UTILIZATION = {"cuda": 0.9, "mps": 0.5, "cpu": 0.4}
MIN_BLOCKS = 2  # the null block and one to work with


class BlockLayout(Protocol):
    """What the size of a pool depends on."""

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Shape of one block.

    Attributes:
        num_layers: attention layers.
        block_size: tokens a block holds.
        kv_heads: key/value heads; the most of any layer.
        head_dim: elements of a head; the most of any layer, keys and values alike.
        dtype: element type.
    """

    num_layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers."""
        return self.num_layers * 2 * self.block_size * self.kv_heads * self.head_dim * self.dtype.itemsize


def choose_num_blocks(
    layout: BlockLayout, config: EngineConfig, device: torch.device, max_model_len: int, *, available: int | None = None, reserve: int = 0
) -> int:
    """Blocks of the pool, the null block included, from what the user asked for or from the memory that is free.

    Args:
        layout: what a block takes.
        config: what the user asked for.
        device: where the pool lies.
        max_model_len: longest sequence in tokens.
        available: bytes that will be free; None is what is free now.
        reserve: bytes of these that steps need beside the pool.

    Raises:
        MemoryBudgetError: the pool would not fit; with needed, available, and the largest that fits.
    """
    available = max(0, (available if available is not None else free_memory(device)) - reserve)
    beside = f" beside {format_bytes(reserve)} that steps need" if reserve else ""
    if config.kv_blocks is not None:
        wanted, option = config.kv_blocks + 1, f"--kv-blocks {config.kv_blocks}"
    elif config.kv_memory is not None:
        wanted, option = config.kv_memory // layout.block_bytes, f"--kv-memory {config.kv_memory}"
        if wanted < MIN_BLOCKS:
            raise MemoryBudgetError(
                f"a KV pool of {format_bytes(config.kv_memory)} holds no block: this model needs at least "
                f"{format_bytes(MIN_BLOCKS * layout.block_bytes)}; use a larger --kv-memory"
            )
    else:
        share = config.memory_utilization if config.memory_utilization is not None else DEFAULT_UTILIZATION[device.type]
        # Room for full contexts of all sequences that can run at once, and as much again to keep ended ones cached.
        useful = 2 * config.max_num_seqs * -(-max_model_len // layout.block_size) + 1
        wanted, option = min(int(available * share) // layout.block_bytes, useful), "the KV pool"
        if wanted < MIN_BLOCKS:
            raise MemoryBudgetError(
                f"no room for a KV pool: {format_bytes(available)} are free{beside}, {share:.0%} of that may be used, and one block "
                f"takes {format_bytes(layout.block_bytes)}; free some memory or raise --memory-utilization"
            )
    needed = wanted * layout.block_bytes
    if needed > available:
        largest = available // layout.block_bytes - 1
        raise MemoryBudgetError(
            f"{option} needs {format_bytes(needed)}, {format_bytes(available)} are free{beside}; the largest that fits is "
            f"--kv-blocks {max(0, largest)} ({format_bytes(max(0, largest) * layout.block_bytes)})"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's part of a pool, as kernels take it: views of it.

    Attributes:
        keys: `[num_blocks, block_size, kv_heads, head_dim]`.
        values: likewise, with the same strides.
        scales: of keys and of values, float32 `[num_blocks, kv_heads, block_size]` each, where both are codes of 8 bits.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: tuple[torch.Tensor, torch.Tensor] | None = None


class KVCache:
    """Owner of the pool's tensor.

    Attributes:
        pool: `[num_blocks, num_layers, 2, block_size, kv_heads, head_dim]`.
        rows: the same memory as `[num_blocks x num_layers x 2, block_size x kv_heads x head_dim]`.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        """Reserves the pool. Where the system gives memory out page by page, only blocks that were used take any."""
        self.layout = layout
        self.num_blocks = num_blocks
        shape = (num_blocks, layout.num_layers, 2, layout.block_size, layout.kv_heads, layout.head_dim)
        self.pool = torch.empty(shape, dtype=layout.dtype, device=device)
        self.pool[NULL_BLOCK].zero_()
        self.rows = self.pool.view(num_blocks * layout.num_layers * 2, -1)
        self._slots = self.pool.view(-1, layout.kv_heads, layout.head_dim)

    def layer(self, layer: int) -> LayerKV:
        """A layer's keys and values, where they lie."""
        keys, values = self.pool[:, layer].unbind(1)
        return LayerKV(keys, values)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_index: torch.Tensor) -> None:
        """Stores the keys and values of a step's tokens.

        Args:
            layer: which layer.
            key: `[tokens, kv_heads, key_dim]`.
            value: `[tokens, kv_heads, value_dim]`; heads and dimensions may be fewer than the pool's.
            slot_index: `[2, tokens]`, where the keys, then the values of each token go in layer 0; see `slot_index`.
        """
        places = (slot_index + 2 * self.layout.block_size * layer).unbind()
        for place, tensor in zip(places, (key, value), strict=True):
            self._slots[:, : tensor.shape[1], : tensor.shape[2]].index_copy_(0, place, tensor)

    def slot_index(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Slots of layer 0 for tokens at places `offsets` of `blocks`, both `[tokens]`: `[2, tokens]`, keys and values."""
        first = blocks * (2 * self.layout.num_layers * self.layout.block_size) + offsets
        return torch.stack((first, first + self.layout.block_size))

    def gather(self, layer: int, row_index: torch.Tensor) -> torch.Tensor:
        """Reads whole blocks of one layer.

        Args:
            layer: which layer.
            row_index: `[2, n]`, rows of layer 0: keys, then values, of n blocks; see `row_index`.

        Returns:
            `[2, n x block_size, kv_heads, head_dim]`: keys and values, copied.
        """
        gathered = torch.index_select(self.rows, 0, (row_index + 2 * layer).view(-1))
        return gathered.view(2, -1, self.layout.kv_heads, self.layout.head_dim)

    def gather_slots(self, layer: int, slot_index: torch.Tensor) -> torch.Tensor:
        """Reads single tokens of one layer.

        Args:
            layer: which layer.
            slot_index: `[2, n]`, where the keys, then the values of n tokens are in layer 0; see `slot_index`.

        Returns:
            `[2, n, kv_heads, head_dim]`: keys and values, copied.
        """
        places = slot_index + 2 * self.layout.block_size * layer
        gathered = torch.index_select(self._slots, 0, places.view(-1))
        return gathered.view(2, -1, *self._slots.shape[1:])

    def row_index(self, blocks: torch.Tensor) -> torch.Tensor:
        """Rows of layer 0 for blocks `[n]`: `[2, n]`, keys and values."""
        first = blocks * (2 * self.layout.num_layers)
        return torch.stack((first, first + 1))
