"""Paged attention in plain torch operations, for any device: the reference that faster backends are held against.

Rows that decode are gathered together, padded to the longest of a group; rows with several tokens are computed one by one.
A prompt that begins in this step needs no gathering: its keys and values are the ones just computed.

Block-major storage has gaps between the blocks of one layer, so a run of blocks is no view that a matrix product could take;
measured on two cores, copying it out block by block is also the faster of the two ways (docs/architecture.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.input_batch import InputBatch, RowSpan
from chatpaged.engine.model_executor.kv_cache import KVCache

MAX_PADDING = 1.5
"""A group's longest row may have this many times the blocks of its shortest."""
_MAX_SCORES = 2**24


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Rows of similar length that decode one token each; B rows, S padded keys.

    Attributes:
        size: B.
        tokens: `[B]`, their tokens' places in the batch; None when the group is the whole batch, in its order.
        row_index: `[2, B x blocks]`, what to gather.
        unwritten: `[N]`, gathered keys (of K and V, flattened) beyond a row's end: whatever an earlier user left there.
        bias: `[B, 1, 1, S]`, 0 or -inf, or None if every key counts.
    """

    size: int
    tokens: torch.Tensor | None
    row_index: torch.Tensor
    unwritten: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _SingleRow:
    """A row computed by itself: several tokens, or a decode that no other resembles.

    Attributes:
        tokens: its place in the batch.
        row_index: `[2, blocks]`, what to gather; None when all its keys belong to this step.
        num_keys: keys to read, from the first of the gathered blocks on.
        bias: `[length, keys]`, 0 or -inf, or None if there is nothing to hide but what `causal` says.
        causal: a plain triangle: the row's first token is the sequence's first.
    """

    tokens: slice
    row_index: torch.Tensor | None
    num_keys: int
    bias: torch.Tensor | None
    causal: bool


_Plan = tuple[list[_DecodeGroup], list[_SingleRow]]


class TorchPagedAttention:
    """One step's attention. Satisfies `PagedAttention`."""

    def __init__(self, batch: InputBatch, kv_cache: KVCache, *, plain: bool = False) -> None:
        """Prepares a step; `plain` is that of `dense_attention`."""
        self._plain = plain
        self._batch = batch
        self._kv_cache = kv_cache
        self._block_size = kv_cache.layout.block_size
        self._device = kv_cache.pool.device
        self._slot_index = kv_cache.slot_index(batch.slot_blocks, batch.slot_offsets)
        self._plans: dict[int | None, _Plan] = {}

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        self._kv_cache.write(layer, key, value, self._slot_index)
        plan = self._plans.get(options.window)
        if plan is None:
            plan = self._plans[options.window] = self._make_plan(options.window)
        groups, singles = plan
        if len(groups) + len(singles) == 1:  # the whole batch: nothing to put together
            return (
                self._decode(layer, groups[0], query, key, value, options)
                if groups
                else self._single(layer, singles[0], query, key, value, options)
            )
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for group in groups:
            output[group.tokens] = self._decode(layer, group, query, key, value, options)
        for row in singles:
            tokens = row.tokens
            output[tokens] = self._single(layer, row, query[tokens], key[tokens], value[tokens], options)
        return output

    def _decode(
        self,
        layer: int,
        group: _DecodeGroup,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        gathered = self._kv_cache.gather(layer, group.row_index)
        # Masking is not enough: what is left there from another sequence could be NaN, and 0 x NaN is NaN.
        gathered.view(-1, *gathered.shape[2:]).index_fill_(0, group.unwritten, 0)
        keys, values = (
            part.view(group.size, -1, *part.shape[1:])[:, :, : new.shape[1], : new.shape[2]].transpose(1, 2)
            for part, new in zip(gathered, (key, value), strict=True)
        )
        if group.tokens is not None:
            query = query[group.tokens]
        return dense_attention(query.unsqueeze(2), keys, values, group.bias, options, causal=False, plain=self._plain).squeeze(2)

    def _single(
        self,
        layer: int,
        row: _SingleRow,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        keys, values = key, value
        if row.row_index is not None:
            gathered = self._kv_cache.gather(layer, row.row_index)
            keys, values = (part[: row.num_keys, : new.shape[1], : new.shape[2]] for part, new in zip(gathered, (key, value), strict=True))
        query, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, keys, values))
        attended = dense_attention(query, keys, values, row.bias, options, causal=row.causal, plain=self._plain)
        return attended.squeeze(0).transpose(0, 1)

    # --- the plan: the same for all layers with the same window ----------------------------------------------------------

    def _make_plan(self, window: int | None) -> _Plan:
        spans = self._batch.spans
        decodes = [span for span in spans if span.length == 1 and span.start > 0]
        groups: list[list[RowSpan]] = []
        for span in sorted(decodes, key=lambda span: self._num_blocks(span, window)):
            if groups and self._num_blocks(span, window) <= MAX_PADDING * self._num_blocks(groups[-1][0], window):
                groups[-1].append(span)
            else:
                groups.append([span])
        singles = [span for span in spans if span.length > 1 or span.start == 0]
        singles += [group[0] for group in groups if len(group) == 1]
        return (
            [self._decode_group(group, window) for group in groups if len(group) > 1],
            [self._single_row(span, window) for span in singles],
        )

    def _first_block(self, span: RowSpan, window: int | None) -> int:
        """The first block that any of the row's tokens attends to."""
        return 0 if window is None else max(0, span.start + 1 - window) // self._block_size

    def _num_blocks(self, span: RowSpan, window: int | None) -> int:
        return len(span.block_table) - self._first_block(span, window)

    def _decode_group(self, spans: list[RowSpan], window: int | None) -> _DecodeGroup:
        is_whole_batch = len(spans) == len(self._batch.spans)
        if is_whole_batch:
            spans = list(self._batch.spans)
        size = max(self._num_blocks(span, window) for span in spans)
        blocks: list[int] = []
        first_keys: list[int] = []
        for span in spans:
            first = self._first_block(span, window)
            table = span.block_table[first:]
            blocks += table + (NULL_BLOCK,) * (size - len(table))
            first_keys.append(first * self._block_size)
        num_keys = size * self._block_size
        firsts = torch.tensor(first_keys, device=self._device).unsqueeze(1)
        ends = torch.tensor([span.num_keys for span in spans], device=self._device).unsqueeze(1)
        positions = firsts + torch.arange(num_keys, device=self._device)
        beyond = positions >= ends
        hidden = beyond if window is None else beyond | (positions < ends - window)
        unwritten = beyond.view(-1).nonzero().squeeze(1)
        return _DecodeGroup(
            size=len(spans),
            tokens=None if is_whole_batch else torch.tensor([span.begin for span in spans], device=self._device),
            row_index=self._kv_cache.row_index(torch.tensor(blocks, device=self._device)),
            unwritten=torch.cat((unwritten, unwritten + beyond.numel())),
            bias=self._bias(hidden)[:, None, None, :] if bool(hidden.any()) else None,
        )

    def _single_row(self, span: RowSpan, window: int | None) -> _SingleRow:
        tokens = slice(span.begin, span.begin + span.length)
        if span.start == 0 and (window is None or span.length <= window):
            return _SingleRow(tokens, None, span.length, None, causal=True)
        first = self._first_block(span, window)
        first_key = first * self._block_size
        row_index = None
        if span.start > 0:
            row_index = self._kv_cache.row_index(torch.tensor(span.block_table[first:], device=self._device))
        queries = torch.arange(span.start, span.num_keys, device=self._device).unsqueeze(1)
        keys = torch.arange(first_key, span.num_keys, device=self._device)
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        bias = self._bias(hidden) if span.length > 1 or bool(hidden.any()) else None
        return _SingleRow(tokens, row_index, span.num_keys - first_key, bias, causal=False)

    def _bias(self, hidden: torch.Tensor) -> torch.Tensor:
        """0 where a key counts, -inf where it is hidden."""
        return torch.zeros(hidden.shape, dtype=self._kv_cache.layout.dtype, device=self._device).masked_fill_(hidden, -torch.inf)


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Torch's operations. Satisfies `AttentionBackend`; `plain` is that of `dense_attention`."""

    plain: bool = False
    capturable: bool = field(default=False, init=False)

    def step(self, batch: InputBatch, kv_cache: KVCache) -> TorchPagedAttention:
        """See `AttentionBackend.step`."""
        return TorchPagedAttention(batch, kv_cache, plain=self.plain)


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    options: AttentionOptions,
    *,
    causal: bool,
    plain: bool = False,
) -> torch.Tensor:
    """Attention of dense tensors.

    Args:
        query: `[B, query_heads, Q, key_dim]`.
        key: `[B, kv_heads, S, key_dim]`.
        value: `[B, kv_heads, S, value_dim]`.
        bias: added to the scores; broadcast to `[B, query_heads, Q, S]`.
        options: scale, softcap and sinks; windows are in the bias.
        causal: hide later keys; only for Q == S, where torch's alignment is right.
        plain: do without torch's own attention, which is wrong here (`torch_check.py`).

    Returns:
        `[B, query_heads, Q, value_dim]`.
    """
    if plain or options.softcap is not None or options.sinks is not None:
        return plain_attention(query, key, value, _explicit(bias, query, causal=causal), options)
    if query.device.type == "mps":
        # Its causal flag has leaked later tokens in half types, and grouped heads are new there: neither is relied upon.
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        bias, causal = _explicit(bias, query, causal=causal), False
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, is_causal=causal, scale=options.scale, enable_gqa=query.shape[1] != key.shape[1]
    )


