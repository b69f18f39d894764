"""Paged attention of torch's own FlashAttention (`torch.nn.attention.varlen`), over gathered keys and values.

Its signature has grown from release to release, so it is looked at once, and what is there is used. Blocks are never read in place: that
takes a multiple of 256 tokens, and has silently been wrong with splits along the keys. Splits are switched off where they can be: they have
given NaN.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

from chatpaged.engine.model_executor.attention import gathered_paged
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.gathered_paged import GatheredPagedAttention, PackedLengths
from chatpaged.engine.model_executor.attention.trial import trial_problem
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache
from chatpaged.errors import ModelError

_NEEDED = ("return_aux", "scale", "window_size")
_TRIAL_DIM = 64


def varlen_problem(device: torch.device, dtype: torch.dtype, head_dim: int = 0, *, softcap: bool = False) -> str | None:
    """Why this attention cannot run, or None.

    Args:
        device: where it would run.
        dtype: of queries, keys and values.
        head_dim: the most of any layer; 0 if that is not known yet.
        softcap: whether a layer caps its scores.
    """
    problem = gathered_paged.packed_problem(device, dtype, head_dim)
    if problem is None and softcap:
        problem = "this model caps its attention scores (softcap), which it cannot"
    if problem is None:
        problem = _library_problem()
    return problem if problem is not None else _trial(device, dtype, head_dim or _TRIAL_DIM)


def _library() -> Any:
    """Torch's module.

    Raises:
        ImportError: this torch has none.
    """
    import torch.nn.attention.varlen as library  # noqa: PLC0415 - younger than the oldest torch that will do

    return library


def _library_problem() -> str | None:
    try:
        parameters = inspect.signature(_library().varlen_attn).parameters
    except (ImportError, AttributeError):
        return f"torch {torch.__version__} has none"
    missing = [name for name in _NEEDED if name not in parameters]
    return f"that of torch {torch.__version__} has no {' and no '.join(missing)}" if missing else None


@cache
def _trial(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    backend = VarlenBackend()
    return trial_problem(backend.step, device, dtype, head_dim=head_dim, options=gathered_paged.TRIED_OPTIONS)


class VarlenBackend:
    """Torch's FlashAttention. Satisfies `AttentionBackend`. Lengths of the batch reach its kernel as plain numbers: not to be replayed."""

    capturable = False

    def __init__(self) -> None:
        self._kernel = packed_varlen()

    def step(self, batch: InputBatch, kv_cache: KVCache) -> GatheredPagedAttention:
        """See `AttentionBackend.step`."""
        return GatheredPagedAttention(batch, kv_cache, self._kernel)


def packed_varlen() -> gathered_paged.PackedAttention:
    """Torch's kernel as a `PackedAttention`."""
    library = _library()
    varlen_attn = library.varlen_attn
    parameters = inspect.signature(varlen_attn).parameters
    always = {"num_splits": 1} if "num_splits" in parameters else {}
    can_say_grouped = "enable_gqa" in parameters  # before there was that, the kernel just took fewer heads

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: PackedLengths, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if options.softcap is not None:
            raise ModelError("a layer caps its attention scores, which torch's varlen attention cannot; use another --attention")
        given: dict[str, Any] = {**always, "scale": options.scale}
        # Both ends count: W tokens are the token itself and W - 1 before it.
        given["window_size"] = (-1 if options.window is None else options.window - 1, 0)
        if can_say_grouped:
            given["enable_gqa"] = query.shape[1] != key.shape[1]
        if options.sinks is not None:
            given["return_aux"] = library.AuxRequest(lse=True)
        result = varlen_attn(query, key, value, lengths.cu_q, lengths.cu_k, lengths.max_q, lengths.max_k, **given)
        return result if options.sinks is not None else (result, None)

    return attend
