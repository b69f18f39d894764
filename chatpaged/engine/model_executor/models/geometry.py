"""What the KV pool has to know about a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What the layers of a model store: the number of layers, and the most heads and dimensions of any of them."""

    num_layers: int
    kv_heads: int
    head_dim: int
