"""Paged attention and KV writes as Triton kernels, for CUDA, and for Triton's interpreter where there is none.

Imported only where Triton is wanted (`triton_paged.py`), as this module cannot be imported without it.

One kernel does prompts, chunks of them, decodes and any mix. A tile of rows is some tokens of one sequence times the query heads that
share a KV head, so that a single token fills the rows that a matrix product has at least:

```text
rows of a tile, 3 query heads to a KV head      tiles of a batch: `cu_q[s] // tokens + s` is the first of sequence s
  token 5: head 0, 1, 2                          sequence 0 (7 tokens)  | sequence 1 (1) | sequence 2 (none) | ...
  token 6: head 0, 1, 2                          tiles 0, 1             | tile 2         | tile 3            |
```

Which sequence a tile belongs to is found on the device, so grids depend on nothing but the shapes of tensors.

**Two launches.** Sequences that compute several tokens go over their keys in one program. Those that compute one token are split into
chunks of a fixed number of keys, counted from the beginning of the sequence, and folded from the first to the last. How many programs
share the chunks of a sequence depends on how many sequences there are: few have to fill the chip. Either way what is summed up in what
order depends on the sequence alone, never on what is computed beside it.
"""

# No `from __future__ import annotations`: the interpreter does not recognise `tl.constexpr` in a string.

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from chatpaged.engine.model_executor.attention.fp8_kernels import read_fp8_as, round_fp8_heads
from chatpaged.engine.model_executor.attention.step_rows import StepRows

_LOG2_E = 1.4426950408889634
LOG2_E = tl.constexpr(_LOG2_E)
FP8_SHARE = tl.constexpr(1 / 256)
# They lie where they come to lie, from batch to batch: that must not be compiled in.
_STEP_TENSORS = ("cu_q", "seq_lens", "block_table", "slots")
# A layer's begin anywhere, if blocks are small.
_SCALES = ("key_scales", "value_scales")


@triton.jit
def _finish(values, best, total, sink, HAS_SINKS: tl.constexpr):
    """The quotient of a softmax, with the sinks, which have no values; zeros where there is nothing to attend to."""
    if HAS_SINKS:
        sink = sink * LOG2_E
        largest = tl.maximum(best, sink)
        factor = tl.exp2(best - largest)
        values = values * factor[:, None]
        total = total * factor + tl.exp2(sink - largest)
    total = tl.where(total == 0.0, 1.0, total)
    return values / total[:, None]


