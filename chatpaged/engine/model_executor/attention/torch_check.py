"""Whether torch's own attention can be relied upon: on MPS it has been wrong without a word, for some shapes in some releases.

What `torch_paged` asks of it is tried once with masks, grouped heads and lengths that are a multiple of nothing, and compared with float32
on the CPU. Where it fails, matrix products and a softmax are used in its place.
"""

from __future__ import annotations

from functools import cache

import torch

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.torch_paged import dense_attention, plain_attention

_CHECKED_DEVICES = frozenset({"mps"})
_MAX_ERROR = 0.05
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 64
_SHAPES = ((1, 13, 13), (1, 5, 307), (3, 1, 307))
"""Rows, queries and keys: a prompt, a chunk that goes on, decodes."""


def torch_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why torch's own attention is not to be used, or None; which is also said where nobody doubts it.

    Args:
        device: where it would run.
        dtype: of queries, keys and values.
    """
    return _check(device, dtype) if is_doubted(device) else None


def is_doubted(device: torch.device) -> bool:
    """Whether torch's own attention is tried on such a device before it is used."""
    return device.type in _CHECKED_DEVICES


@cache
def _check(device: torch.device, dtype: torch.dtype) -> str | None:
    try:
        error = max(_error(device, dtype, *shape) for shape in _SHAPES)
    except Exception as problem:  # noqa: BLE001 - whatever this torch does not have there
        return f"torch's own attention does not run here: {(str(problem).strip() or type(problem).__name__).splitlines()[0]}"
    return None if error < _MAX_ERROR else f"torch's own attention is wrong here, by {error:.2g}"


def _error(device: torch.device, dtype: torch.dtype, rows: int, num_queries: int, num_keys: int) -> float:
    """How far it is from float32 on the CPU, at most. The last row's last keys are hidden, and those that come later."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(rows, heads, length, _HEAD_DIM, generator=generator).to(dtype)
        for heads, length in ((_HEADS, num_queries), (_KV_HEADS, num_keys), (_KV_HEADS, num_keys))
    )
    options = AttentionOptions()
    later = torch.ones(num_queries, num_keys, dtype=torch.bool).triu_(1 + num_keys - num_queries)
    hidden = later.repeat(rows, 1, 1, 1)
    causal = num_queries == num_keys
    if rows > 1:
        hidden[-1, ..., -9:] = True
    bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    expected = plain_attention(query.float(), key.float(), value.float(), bias, options)
    given = None if causal else bias.to(device, dtype)
    attended = dense_attention(query.to(device), key.to(device), value.to(device), given, options, causal=causal)
    difference = (attended.float().cpu() - expected).abs().max()
    return float(difference) if bool(difference.isfinite()) else torch.inf
