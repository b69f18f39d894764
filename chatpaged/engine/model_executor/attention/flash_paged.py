"""Paged attention of flash-attn, where it is installed.

Where blocks are of a multiple of 256 tokens it reads them where they lie; else keys and values are gathered. In place, its function for
packed sequences is right only as long as it does not split the keys, which it does where every sequence has one token. Those are left to
its other function, and no call mixes the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from chatpaged.engine.model_executor.attention import gathered_paged
from chatpaged.engine.model_executor.attention.base import AttentionOptions, PagedAttention
from chatpaged.engine.model_executor.attention.gathered_paged import (
    DIM_MULTIPLE,
    GatheredPagedAttention,
    PackedLengths,
    add_sinks,
    fit,
    with_scale,
)
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.trial import trial_problem
from chatpaged.engine.model_executor.input_batch import InputBatch, RowSpan
from chatpaged.engine.model_executor.kv_cache import KVCache
from chatpaged.engine.model_executor.libraries import import_problem

BLOCK_MULTIPLE = 256
"""Blocks that it reads in place hold a multiple of this many tokens."""
_NEEDED = {
    "flash_attn_varlen_func": ("softmax_scale", "causal", "window_size", "softcap", "return_attn_probs", "block_table"),
    "flash_attn_with_kvcache": ("cache_seqlens", "softmax_scale", "window_size", "softcap", "block_table", "return_softmax_lse"),
}
_TRIAL_DIM = 64


def flash_problem(device: torch.device, dtype: torch.dtype, head_dim: int = 0, *, block_size: int = 16) -> str | None:
    """Why this attention cannot run, or None.

    Args:
        device: where it would run.
        dtype: of queries, keys and values.
        head_dim: the most of any layer; 0 if that is not known yet.
        block_size: tokens a block holds.
    """
    problem = gathered_paged.packed_problem(device, dtype, head_dim)
    if problem is None:
        problem = _library_problem()
    if problem is None:
        # Blocks of different sizes have different functions; among those of one kind the size does not matter.
        problem = _trial(device, dtype, head_dim or _TRIAL_DIM, BLOCK_MULTIPLE if reads_in_place(block_size) else 16)
    return problem


def reads_in_place(block_size: int) -> bool:
    """Whether blocks of so many tokens are read where they lie."""
    return block_size % BLOCK_MULTIPLE == 0


def _library() -> Any:
    """The package.

    Raises:
        ImportError: it is not installed, or does not fit this torch.
    """
    import flash_attn  # noqa: PLC0415 - optional

    return flash_attn


def _library_problem() -> str | None:
    try:
        library = _library()
    except (ImportError, OSError) as error:
        return import_problem("flash-attn", "flash_attn", error)
    for function, needed in _NEEDED.items():
        if not hasattr(library, function):
            return f"this flash-attn has no {function}"
        parameters = inspect.signature(getattr(library, function)).parameters
        missing = [name for name in needed if name not in parameters]
        if missing:
            return f"{function} of this flash-attn has no {' and no '.join(missing)}"
    return None


@cache
def _trial(device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int) -> str | None:
    backend = FlashBackend()
    options = (*gathered_paged.TRIED_OPTIONS, AttentionOptions(softcap=2.0))
    return trial_problem(backend.step, device, dtype, head_dim=head_dim, block_size=block_size, options=options)


class FlashBackend:
    """flash-attn. Satisfies `AttentionBackend`. Lengths of the batch reach its kernels as plain numbers: not to be replayed."""

    capturable = False

    def __init__(self) -> None:
        self._library = _library()

    def step(self, batch: InputBatch, kv_cache: KVCache) -> PagedAttention:
        """See `AttentionBackend.step`."""
        layout = kv_cache.layout
        if reads_in_place(layout.block_size) and layout.head_dim % DIM_MULTIPLE == 0:
            return FlashPagedAttention(batch, kv_cache, self._library)
        return GatheredPagedAttention(batch, kv_cache, packed_flash(self._library))


def packed_flash(library: Any) -> gathered_paged.PackedAttention:
    """The function for packed sequences as a `PackedAttention`."""

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: PackedLengths, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return _several(library, query, key, value, lengths, options, None)

    return attend


def _several(
    library: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: PackedLengths,
    options: AttentionOptions,
    block_table: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    result = library.flash_attn_varlen_func(
        query,
        key,
        value,
        lengths.cu_q,
        lengths.cu_k,
        lengths.max_q,
        lengths.max_k,
        softmax_scale=options.scale,
        causal=True,
        window_size=_window(options),
        softcap=options.softcap or 0.0,
        return_attn_probs=options.sinks is not None,  # the probabilities, which it calls unreliable, are left alone
        block_table=block_table,
    )
    return (result[0], result[1]) if options.sinks is not None else (result, None)


def _window(options: AttentionOptions) -> tuple[int, int]:
    """Both ends count: W tokens are the token itself and W - 1 before it."""
    return (-1, -1) if options.window is None else (options.window - 1, 0)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of a step's sequences: those that one function is called for.

    Attributes:
        tokens: their places in the batch; None when they are all of it.
        seq_lens: int32 `[N]`, stored tokens, those of this step included.
        block_table: int32 `[N, M]`.
        lengths: where they lie in their tokens, and would in packed keys; None where each has one token.
    """

    tokens: torch.Tensor | None
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    lengths: PackedLengths | None


