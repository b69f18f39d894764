"""Paged attention on the native kernels, for models whose other layers are torch operations: blocks are read where they lie."""

from __future__ import annotations

import ctypes

import torch

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.native.arrays import StepArrays
from chatpaged.engine.model_executor.native.interface import AttentionConfig
from chatpaged.engine.model_executor.native.library import Team
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from chatpaged.errors import MemoryBudgetError


class NativePagedAttention:
    """One step's attention, in float32. Satisfies `PagedAttention`; all layers have the heads and dimensions of the pool."""

    def __init__(self, batch: InputBatch, kv_cache: NativeKVCache, team: Team) -> None:
        self._layout = kv_cache.layout
        self._team = team
        self._arrays = StepArrays(batch, kv_cache.pool)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        layout = self._layout
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        sinks = options.sinks.float().contiguous() if options.sinks is not None else None
        config = AttentionConfig(
            heads=query.shape[1],
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            block_size=layout.block_size,
            kv_format=layout.format,
            num_layers=layout.num_layers,
            window=options.window or 0,
            scale=options.scale if options.scale is not None else layout.head_dim**-0.5,
            softcap=options.softcap or 0.0,
            sinks=sinks.data_ptr() if sinks is not None else None,
        )
        out = torch.empty_like(query)
        failed = self._team.library.cp_attention(
            self._team.handle,
            ctypes.byref(config),
            layer,
            ctypes.byref(self._arrays.step),
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            out.data_ptr(),
        )
        if failed:
            raise MemoryBudgetError("no memory for the intermediate results of a step; use a smaller --max-batched-tokens")
        return out
