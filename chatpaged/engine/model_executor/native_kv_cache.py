"""The KV pool of the native kernels: blocks of bytes, laid out as `native/src/kernels.h` says.

```text
pool [num_blocks, block_bytes]

a block       layer 0 keys | layer 0 values | layer 1 keys | layer 1 values | ...
keys          [kv_heads, block_size / 16, head_pad, 16]    16 tokens side by side: a vector holds one dimension of them
values        [kv_heads, block_size, head_pad]             head_pad: head_dim rounded up to 16
int8          both are followed by a scale for each token and head, float32
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from chatpaged.engine.model_executor.native.interface import F16, F32, I8
from chatpaged.engine.model_executor.native.library import load_library

KV_FORMATS: Mapping[str, int] = {"fp32": F32, "fp16": F16, "int8": I8}
_ELEMENT_BYTES = {F32: 4, F16: 2, I8: 1}
_HEAD_UNIT = 16
READY_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKVLayout:
    """Shape of one block.

    Attributes:
        num_layers: attention layers.
        block_size: tokens a block holds.
        kv_heads: key/value heads.
        head_dim: elements of a head.
        kv_dtype: "fp32", "fp16" or "int8".
    """

    num_layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    kv_dtype: str

    @property
    def format(self) -> int:
        """The number of `kv_dtype` in the native interface."""
        return KV_FORMATS[self.kv_dtype]

    @property
    def part_bytes(self) -> int:
        """Bytes of the keys, or the values, of one layer."""
        tokens = self.kv_heads * self.block_size
        scales = 4 * tokens if self.format == I8 else 0
        return tokens * -(-self.head_dim // _HEAD_UNIT) * _HEAD_UNIT * _ELEMENT_BYTES[self.format] + scales

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers."""
        return self.num_layers * 2 * self.part_bytes


class NativeKVCache:
    """Owner of the pool's memory.

    Attributes:
        pool: `[num_blocks, block_bytes]` uint8.
    """

    def __init__(self, layout: NativeKVLayout, num_blocks: int) -> None:
        """Reserves the pool; only blocks that were used take memory."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.pool = torch.empty((num_blocks, layout.block_bytes), dtype=torch.uint8)
        # Measured: attention over long contexts takes half the time.
        load_library().cp_use_large_pages(self.pool.data_ptr(), self.pool.numel())
        # The first blocks are taken now: a first prompt should not wait for the system to clear pages.
        self.pool[: max(1, READY_BYTES // layout.block_bytes)].zero_()