@triton.jit
def _attend_keys(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    table,
    position,
    begin,
    end,
    scale,
    softcap,
    kv_head,
    block_stride,
    slot_stride,
    head_stride,
    scale_stride,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of a tile's rows to the keys from `begin` up to `end`: largest scores, sums of weights, weighted values.

    Arguments as for `attention_kernel`; `table` is the sequence's row of the block table, `position` that of each row.
    """
    key_dims = tl.arange(0, KEY_PAD)
    value_dims = tl.arange(0, VALUE_PAD)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, VALUE_PAD], tl.float32)

    first = begin // TILE * TILE
    key = first + tl.arange(0, TILE)
    # Loaded a tile ahead: where keys lie has to be known before they can be loaded ahead of their use themselves.
    block = tl.load(table + key // BLOCK_SIZE, mask=(key >= begin) & (key < end), other=0)
    for start in range(first, end, TILE):
        key = start + tl.arange(0, TILE)
        stored = (key >= begin) & (key < end)
        at = block.to(tl.int64) * block_stride + (key % BLOCK_SIZE) * slot_stride + kv_head * head_stride
        # What nobody attends to is not even read: it may be no number, and 0 x NaN is NaN.
        k = tl.load(keys + at[None, :] + key_dims[:, None], mask=stored[None, :] & (key_dims < KEY_DIM)[:, None], other=0.0)
        v = tl.load(values + at[:, None] + value_dims[None, :], mask=stored[:, None] & (value_dims < VALUE_DIM)[None, :], other=0.0)
        if FP8:
            k = read_fp8_as(k, q.dtype)
            v = read_fp8_as(v, q.dtype)
        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if FP8:
            scale_at = block.to(tl.int64) * scale_stride + kv_head * BLOCK_SIZE + key % BLOCK_SIZE
            scores = scores * tl.load(key_scales + scale_at, mask=stored, other=0.0)[None, :]
        if HAS_SOFTCAP:
            shrunk = tl.exp2(tl.abs(scores) * (-2 * LOG2_E))
            scores = tl.where(scores < 0, -softcap, softcap) * (1 - shrunk) / (1 + shrunk)
        visible = stored[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        largest = tl.maximum(best, tl.max(scores, 1))
        finite = tl.where(largest == float("-inf"), 0.0, largest)
        factor = tl.exp2(best - finite)
        weights = tl.exp2(scores - finite[:, None])
        total = total * factor + tl.sum(weights, 1)
        if FP8:
            # Codes are divided by what scales are multiplied with: else products of weights and scales are too small for float16.
            v = v * FP8_SHARE
            weights = weights * (tl.load(value_scales + scale_at, mask=stored, other=0.0) / FP8_SHARE)[None, :]
        weights = weights.to(v.dtype)
        if UPCAST:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        result = tl.dot(weights, v, result * factor[:, None], input_precision="ieee")
        best = largest
        block = tl.load(table + (key + TILE) // BLOCK_SIZE, mask=key + TILE < end, other=0)
    return best, total, result


@triton.jit(do_not_specialize=["num_seqs", "num_chunks", "table_stride"], do_not_specialize_on_alignment=(*_STEP_TENSORS, *_SCALES))
def attention_kernel(
    out,
    partial_values,
    partial_sums,
    query,
    keys,
    values,
    key_scales,
    value_scales,
    cu_q,
    seq_lens,
    block_table,
    sinks,
    scale,
    softcap,
    num_seqs,
    num_chunks,
    query_token_stride,
    query_head_stride,
    block_stride,
    slot_stride,
    head_stride,
    scale_stride,
    table_stride,
    GROUPS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SINGLE: tl.constexpr,
    DIRECT: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of one tile of rows for one KV head: grid `(tiles, kv_heads, 1)`, or `(kv_heads, sequences, programs)` if SINGLE.

    The programs share the chunks of a sequence.

    Args:
        out: `[T, heads, VALUE_DIM]`, contiguous.
        partial_values: float32 `[num_seqs, heads, chunks, VALUE_DIM]`, contiguous; unless DIRECT.
        partial_sums: float32 `[num_seqs, heads, chunks, 2]`: largest score (base 2) and sum of weights; unless DIRECT.
        query: `[T, heads, KEY_DIM]`, contiguous in its last dimension.
        keys: of one layer, `[num_blocks, BLOCK_SIZE, kv_heads, KEY_DIM]` with the strides below.
        values: likewise, `VALUE_DIM` wide.
        key_scales: float32 `[num_blocks, kv_heads, BLOCK_SIZE]`, contiguous in a block, if FP8: keys times these are the keys.
        value_scales: likewise.
        cu_q: int32 `[num_seqs + 1]`, where the tokens of each sequence begin.
        seq_lens: int32 `[num_seqs]`, stored tokens of each, those of this step included; 0 for padding.
        block_table: int32 `[num_seqs, blocks]`.
        sinks: float32 `[heads]`, if HAS_SINKS.
        scale: of the scores: to base 2, or to multiples of the cap if HAS_SOFTCAP.
        softcap: of scores to base 2.
        num_seqs: sequences, padding included.
        num_chunks: chunks that there is room for.
        query_token_stride: of query.
        query_head_stride: of query.
        block_stride: of keys and of values.
        slot_stride: likewise.
        head_stride: likewise.
        scale_stride: from block to block, of the scales.
        table_stride: of block_table.
        GROUPS: query heads to a KV head.
        KEY_DIM: dimensions of queries and keys.
        VALUE_DIM: dimensions of values.
        KEY_PAD: a power of two, at least KEY_DIM.
        VALUE_PAD: likewise.
        BLOCK_SIZE: tokens in a block.
        ROWS: rows of a tile, a power of two.
        TILE: keys that are computed at once, a power of two; has nothing to do with the size of a block.
        CHUNK: keys of a chunk, a multiple of TILE.
        WINDOW: tokens that a token attends to, itself included; 0 is all before it.
        HAS_SOFTCAP: whether scores are capped.
        HAS_SINKS: whether there are sinks.
        SINGLE: whether this is the launch for sequences of one token; the other one is for those of several.
        DIRECT: whether results go to `out`: there is one chunk, or all of them are gone over by the same program.
        FP8: whether keys and values are codes of 8 bits, with scales.
        UPCAST: multiply in float32: the interpreter takes bfloat16 for whole numbers.
    """
    TOKENS: tl.constexpr = ROWS // GROUPS
    tile = 0
    if SINGLE:
        # Heads of one key lie side by side: those programs are at work at about the same time.
        kv_head = tl.program_id(0)
        sequence = tl.program_id(1)
        num_heads = tl.num_programs(0) * GROUPS
    else:
        place = tl.program_id(0)
        kv_head = tl.program_id(1)
        num_heads = tl.num_programs(1) * GROUPS
        sequence = 0
        after = num_seqs
        while sequence + 1 < after:
            middle = (sequence + after) // 2
            is_before = tl.load(cu_q + middle) // TOKENS + middle <= place
            sequence = tl.where(is_before, middle, sequence)
            after = tl.where(is_before, after, middle)
        tile = place - (tl.load(cu_q + sequence) // TOKENS + sequence)
    row_begin = tl.load(cu_q + sequence)
    length = tl.load(cu_q + sequence + 1) - row_begin
    seq_len = tl.load(seq_lens + sequence)
    first = tile * TOKENS
    if (first >= length) | ((length == 1) != SINGLE):
        return
    context = seq_len - length
    # The keys that any token of the tile attends to; none if these are padding.
    begin = 0
    end = tl.minimum(context + tl.minimum(first + TOKENS, length), seq_len)
    if WINDOW > 0:
        begin = tl.maximum(context + first + 1 - WINDOW, 0)
    if not DIRECT and begin // CHUNK + tl.program_id(2) >= (end + CHUNK - 1) // CHUNK:
        return

    rows = tl.arange(0, ROWS)
    token = first + rows // GROUPS
    head = kv_head * GROUPS + rows % GROUPS
    in_use = (rows < TOKENS * GROUPS) & (token < length)
    position = context + token
    key_dims = tl.arange(0, KEY_PAD)
    value_dims = tl.arange(0, VALUE_PAD)
    token_index = (row_begin + token).to(tl.int64)
    q = tl.load(
        query + (token_index * query_token_stride + head * query_head_stride)[:, None] + key_dims[None, :],
        mask=in_use[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)
    table = block_table + sequence.to(tl.int64) * table_stride

    in_out = in_use[:, None] & (value_dims < VALUE_DIM)[None, :]
    first_chunk, last_chunk, step = 0, 1, 1  # all keys at once
    if not DIRECT:
        first_chunk = begin // CHUNK + tl.program_id(2)
        last_chunk = (end + CHUNK - 1) // CHUNK
        step = tl.num_programs(2)
    for chunk in range(first_chunk, last_chunk, step):
        low = begin
        high = end
        if not DIRECT:
            low = tl.maximum(begin, chunk * CHUNK)
            high = tl.minimum(end, (chunk + 1) * CHUNK)
        best, total, result = _attend_keys(
            q,
            keys,
            values,
            key_scales,
            value_scales,
            table,
            position,
            low,
            high,
            scale,
            softcap,
            kv_head,
            block_stride,
            slot_stride,
            head_stride,
            scale_stride,
            KEY_DIM,
            VALUE_DIM,
            KEY_PAD,
            VALUE_PAD,
            BLOCK_SIZE,
            ROWS,
            TILE,
            WINDOW,
            HAS_SOFTCAP,
            FP8,
            UPCAST,
        )
        if DIRECT:
            sink = best
            if HAS_SINKS:
                sink = tl.load(sinks + head, mask=in_use, other=0.0)
            result = _finish(result, best, total, sink, HAS_SINKS)
            to = out + ((token_index * num_heads + head) * VALUE_DIM)[:, None] + value_dims[None, :]
            tl.store(to, result.to(out.dtype.element_ty), mask=in_out)
        else:
            index = (sequence.to(tl.int64) * num_heads + head) * num_chunks + chunk
            tl.store(partial_values + (index * VALUE_DIM)[:, None] + value_dims[None, :], result, mask=in_out)
            tl.store(partial_sums + index * 2, best, mask=in_use)
            tl.store(partial_sums + index * 2 + 1, total, mask=in_use)


@triton.jit(do_not_specialize=["num_chunks"], do_not_specialize_on_alignment=_STEP_TENSORS)
def combine_kernel(
    out,
    partial_values,
    partial_sums,
    cu_q,
    seq_lens,
    sinks,
    num_chunks,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FOLDED: tl.constexpr,
):
    """Folds the chunks of a sequence of one token, some at once, from the first to the last: grid `(num_seqs, heads)`.

    Arguments as for `attention_kernel`; `num_chunks` is what there is room for, and FOLDED, a power of two, how many are added up at once.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    row_begin = tl.load(cu_q + sequence)
    if tl.load(cu_q + sequence + 1) - row_begin != 1:
        return
    begin = 0
    end = tl.load(seq_lens + sequence)
    if WINDOW > 0:
        begin = tl.maximum(end - WINDOW, 0)
    first = begin // CHUNK
    last = (end + CHUNK - 1) // CHUNK
    value_dims = tl.arange(0, VALUE_PAD)[None, :]
    in_use = value_dims < VALUE_DIM
    row = sequence.to(tl.int64) * tl.num_programs(1) + head
    best = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    result = tl.zeros([1, VALUE_PAD], tl.float32)
    # From a multiple of FOLDED on, so that which chunks are added up at once depends on nothing but the sequence.
    for start in range(first // FOLDED * FOLDED, last, FOLDED):
        chunk = start + tl.arange(0, FOLDED)
        stored = (chunk >= first) & (chunk < last)
        index = row * num_chunks + chunk
        scores = tl.load(partial_sums + index * 2, mask=stored, other=float("-inf"))
        sums = tl.load(partial_sums + index * 2 + 1, mask=stored, other=0.0)
        parts = tl.load(partial_values + (index * VALUE_DIM)[:, None] + value_dims, mask=stored[:, None] & in_use, other=0.0)
        largest = tl.maximum(best, tl.max(scores, 0))
        finite = tl.where(largest == float("-inf"), 0.0, largest)
        before = tl.exp2(best - finite)
        now = tl.exp2(scores - finite)
        result = result * before[:, None] + tl.sum(parts * now[:, None], 0)[None, :]
        total = total * before + tl.sum(sums * now, 0)
        best = largest
    sink = best
    if HAS_SINKS:
        sink = tl.full([1], 0.0, tl.float32) + tl.load(sinks + head)
    result = _finish(result, best, total, sink, HAS_SINKS)
    to = out + ((row_begin.to(tl.int64) * tl.num_programs(1) + head) * VALUE_DIM) + value_dims
    tl.store(to, result.to(out.dtype.element_ty), mask=in_use)


@triton.jit(do_not_specialize_on_alignment=(*_STEP_TENSORS, *_SCALES))
def write_kernel(
    keys,
    values,
    key_scales,
    value_scales,
    new_keys,
    new_values,
    slots,
    block_stride,
    slot_stride,
    head_stride,
    scale_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
):
    """Stores one token's keys and values of one layer: grid `(T,)`.

    Args:
        keys: the pool's, as for `attention_kernel`.
        values: likewise.
        key_scales: likewise.
        value_scales: likewise.
        new_keys: `[T, HEADS, KEY_DIM]`, contiguous in the last dimension.
        new_values: `[T, HEADS, VALUE_DIM]`, likewise.
        slots: int64 `[T]`, block times BLOCK_SIZE plus the place in it; -1 stores nothing.
        block_stride: of the pool.
        slot_stride: likewise.
        head_stride: likewise.
        scale_stride: likewise.
        key_token_stride: of new_keys.
        key_head_stride: likewise.
        value_token_stride: of new_values.
        value_head_stride: likewise.
        HEADS: KV heads.
        HEADS_PAD: a power of two, at least HEADS.
        KEY_DIM: as for `attention_kernel`, like the rest.
        VALUE_DIM: likewise.
        KEY_PAD: likewise.
        VALUE_PAD: likewise.
        BLOCK_SIZE: likewise.
        FP8: likewise.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    heads = tl.arange(0, HEADS_PAD)[:, None]
    at = slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * slot_stride + heads * head_stride
    scale_at = slot // BLOCK_SIZE * scale_stride + heads * BLOCK_SIZE + slot % BLOCK_SIZE
    dims = tl.arange(0, KEY_PAD)[None, :]
    in_use = (heads < HEADS) & (dims < KEY_DIM)
    new = tl.load(new_keys + token * key_token_stride + heads * key_head_stride + dims, mask=in_use)
    if FP8:
        codes, scales = round_fp8_heads(new, in_use)
        tl.store(keys + at + dims, codes, mask=in_use)
        tl.store(key_scales + scale_at, scales, mask=heads < HEADS)
    else:
        tl.store(keys + at + dims, new.to(keys.dtype.element_ty), mask=in_use)
    dims = tl.arange(0, VALUE_PAD)[None, :]
    in_use = (heads < HEADS) & (dims < VALUE_DIM)
    new = tl.load(new_values + token * value_token_stride + heads * value_head_stride + dims, mask=in_use)
    if FP8:
        codes, scales = round_fp8_heads(new, in_use)
        tl.store(values + at + dims, codes, mask=in_use)
        tl.store(value_scales + scale_at, scales, mask=heads < HEADS)
    else:
        tl.store(values + at + dims, new.to(values.dtype.element_ty), mask=in_use)


IS_INTERPRETED = not isinstance(attention_kernel, triton.JITFunction)
"""Decided by TRITON_INTERPRET when this module is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Parameters of one launch of `attention_kernel`.

    Attributes:
        rows: of a tile; 16 is the least that a matrix product has.
        tile: keys that are computed at once.
        warps: of 32 threads, for one program.
        stages: of the pipeline that loads keys ahead of their use.
        programs: of a launch for sequences of one token, if these have so many chunks: a few for each processor of a large chip.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    programs: int = 1024


FOLDED_CHUNKS = 16
"""Chunks that `combine_kernel` adds up at once: one after the other, each would be waited for."""
# By the most bytes of one head of one key. With mma instructions, stages less one are as many tiles as are being loaded; with one
# buffer, a tile would only be asked for when the one before it has been computed.
_SINGLE = {
    256: Launch(rows=16, tile=64, warps=4, stages=3),
    512: Launch(rows=16, tile=32, warps=4, stages=3),
}
_SEVERAL = {
    256: Launch(rows=128, tile=64, warps=8, stages=3),
    512: Launch(rows=64, tile=32, warps=8, stages=2),
}
# Exact products of float32 are made of many instructions: with more rows or fewer warps, registers do not suffice.
_SINGLE_FLOAT32 = {
    256: Launch(rows=16, tile=64, warps=4, stages=3),
    512: Launch(rows=16, tile=32, warps=8, stages=3),
    1024: Launch(rows=16, tile=16, warps=8, stages=3),
}
_SEVERAL_FLOAT32 = {
    512: Launch(rows=32, tile=32, warps=8, stages=2),
    1024: Launch(rows=32, tile=16, warps=8, stages=2),
}


def choose_launch(*, single: bool, groups: int, key_dim: int, value_dim: int, itemsize: int) -> Launch:
    """Parameters by what a kernel is compiled for. They fit the shared memory of all chips from compute capability 8.0 on; not tuned yet.

    Args:
        single: for sequences of one token.
        groups: query heads to a KV head.
        key_dim: dimensions of keys.
        value_dim: dimensions of values.
        itemsize: bytes of an element.
    """
    row_bytes = max(16, padded(max(key_dim, value_dim))) * itemsize
    halves, wide = (_SINGLE, _SINGLE_FLOAT32) if single else (_SEVERAL, _SEVERAL_FLOAT32)
    launches = wide if itemsize == 4 else halves
    launch = launches[min(most for most in launches if row_bytes <= most)]
    return replace(launch, rows=max(launch.rows, padded(groups)))


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def write(
    keys: torch.Tensor,
    values: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    slots: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Stores keys and values of a step's tokens.

    Args:
        keys: of one layer, `[num_blocks, block_size, kv_heads, dim]`, contiguous in the last dimension.
        values: with the same strides.
        new_keys: `[T, kv_heads, key_dim]`; heads and dimensions may be fewer than the pool's.
        new_values: `[T, kv_heads, value_dim]`.
        slots: int64 `[T]`; -1 stores nothing.
        scales: of keys and of values that are codes of 8 bits (uint8); see `LayerKV`.
    """
    new_keys, new_values = dense_rows(new_keys), dense_rows(new_values)
    tokens, heads, key_dim = new_keys.shape
    value_dim = new_values.shape[2]
    if tokens == 0:
        return
    write_kernel[(tokens,)](
        keys,
        values,
        *(scales or (keys, values)),  # pointers that nobody follows
        new_keys,
        new_values,
        slots,
        *keys.stride()[:3],
        scales[0].stride(0) if scales is not None else 0,
        *new_keys.stride()[:2],
        *new_values.stride()[:2],
        HEADS=heads,
        HEADS_PAD=padded(heads),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEY_PAD=padded(key_dim),
        VALUE_PAD=padded(value_dim),
        BLOCK_SIZE=keys.shape[1],
        FP8=scales is not None,
        enable_fp_fusion=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How scores become weights; see `AttentionOptions`. Compiled into the kernels, but for `scale`, `softcap` and the sinks' numbers."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: StepRows,
    scores: Scores,
    *,
    kv_heads: int,
    value_dim: int,
    chunk: int,
    launch: Launch | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Attention of all rows over the pool. Sizes of grids and buffers depend only on the shapes of the arguments.

    Args:
        query: `[T, heads, key_dim]`.
        keys: of one layer, `[num_blocks, block_size, kv_heads, dim]`, contiguous in the last dimension.
        values: with the same strides.
        rows: which keys belong to which tokens.
        scores: what becomes of scores.
        kv_heads: heads of keys and values that are in use, from the first on.
        value_dim: dimensions of values that are in use.
        chunk: keys that one program goes over for a sequence of one token, a power of two.
        launch: instead of what would be chosen.
        scales: of keys and of values that are codes of 8 bits (uint8); see `LayerKV`.

    Returns:
        `[T, heads, value_dim]`. Rows of padding are zeros.
    """
    query = dense_rows(query)
    tokens, heads, key_dim = query.shape
    num_seqs, width = rows.block_table.shape
    out = query.new_empty(tokens, heads, value_dim)
    if tokens == 0:
        return out
    block_size, groups = keys.shape[1], heads // kv_heads
    sinks = scores.sinks if scores.sinks is not None else out  # a pointer that nobody follows, aligned like all that torch reserves
    chunks = -(-width * block_size // chunk)
    shape = {
        "VALUE_DIM": value_dim,
        "VALUE_PAD": max(16, padded(value_dim)),
        "CHUNK": chunk,
        "WINDOW": scores.window,
        "HAS_SINKS": scores.sinks is not None,
    }
    scale, softcap = score_factors(scores)
    for single in (True,) if rows.only_single else (True, False):
        chosen = launch or choose_launch(single=single, groups=groups, key_dim=key_dim, value_dim=value_dim, itemsize=query.dtype.itemsize)
        direct = not single or chunks == 1
        partial_values, partial_sums = out, out
        if not direct:
            partial_values = query.new_empty(num_seqs, heads, chunks, value_dim, dtype=torch.float32)
            partial_sums = query.new_empty(num_seqs, heads, chunks, 2, dtype=torch.float32)
        tiles = num_seqs if single else tokens // (chosen.rows // groups) + num_seqs
        # The more sequences, the fewer share one: each that finds nothing to do takes time to begin.
        programs = 1 if direct else min(chunks, max(1, chosen.programs // (tiles * kv_heads)))
        attention_kernel[(kv_heads, tiles, programs) if single else (tiles, kv_heads, programs)](
            out,
            partial_values,
            partial_sums,
            query,
            keys,
            values,
            *(scales or (keys, values)),
            rows.cu_q,
            rows.seq_lens,
            rows.block_table,
            sinks,
            scale,
            softcap,
            num_seqs,
            chunks,
            *query.stride()[:2],
            *keys.stride()[:3],
            scales[0].stride(0) if scales is not None else 0,
            rows.block_table.stride(0),
            **shape,
            GROUPS=groups,
            KEY_DIM=key_dim,
            KEY_PAD=max(16, padded(key_dim)),
            BLOCK_SIZE=block_size,
            ROWS=chosen.rows,
            TILE=min(chosen.tile, chunk),
            HAS_SOFTCAP=bool(scores.softcap),
            SINGLE=single,
            DIRECT=direct,
            FP8=scales is not None,
            UPCAST=IS_INTERPRETED and query.dtype == torch.bfloat16,
            num_warps=chosen.warps,
            num_stages=chosen.stages,
            enable_fp_fusion=True,
        )
        if not direct:
            combine_kernel[(num_seqs, heads)](
                out,
                partial_values,
                partial_sums,
                rows.cu_q,
                rows.seq_lens,
                sinks,
                chunks,
                **shape,
                FOLDED=FOLDED_CHUNKS,
                enable_fp_fusion=True,
            )
    return out


def score_factors(scores: Scores) -> tuple[float, float]:
    """`scale` and `softcap` of `attention_kernel`."""
    if scores.softcap:
        return scores.scale / scores.softcap, scores.softcap * _LOG2_E
    return scores.scale * _LOG2_E, 0.0


def dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same, contiguous in its last dimension."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
