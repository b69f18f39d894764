"""Paged attention of Triton kernels, over the blocks of a `KVCache` where they lie.

Triton is imported when it is wanted, never before: beside a CPU it need not be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import torch

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.trial import trial_problem
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache

if TYPE_CHECKING:
    from chatpaged.engine.model_executor.attention.triton_kernels import Launch

MAX_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_CHUNKS = 64
_MIN_CHUNK = 256


def triton_problem(device: torch.device, dtype: torch.dtype, head_dim: int = 0) -> str | None:
    """Why these kernels cannot run, or None.

    Args:
        device: where they would run.
        dtype: of queries, keys and values.
        head_dim: the most of any layer; 0 if that is not known yet.
    """
    if dtype not in DTYPES:
        return f"its kernels have no {str(dtype).removeprefix('torch.')}"
    if head_dim > MAX_HEAD_DIM:
        return f"heads of {head_dim} dimensions, more than {MAX_HEAD_DIM}"
    try:
        from chatpaged.engine.model_executor.attention.triton_kernels import IS_INTERPRETED  # noqa: PLC0415
    except ImportError:
        return "triton is not installed"
    if device.type != "cuda" and not IS_INTERPRETED:
        return f"its kernels run on CUDA, this is {device.type}"
    return _trial(device, dtype)


@cache
def _trial(device: torch.device, dtype: torch.dtype) -> str | None:
    """Compiles and runs the kernels, for which more is needed than Triton: a driver that fits, maybe a C compiler."""
    return trial_problem(TritonBackend(_MIN_CHUNK).step, device, dtype)


def choose_chunk(max_model_len: int) -> int:
    """Keys of one chunk: the same for a sequence whatever its length and its batch mates.

    Long contexts have longer chunks, as their number decides how many programs start and how much room partial results take.
    """
    return max(_MIN_CHUNK, 1 << (-(-max_model_len // _MAX_CHUNKS) - 1).bit_length())


class TritonPagedAttention:
    """One step's attention. Satisfies `PagedAttention` and `StoredAttention`."""

    def __init__(self, rows: StepRows, kv_cache: KVCache, chunk: int, launch: Launch | None = None) -> None:
        """Prepares a step.

        Args:
            rows: its sequences.
            kv_cache: where keys and values lie.
            chunk: see `choose_chunk`.
            launch: instead of what suits the model.
        """
        from chatpaged.engine.model_executor.attention import triton_kernels  # noqa: PLC0415

        self._kernels = triton_kernels
        self._rows = rows
        self._pool = kv_cache.pool
        self._chunk = chunk
        self._launch = launch

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        keys, values, slots = self.places(layer)
        self._kernels.write(keys, values, key, value, slots)
        return self.attend_stored(layer, query, options, key.shape[1], value.shape[2])

    def places(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `StoredAttention.places`."""
        keys, values = self._pool[:, layer].unbind(1)
        return keys, values, self._rows.slots

    def attend_stored(self, layer: int, query: torch.Tensor, options: AttentionOptions, kv_heads: int, value_dim: int) -> torch.Tensor:
        """See `StoredAttention.attend_stored`."""
        kernels = self._kernels
        keys, values = self._pool[:, layer].unbind(1)
        scores = kernels.Scores(
            scale=options.scale if options.scale is not None else query.shape[-1] ** -0.5,
            window=options.window or 0,
            softcap=options.softcap or 0.0,
            sinks=options.sinks.float().contiguous() if options.sinks is not None else None,
        )
        attended: torch.Tensor = kernels.attend(
            query, keys, values, self._rows, scores, kv_heads=kv_heads, value_dim=value_dim, chunk=self._chunk, launch=self._launch
        )
        return attended


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Triton's kernels. Satisfies `AttentionBackend`; for the chunk see `choose_chunk`."""

    chunk: int
    capturable: bool = field(default=True, init=False)

    def step(self, batch: InputBatch, kv_cache: KVCache) -> TritonPagedAttention:
        """See `AttentionBackend.step`."""
        return self.over_rows(StepRows.build(batch, kv_cache.layout.block_size), kv_cache)

    def over_rows(self, rows: StepRows, kv_cache: KVCache) -> TritonPagedAttention:
        """The attention of a step whose sequences are tensors already."""
        return TritonPagedAttention(rows, kv_cache, self.chunk)
