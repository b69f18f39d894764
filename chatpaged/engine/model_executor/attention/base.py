"""The contract of an attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, LayerKV


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """What a layer says about its attention.

    Attributes:
        scale: factor of the scores; None is `head_dim ** -0.5`.
        window: a token attends to this many tokens, itself included; None is all before it.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        sinks: `[query_heads]`, a score for each head that takes part in the softmax but has no value.
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class PagedAttention(Protocol):
    """Attention of one step's batch over the KV pool."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """Stores the step's keys and values, then attends to everything stored for each sequence, causally.

        Args:
            layer: index of the layer.
            query: `[T, query_heads, key_dim]`, positions already encoded.
            key: `[T, kv_heads, key_dim]`; `query_heads` is a multiple of `kv_heads`.
            value: `[T, kv_heads, value_dim]`.
            options: what the layer asks for.

        Returns:
            `[T, query_heads, value_dim]`.
        """


class AttentionBackend(Protocol):
    """A way to compute attention, chosen when a model is loaded. Makes the attention of each step."""

    @property
    def capturable(self) -> bool:
        """Whether a step's attention depends on its batch through tensors alone, so that a CUDA graph of it can be replayed."""

    def step(self, batch: InputBatch, kv_cache: KVCache) -> PagedAttention:
        """Prepares the attention of a step."""


class StoredAttention(Protocol):
    """Attention of one step's batch for whoever stores keys and values himself, in the kernel that computes them."""

    def places(self, layer: int) -> tuple[LayerKV, torch.Tensor]:
        """Where the keys and values of a layer go.

        Returns:
            stored: of the layer.
            slots: int64 `[T]`, block times block_size plus the place in it, for each token; -1 is nowhere.
        """

    def attend_stored(self, layer: int, query: torch.Tensor, options: AttentionOptions, kv_heads: int, value_dim: int) -> torch.Tensor:
        """Attends to everything stored for each sequence, causally; the step's own keys and values have been stored.

        Args:
            layer: index of the layer.
            query: `[T, query_heads, key_dim]`, positions already encoded.
            options: what the layer asks for.
            kv_heads: heads of keys and values that are in use.
            value_dim: dimensions of values that are in use.

        Returns:
            `[T, query_heads, value_dim]`, contiguous.
        """
