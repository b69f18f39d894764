"""A few tokens through an attention backend, before it is trusted on a device: what it computes is compared with the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from chatpaged.engine.model_executor.attention.base import AttentionOptions, PagedAttention
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.fp8_numbers import NAN_CODE, fp8_rows
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput

_MAX_ERROR = 0.05
"""Rounding to bfloat16 gives a fifth of that; a kernel that is wrong, far more."""
_HEADS, _KV_HEADS = 4, 2
_LENGTHS = (20, 7)
# Tokens computed by the end of each step: two prompts, a chunk beside a decode, two decodes.
_STEPS = ((17, 5), (19, 6), (20, 7))
_PLAIN = (AttentionOptions(),)


def trial_problem(
    make: Callable[[InputBatch, Any], PagedAttention],
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_dim: int = 16,
    block_size: int = 16,
    options: Sequence[AttentionOptions] = _PLAIN,
    fp8: bool = False,
) -> str | None:
    """Why an attention backend is not to be trusted, or None.

    More may be missing than a package: a driver that fits, a compiler, kernels for this chip. What was never stored is NaN, so that reading
    it shows.

    Args:
        make: makes the attention of a step.
        device: where it would run.
        dtype: of queries, keys and values.
        head_dim: of all of them.
        block_size: tokens a block holds.
        options: what layers might ask for; each is tried. Sinks are given as `[1]`, for all heads.
        fp8: whether keys and values are stored as fp8.
    """
    shape = {"num_layers": 2, "block_size": block_size, "kv_heads": _KV_HEADS, "head_dim": head_dim}
    layout = Fp8KVLayout(**shape) if fp8 else KVLayout(**shape, dtype=dtype)
    try:
        error = max(_error(make, layout, device, dtype, option) for option in options)
    except Exception as problem:  # noqa: BLE001 - whatever is missing
        return f"its kernels do not run here: {(str(problem).strip() or type(problem).__name__).splitlines()[0]}"
    return None if error < _MAX_ERROR else f"its kernels are wrong here, by {error:.2g}"


def _error(
    make: Callable[[InputBatch, Any], PagedAttention],
    layout: KVLayout | Fp8KVLayout,
    device: torch.device,
    dtype: torch.dtype,
    options: AttentionOptions,
) -> float:
    """How far attention of a few tokens is from its formula, at most."""
    generator = torch.Generator().manual_seed(1)
    blocks = -(-max(_LENGTHS) // layout.block_size)
    kv_cache = _unwritten(layout, 1 + blocks * len(_LENGTHS), device)
    shapes = (_HEADS, _KV_HEADS, _KV_HEADS)
    sequences = [[torch.randn(length, heads, layout.head_dim, generator=generator).to(dtype) for heads in shapes] for length in _LENGTHS]
    # The formula's keys and values are those that should have been stored.
    stored = _as_fp8 if isinstance(layout, Fp8KVLayout) else torch.Tensor.float
    expected = [_formula(query, stored(key), stored(value), options) for query, key, value in sequences]
    given = AttentionOptions(
        scale=options.scale,
        window=options.window,
        softcap=options.softcap,
        sinks=options.sinks.expand(_HEADS).to(device) if options.sinks is not None else None,
    )
    error, begins = 0.0, (0,) * len(_LENGTHS)
    for ends in _STEPS:
        spans = [slice(*span) for span in zip(begins, ends, strict=True)]
        rows = []
        for i, span in enumerate(spans):
            table = tuple(range(1 + i * blocks, 1 + i * blocks + -(-span.stop // layout.block_size)))
            rows.append(ScheduledRow(i, (0,) * (span.stop - span.start), span.start, table, ()))
        batch = InputBatch.build(SchedulerOutput(0, tuple(rows), ()), layout.block_size, device)
        query, key, value = (
            torch.cat([sequence[which][span] for sequence, span in zip(sequences, spans, strict=True)]).to(device) for which in range(3)
        )
        attended = make(batch, kv_cache).attend(1, query, key, value, given).float().cpu()
        difference = (attended - torch.cat([whole[span] for whole, span in zip(expected, spans, strict=True)])).abs().max()
        error = max(error, float(difference) if bool(difference.isfinite()) else torch.inf)
        begins = ends
    return error


def _unwritten(layout: KVLayout | Fp8KVLayout, num_blocks: int, device: torch.device) -> KVCache | Fp8KVCache:
    """A pool in which nothing is a number."""
    if isinstance(layout, KVLayout):
        kv_cache = KVCache(layout, num_blocks, device)
        kv_cache.pool.fill_(torch.nan)
        return kv_cache
    codes = Fp8KVCache(layout, num_blocks, device)
    codes.pool.fill_(NAN_CODE)
    codes.scales.fill_(torch.nan)
    return codes


def _as_fp8(heads: torch.Tensor) -> torch.Tensor:
    codes, scales = fp8_rows(heads)
    return codes.float() * scales


def _formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """Attention of one sequence, `[length, heads, head_dim]` each, in float32."""
    length, heads, dim = query.shape
    key, value = (tensor.float().repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * (options.scale if options.scale is not None else dim**-0.5)
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
    hidden = (distance < 0) | (distance >= (options.window or length))
    scores = scores.masked_fill(hidden, -torch.inf)
    if options.sinks is not None:
        scores = torch.cat((scores, options.sinks.float().view(-1, 1, 1).expand(heads, length, 1)), dim=2)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], value)
