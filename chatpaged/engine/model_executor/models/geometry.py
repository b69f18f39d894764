"""What the KV pool has to know about a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What the layers of a model store.

    Attributes:
        num_layers: of attention.
        kv_heads: the most of any layer.
        head_dim: the most of any layer, keys and values alike.
        uniform: whether that is what every layer stores, keys and values alike.
        softcap: whether any layer caps its attention scores.
    """

    num_layers: int
    kv_heads: int
    head_dim: int
    uniform: bool = True
    softcap: bool = False
