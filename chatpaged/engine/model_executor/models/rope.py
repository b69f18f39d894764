"""Rotary embeddings as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_Rotation = torch.Tensor | tuple[torch.Tensor, ...]


def freeze_rope(model: nn.Module, max_model_len: int) -> None:
    """Replaces each rotary embedding by a table.

    Some kinds (dynamic, longrope) choose their frequencies by the longest position in the batch, so that one long request would
    change the keys of all others. The choice is made once, for `max_model_len`.
    """
    for module in model.modules():
        if hasattr(module, "rope_type") or hasattr(module, "inv_freq"):
            # nn.Module forbids neither this nor typing it: forward is an ordinary attribute to it.
            module.forward = _RopeTable(module.forward, max_model_len)


class _RopeTable:
    """`forward(x, position_ids, ...)` of a rotary embedding, looked up. One table for each value of further arguments."""

    def __init__(self, forward: Callable[..., _Rotation], max_model_len: int) -> None:
        self._forward = forward
        self._max_model_len = max_model_len
        self._tables: dict[tuple[Any, ...], _Rotation] = {}

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> _Rotation:
        """Cosine and sine of the positions: each `[1, T, dim]`.

        Args:
            x: says which type and device.
            position_ids: `[1, T]`; or `[axes, 1, T]` where images have positions of several axes, all the same for text.
            args: whatever else this kind takes.
            kwargs: the same.
        """
        axes = position_ids.shape[:-2]
        key = (x.dtype, x.device, axes, *args, *sorted(kwargs.items()))
        tables = self._tables.get(key)
        if tables is None:
            positions = torch.arange(self._max_model_len, device=x.device).expand(*axes, 1, -1)
            computed = self._forward(x, positions, *args, **kwargs)
            # Cosine and sine as a pair, or as one tensor of complex numbers.
            tables = computed[0] if isinstance(computed, torch.Tensor) else tuple(table[0] for table in computed)
            self._tables[key] = tables
        for _ in axes:
            position_ids = position_ids[0]
        return tables[position_ids] if isinstance(tables, torch.Tensor) else tuple(table[position_ids] for table in tables)
