"""The KV pool with numbers of 8 bits, for Triton's attention: blocks of bytes, elements first, then a scale for each token and head.

```text
pool [num_blocks, block_bytes]        bytes

a block     elements                                     | scales
            layer 0 keys | layer 0 values | layer 1 ...  | layer 0 keys | layer 0 values | layer 1 ...
            [block_size, kv_heads, head_dim] E4M3 each   | [kv_heads, block_size] float32 each
```

Both begin at multiples of 16 bytes, which vector loads need. The scales of a head's tokens lie side by side, as its kernel reads
them. There is nothing to calibrate: a scale is the head's largest number divided by the largest code, when its token is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.model_executor.kv_cache import LayerKV

_BOUNDARY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8KVLayout:
    """Shape of one block. Satisfies `BlockLayout`.

    Attributes:
        num_layers: attention layers.
        block_size: tokens a block holds.
        kv_heads: key/value heads; the most of any layer.
        head_dim: elements of a head; the most of any layer, keys and values alike.
    """

    num_layers: int
    block_size: int
    kv_heads: int
    head_dim: int

    @property
    def num_heads(self) -> int:
        """Heads of keys and of values that a block stores, all layers and tokens: each has a scale."""
        return self.num_layers * 2 * self.block_size * self.kv_heads

    @property
    def scale_begin(self) -> int:
        """Where the scales begin, in bytes."""
        return _rounded_up(self.num_heads * self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers, scales included."""
        return self.scale_begin + _rounded_up(4 * self.num_heads)


class Fp8KVCache:
    """Owner of the pool's memory.

    Attributes:
        pool: `[num_blocks, block_bytes]` uint8.
        elements: `[num_blocks, num_layers, 2, block_size, kv_heads, head_dim]` uint8, a view of it: codes of `torch.float8_e4m3fn`.
        scales: `[num_blocks, num_layers, 2, kv_heads, block_size]` float32, likewise.
    """

    def __init__(self, layout: Fp8KVLayout, num_blocks: int, device: torch.device) -> None:
        """Reserves the pool. Where the system gives memory out page by page, only blocks that were used take any."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.pool = torch.empty((num_blocks, layout.block_bytes), dtype=torch.uint8, device=device)
        self.pool[NULL_BLOCK].zero_()
        shape = (num_blocks, layout.num_layers, 2, layout.block_size, layout.kv_heads, layout.head_dim)
        self.elements = self.pool[:, : layout.num_heads * layout.head_dim].view(shape)
        first = layout.scale_begin // 4
        scales = self.pool.view(torch.float32)[:, first : first + layout.num_heads]
        self.scales = scales.view(num_blocks, layout.num_layers, 2, layout.kv_heads, layout.block_size)

    def numbers(self) -> torch.Tensor:
        """What is stored, as float32 `[num_blocks, num_layers, 2, block_size, kv_heads, head_dim]`, copied."""
        return self.elements.view(torch.float8_e4m3fn).float() * self.scales.transpose(-1, -2).unsqueeze(-1)

    def layer(self, layer: int) -> LayerKV:
        """See `KVCache.layer`."""
        keys, values = self.elements[:, layer].unbind(1)
        key_scales, value_scales = self.scales[:, layer].unbind(1)
        return LayerKV(keys, values, (key_scales, value_scales))


def _rounded_up(count: int) -> int:
    return -(-count // _BOUNDARY) * _BOUNDARY