def _explicit(bias: torch.Tensor | None, query: torch.Tensor, *, causal: bool) -> torch.Tensor | None:
    if bias is None and causal:
        length = query.shape[2]
        return torch.full((length, length), -torch.inf, dtype=query.dtype, device=query.device).triu_(1)
    return bias


def plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, options: AttentionOptions
) -> torch.Tensor:
    """Attention by matrix products and a softmax in at least float32. Arguments as for `dense_attention`; queries in pieces."""
    batch, heads, num_queries, dim = query.shape
    kv_heads, num_keys = key.shape[1:3]
    scale = options.scale if options.scale is not None else dim**-0.5
    dtype = torch.promote_types(query.dtype, torch.float32)
    transposed = key.transpose(2, 3).to(dtype)
    pieces = []
    step = max(1, _MAX_SCORES // (batch * heads * num_keys))
    for begin in range(0, num_queries, step):
        part = query[:, :, begin : begin + step].to(dtype).reshape(batch, kv_heads, -1, dim)
        scores = torch.matmul(part, transposed).mul_(scale).view(batch, heads, -1, num_keys)
        if options.softcap is not None:
            scores = torch.tanh(scores.div_(options.softcap)).mul_(options.softcap)
        if bias is not None:
            scores = scores + (bias if bias.shape[-2] == 1 else bias[..., begin : begin + step, :])
        if options.sinks is not None:
            sinks = options.sinks.to(dtype).view(1, heads, 1, 1).expand(batch, -1, scores.shape[2], 1)
            weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
        else:
            weights = torch.softmax(scores, dim=-1)
        weights = weights.to(value.dtype).reshape(batch, kv_heads, -1, num_keys)
        pieces.append(torch.matmul(weights, value).view(batch, heads, -1, value.shape[-1]))
    return torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]
