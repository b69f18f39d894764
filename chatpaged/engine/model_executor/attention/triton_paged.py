"""Paged attention of Triton kernels, over the blocks of a `KVCache` where they lie.

Triton is imported when it is wanted, never before: beside a CPU it need not be there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.kv_cache import KVCache

if TYPE_CHECKING:
    from chatpaged.engine.model_executor.attention.triton_kernels import Launch

MAX_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_CHUNKS = 64
_MIN_CHUNK = 256
_MAX_TRIAL_ERROR = 0.05
"""Rounding to bfloat16 gives a fifth of that; a kernel that is wrong, far more."""


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
    """Compiles and runs the kernels, for which more is needed than Triton: a driver that fits, maybe a C compiler.

    What they compute, for a prompt and for a token that follows it, is compared with the formula: they are trusted on no device unseen.
    """
    try:
        error = _trial_error(device, dtype)
    except Exception as problem:  # noqa: BLE001 - whatever is missing
        return f"its kernels do not run here: {(str(problem).strip() or type(problem).__name__).splitlines()[0]}"
    return None if error < _MAX_TRIAL_ERROR else f"its kernels are wrong here, by {error:.2g}"


def _trial_error(device: torch.device, dtype: torch.dtype) -> float:
    """How far attention of a few tokens, in two blocks of 16, is from its formula."""
    from chatpaged.engine.model_executor.attention import triton_kernels  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(20, heads, 16, generator=generator).to(device, dtype) for heads in (2, 1, 1))
    keys, values = torch.zeros(2, 3, 16, 1, 16, dtype=dtype, device=device)
    slots = torch.arange(16, 36, device=device)
    triton_kernels.write(keys, values, key, value, slots)
    scores = torch.einsum("qhd,kd->hqk", query.float(), key[:, 0].float()) / 4
    mask = torch.ones(20, 20, dtype=torch.bool, device=device).tril()
    expected = torch.einsum("hqk,kd->qhd", scores.masked_fill(~mask, -torch.inf).softmax(-1), value[:, 0].float())
    error = 0.0
    for begin in (0, 19):
        rows = StepRows(
            cu_q=torch.tensor([0, 20 - begin], dtype=torch.int32, device=device),
            seq_lens=torch.tensor([20], dtype=torch.int32, device=device),
            block_table=torch.tensor([[1, 2]], dtype=torch.int32, device=device),
            slots=slots[begin:],
            only_single=begin == 19,
        )
        shape = triton_kernels.Scores(scale=0.25, window=0, softcap=0.0, sinks=None)
        attended = triton_kernels.attend(query[begin:], keys, values, rows, shape, kv_heads=1, value_dim=16, chunk=_MIN_CHUNK)
        difference = (attended.float() - expected[begin:]).abs().max()
        error = max(error, float(difference) if bool(difference.isfinite()) else torch.inf)
    return error


def choose_chunk(max_model_len: int) -> int:
    """Keys of one chunk: the same for a sequence whatever its length and its batch mates.

    Long contexts have longer chunks, as their number decides how many programs start and how much room partial results take.
    """
    return max(_MIN_CHUNK, 1 << (-(-max_model_len // _MAX_CHUNKS) - 1).bit_length())


class TritonPagedAttention:
    """One step's attention. Satisfies `PagedAttention`."""

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
        kernels = self._kernels
        keys, values = self._pool[:, layer].unbind(1)
        kernels.write(keys, values, key, value, self._rows.slots)
        scores = kernels.Scores(
            scale=options.scale if options.scale is not None else query.shape[-1] ** -0.5,
            window=options.window or 0,
            softcap=options.softcap or 0.0,
            sinks=options.sinks.float().contiguous() if options.sinks is not None else None,
        )
        attended: torch.Tensor = kernels.attend(
            query, keys, values, self._rows, scores, kv_heads=key.shape[1], value_dim=value.shape[2], chunk=self._chunk, launch=self._launch
        )
        return attended