class FlashPagedAttention:
    """One step's attention over blocks where they lie. Satisfies `PagedAttention`."""

    def __init__(self, batch: InputBatch, kv_cache: KVCache, library: Any) -> None:
        self._batch = batch
        self._kv_cache = kv_cache
        self._library = library
        self._slot_index = kv_cache.slot_index(batch.slot_blocks, batch.slot_offsets)
        rows = StepRows.build(batch, kv_cache.layout.block_size)
        spans = list(enumerate(batch.spans))
        kinds = ([(i, span) for i, span in spans if span.length == 1], [(i, span) for i, span in spans if span.length > 1])
        self._parts = [_make_part(chosen, rows) for chosen in kinds if chosen]
        self._gathered: GatheredPagedAttention | None = None

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        heads, dim = key.shape[1:]
        if value.shape[2] != dim or dim % DIM_MULTIPLE:  # it would have to pad the whole pool
            return self._elsewhere().attend(layer, query, key, value, options)
        self._kv_cache.write(layer, key, value, self._slot_index)
        keys, values = (part[:, :, :heads, :dim] for part in self._kv_cache.pool[:, layer].unbind(1))
        query, options = fit(query, dim), with_scale(options, dim)
        if len(self._parts) == 1:
            return self._part(self._parts[0], query, keys, values, options)
        output = query.new_empty(query.shape)
        for part in self._parts:
            output[part.tokens] = self._part(part, query[part.tokens], keys, values, options)
        return output

    def _part(self, part: _Part, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        if part.lengths is not None:
            attended, sums = _several(self._library, query, keys, values, part.lengths, options, part.block_table)
            return add_sinks(attended, sums, options.sinks)
        result = self._library.flash_attn_with_kvcache(
            query.unsqueeze(1),
            keys,
            values,
            cache_seqlens=part.seq_lens,
            block_table=part.block_table,
            softmax_scale=options.scale,
            window_size=_window(options),
            softcap=options.softcap or 0.0,
            return_softmax_lse=options.sinks is not None,
        )
        attended, sums = (result[0], result[1].squeeze(2).t()) if options.sinks is not None else (result, None)
        return add_sinks(attended.squeeze(1), sums, options.sinks)

    def _elsewhere(self) -> GatheredPagedAttention:
        if self._gathered is None:
            self._gathered = GatheredPagedAttention(self._batch, self._kv_cache, packed_flash(self._library))
        return self._gathered


def _make_part(chosen: Sequence[tuple[int, RowSpan]], rows: StepRows) -> _Part:
    """Lays out some sequences of a step, with one transfer.

    Args:
        chosen: their numbers in the step, and where they lie; all have one token, or none.
        rows: all sequences.
    """
    spans = [span for _, span in chosen]
    total = len(rows.seq_lens)
    device = rows.seq_lens.device
    cu_q = list(accumulate((span.length for span in spans), initial=0))
    cu_k = list(accumulate((span.num_keys for span in spans), initial=0))
    tokens = [token for span in spans for token in range(span.begin, span.begin + span.length)] if len(spans) < total else []
    numbers = [*cu_q, *cu_k, *(i for i, _ in chosen), *tokens]
    placed = torch.tensor(numbers, dtype=torch.int32).to(device)
    count = len(spans)
    of_q, of_k, row, places = torch.split(placed, [count + 1, count + 1, count, len(tokens)])
    lengths = None
    if spans[0].length > 1:
        longest = (max(span.length for span in spans), max(span.num_keys for span in spans))
        lengths = PackedLengths(cu_q=of_q, cu_k=of_k, max_q=longest[0], max_k=longest[1])
    if count == total:
        return _Part(None, rows.seq_lens, rows.block_table, lengths)
    return _Part(places.long(), rows.seq_lens[row], rows.block_table[row], lengths)
