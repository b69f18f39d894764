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
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, LayerKV
from chatpaged.engine.model_executor.libraries import import_problem

if TYPE_CHECKING:
    from chatpaged.engine.model_executor.attention.triton_kernels import Launch

MAX_HEAD_DIM = 256
FP8_CAPABILITY = (8, 9)
"""The first with instructions that convert E4M3."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_CHUNKS = 256
_MIN_CHUNK = 256
_TRIAL_DIM = 16


def triton_problem(device: torch.device, dtype: torch.dtype, head_dim: int = 0, *, fp8: bool = False) -> str | None:
    """Why these kernels cannot run, or None.

    Args:
        device: where they would run.
        dtype: of queries, and of keys and values where these are not stored as fp8.
        head_dim: the most of any layer; 0 if that is not known yet.
        fp8: whether keys and values are.
    """
    problem = kernels_problem(device, dtype)
    if problem is not None:
        return problem
    if head_dim > MAX_HEAD_DIM:
        return f"heads of {head_dim} dimensions, more than {MAX_HEAD_DIM}"
    too_old = fp8_device_problem(device) if fp8 else None
    return too_old if too_old is not None else _trial(device, dtype, head_dim or _TRIAL_DIM, fp8)


def kernels_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no kernel of Triton's can run, whatever it computes, or None.

    Args:
        device: where it would run.
        dtype: of activations.
    """
    is_interpreted, missing = False, None
    try:
        from chatpaged.engine.model_executor.attention import triton_kernels  # noqa: PLC0415

        is_interpreted = triton_kernels.IS_INTERPRETED
    except (ImportError, OSError) as error:
        missing = import_problem("triton", "triton", error)
    if device.type != "cuda" and not is_interpreted:
        return f"its kernels run on CUDA, this is {device.type}"
    return missing if dtype in DTYPES else f"its kernels have no {str(dtype).removeprefix('torch.')}"


def fp8_device_problem(device: torch.device) -> str | None:
    """Why a CUDA device has no numbers of type fp8, or None."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= FP8_CAPABILITY:
        return None
    least = ".".join(map(str, FP8_CAPABILITY))
    return f"fp8 needs compute capability {least}, this card has {'.'.join(map(str, capability))}"


@cache
def _trial(device: torch.device, dtype: torch.dtype, head_dim: int, fp8: bool) -> str | None:  # noqa: FBT001 - cached by place
    """Compiles and runs the kernels, for which more is needed than Triton: a driver that fits, shared memory, maybe a C compiler."""
    return trial_problem(TritonBackend(_MIN_CHUNK).step, device, dtype, head_dim=head_dim, fp8=fp8)


def choose_chunk(max_model_len: int) -> int:
    """Keys of one chunk: the same for a sequence whatever its length and its batch mates.

    Long contexts have longer chunks, as their number decides how much room partial results take. Chunks are to be short all the same:
    alone, a sequence of few chunks keeps few of a card's processors busy, each of which goes over its tiles one after another.
    """
    return max(_MIN_CHUNK, 1 << (-(-max_model_len // _MAX_CHUNKS) - 1).bit_length())


class TritonPagedAttention:
    """One step's attention. Satisfies `PagedAttention` and `StoredAttention`."""

    def __init__(self, rows: StepRows, kv_cache: KVCache | Fp8KVCache, chunk: int, launch: Launch | None = None) -> None:
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
        self._kv_cache = kv_cache
        self._chunk = chunk
        self._launch = launch

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        stored, slots = self.places(layer)
        self._kernels.write(stored.keys, stored.values, key, value, slots, stored.scales)
        return self.attend_stored(layer, query, options, key.shape[1], value.shape[2])

    def places(self, layer: int) -> tuple[LayerKV, torch.Tensor]:
        """See `StoredAttention.places`."""
        return self._kv_cache.layer(layer), self._rows.slots

    def attend_stored(self, layer: int, query: torch.Tensor, options: AttentionOptions, kv_heads: int, value_dim: int) -> torch.Tensor:
        """See `StoredAttention.attend_stored`."""
        kernels = self._kernels
        stored = self._kv_cache.layer(layer)
        scores = kernels.Scores(
            scale=options.scale if options.scale is not None else query.shape[-1] ** -0.5,
            window=options.window or 0,
            softcap=options.softcap or 0.0,
            sinks=options.sinks.float().contiguous() if options.sinks is not None else None,
        )
        attended: torch.Tensor = kernels.attend(
            query,
            stored.keys,
            stored.values,
            self._rows,
            scores,
            kv_heads=kv_heads,
            value_dim=value_dim,
            chunk=self._chunk,
            launch=self._launch,
            scales=stored.scales,
        )
        return attended


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Triton's kernels. Satisfies `AttentionBackend`; for the chunk see `choose_chunk`."""

    chunk: int
    capturable: bool = field(default=True, init=False)

    def step(self, batch: InputBatch, kv_cache: KVCache | Fp8KVCache) -> TritonPagedAttention:
        """See `AttentionBackend.step`."""
        return self.over_rows(StepRows.build(batch, kv_cache.layout.block_size), kv_cache)

    def over_rows(self, rows: StepRows, kv_cache: KVCache | Fp8KVCache) -> TritonPagedAttention:
        """The attention of a step whose sequences are tensors already."""
        return TritonPagedAttention(rows, kv_cache, self.chunk)
