"""What a dense decoder does between its matrix products, as Triton kernels: norms, rotation, KV writes, activations.

Imported only where Triton is wanted (`fused_ops.py`), as this module cannot be imported without it.

Each kernel reads what a product has left and writes what the next one reads, once:

```text
qkv product   -> heads_kernel       norms and turns queries and keys, stores keys and values in the pool    -> attention
o product     -> residual_kernel    adds to the residual stream, norms the sum                              -> gate_up product
gate_up       -> activation_kernel  activation(gate) * up                                                   -> down product
down product  -> residual_kernel    adds to the residual stream, norms the sum for the next layer           -> its qkv product
```

Arithmetic is float32, rounded to the model's type where torch operations one after the other would round (`DenseLayer` says where that is),
so both give the same answers. A token's results depend on nothing but the token. Grids depend on nothing but the shapes of tensors.
"""

# No `from __future__ import annotations`: the interpreter does not recognise `tl.constexpr` in a string.

import torch
import triton
import triton.language as tl

from chatpaged.engine.model_executor.attention.fp8_kernels import round_fp8_heads
from chatpaged.engine.model_executor.attention.triton_kernels import padded
from chatpaged.engine.model_executor.kv_cache import LayerKV

MAX_WIDTH = 32_768
"""Of the residual stream: a row is held in registers as a whole."""
_TILE_ELEMENTS = 1024
"""That one program of `heads_kernel` or `activation_kernel` computes, with 4 warps."""
_RESIDUAL_WARPS = {1024: 4, 4096: 8, MAX_WIDTH: 16}
"""By the most elements of a row."""
NORMS = {"none": 0, "head": 1, "full": 2}
_FULL = tl.constexpr(NORMS["full"])
# They lie where they come to lie, from batch to batch: that must not be compiled in.
_STEP_TENSORS = ("positions", "slots")
# A layer's begin anywhere, if blocks are small.
_SCALES = ("key_scales", "value_scales")


@triton.jit
def _times(x, factor, weight):
    """Product of numbers that are normed with `factor`, and norm weights; rounded once if the weights are wide, else twice."""
    return (x * factor).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)


@triton.jit
def _normed(x, weights, columns, in_use, eps, WIDTH: tl.constexpr):
    """RMS norm of one row, x is zero where it is not in use."""
    weight = tl.load(weights + columns, mask=in_use, other=0.0)
    return _times(x, tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps), weight)


@triton.jit
def residual_kernel(
    total,
    normed,
    x,
    change,
    change_norm,
    norm,
    eps,
    scale,
    x_stride,
    change_stride,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    HAS_CHANGE: tl.constexpr,
    HAS_CHANGE_NORM: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Adds to one token's residual, and norms the sum: grid `(T,)`.

    Args:
        total: `[T, WIDTH]`, contiguous: the sum; if HAS_CHANGE.
        normed: `[T, WIDTH]`, contiguous: its norm; if HAS_NORM.
        x: `[T, WIDTH]`, contiguous in its last dimension.
        change: likewise, what is added; if HAS_CHANGE.
        change_norm: `[WIDTH]`, weights of its norm before it is added; if HAS_CHANGE_NORM.
        norm: `[WIDTH]`, weights of the sum's norm; if HAS_NORM.
        eps: of the norms.
        scale: factor of what is added, if HAS_SCALE.
        x_stride: of its tokens.
        change_stride: likewise.
        WIDTH: of the residual stream.
        PAD: a power of two, at least WIDTH.
        HAS_CHANGE: whether anything is added.
        HAS_CHANGE_NORM: whether it is normed first.
        HAS_SCALE: whether it is multiplied first.
        HAS_NORM: whether the sum is normed.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PAD)
    in_use = columns < WIDTH
    kind = x.dtype.element_ty
    result = tl.load(x + token * x_stride + columns, mask=in_use, other=0.0).to(tl.float32)
    if HAS_CHANGE:
        added = tl.load(change + token * change_stride + columns, mask=in_use, other=0.0).to(tl.float32)
        if HAS_CHANGE_NORM:
            added = _normed(added, change_norm, columns, in_use, eps, WIDTH).to(kind).to(tl.float32)
        if HAS_SCALE:
            added = (added * scale).to(kind).to(tl.float32)
        rounded = (result + added).to(kind)
        tl.store(total + token * WIDTH + columns, rounded, mask=in_use)
        result = rounded.to(tl.float32)
    if HAS_NORM:
        result = _normed(result, norm, columns, in_use, eps, WIDTH)
        tl.store(normed + token * WIDTH + columns, result.to(kind), mask=in_use)


@triton.jit
def activation_kernel(out, gate_up, gate_up_stride, WIDTH: tl.constexpr, TILE: tl.constexpr, IS_SILU: tl.constexpr):
    """`activation(gate) * up` of a part of one token: grid `(T, parts)`.

    Args:
        out: `[T, WIDTH]`, contiguous.
        gate_up: `[T, 2 WIDTH]`, the gate first, contiguous in its last dimension.
        gate_up_stride: of its tokens.
        WIDTH: of the MLP.
        TILE: of a part, a power of two.
        IS_SILU: else it is GELU, approximated with tanh.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    in_use = columns < WIDTH
    kind = out.dtype.element_ty
    row = gate_up + token * gate_up_stride
    gate = tl.load(row + columns, mask=in_use, other=0.0).to(tl.float32)
    up = tl.load(row + WIDTH + columns, mask=in_use, other=0.0).to(tl.float32)
    inner = gate
    if not IS_SILU:  # x (1 + tanh(u)) / 2 is x / (1 + e^-2u)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    shrunk = tl.exp(-tl.abs(inner))  # never too large for a float
    activated = (gate * tl.where(inner < 0, shrunk, 1.0) / (1.0 + shrunk)).to(kind).to(tl.float32)
    tl.store(out + token * WIDTH + columns, (activated * up).to(kind), mask=in_use)


@triton.jit
def _whole_factor(row, begin, end, WIDTH: tl.constexpr, TILE: tl.constexpr, eps):
    """What all heads of a token together are normed with; they lie from `begin` to `end`, or nobody wants to know."""
    squares = tl.zeros([TILE], tl.float32)
    for start in range(begin, end, TILE):
        columns = start + tl.arange(0, TILE)
        x = tl.load(row + columns, mask=columns < end, other=0.0).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 0) / WIDTH + eps)


@triton.jit(do_not_specialize_on_alignment=(*_STEP_TENSORS, *_SCALES))
def heads_kernel(
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    qkv,
    q_norm,
    k_norm,
    cos,
    sin,
    positions,
    slots,
    eps,
    qkv_stride,
    block_stride,
    slot_stride,
    head_stride,
    scale_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAD: tl.constexpr,
    TURNED: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    FP8: tl.constexpr,
):
    """Queries, keys and values of some heads of one token, normed, turned and stored: grid `(T, tiles of heads)`.

    Each element of a head that is turned is read together with the one that it is turned with, half of the turned dimensions away.

    Args:
        queries: `[T, HEADS, DIM]`, contiguous.
        keys: of one layer, `[num_blocks, BLOCK_SIZE, KV_HEADS, DIM]` with the strides below.
        values: likewise.
        key_scales: float32 `[num_blocks, KV_HEADS, BLOCK_SIZE]`, contiguous in a block, if FP8: keys times these are the keys.
        value_scales: likewise.
        qkv: `[T, (HEADS + 2 KV_HEADS) DIM]`, contiguous in its last dimension.
        q_norm: `[DIM]`, or `[HEADS DIM]` if all heads are normed together; if NORM is not 0.
        k_norm: `[DIM]`, or `[KV_HEADS DIM]`.
        cos: `[positions, TURNED / 2]`, contiguous; its type says where products are rounded.
        sin: likewise.
        positions: int64 `[T]`.
        slots: int64 `[T]`, block times BLOCK_SIZE plus the place in it; -1 stores nothing.
        eps: of the norms.
        qkv_stride: of its tokens.
        block_stride: of keys and of values.
        slot_stride: likewise.
        head_stride: likewise.
        scale_stride: from block to block, of the scales.
        HEADS: of queries.
        KV_HEADS: of keys and of values.
        DIM: of a head.
        PAD: a power of two, at least DIM.
        TURNED: dimensions of a head that are turned, the first ones; 0 is none.
        NORM: 0 is none, 1 a norm of each head, 2 one of all heads together.
        BLOCK_SIZE: tokens in a block.
        TILE: heads that are computed at once, a power of two.
        FP8: whether keys and values are stored as codes of 8 bits, with scales.
    """
    HALF: tl.constexpr = TURNED // 2
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    heads = first + tl.arange(0, TILE)[:, None]
    dims = tl.arange(0, PAD)[None, :]
    is_query = heads < HEADS
    is_turned = heads < HEADS + KV_HEADS
    in_use = (heads < HEADS + 2 * KV_HEADS) & (dims < DIM)
    kind = qkv.dtype.element_ty
    row = qkv + token * qkv_stride
    x = tl.load(row + heads * DIM + dims, mask=in_use, other=0.0).to(tl.float32)
    other = x
    other_dims = tl.where(dims < HALF, dims + HALF, dims - HALF)
    turned = is_turned & (dims < TURNED)
    if TURNED > 0:
        other = tl.load(row + heads * DIM + other_dims, mask=turned, other=0.0).to(tl.float32)
    if NORM > 0:
        place = 0 * heads
        if NORM == _FULL:
            q_end = tl.where(first < HEADS, HEADS * DIM, 0)
            k_end = tl.where((first < HEADS + KV_HEADS) & (first + TILE > HEADS), (HEADS + KV_HEADS) * DIM, 0)
            q_factor = _whole_factor(row, 0, q_end, HEADS * DIM, TILE * PAD, eps)
            k_factor = _whole_factor(row, HEADS * DIM, k_end, KV_HEADS * DIM, TILE * PAD, eps)
            factor = tl.where(is_query, q_factor, k_factor)
            place = tl.where(is_query, heads, heads - HEADS) * DIM
        else:
            factor = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        weights = tl.where(is_query, q_norm, k_norm) + place
        in_norm = is_turned & (dims < DIM)
        x = tl.where(is_turned, _times(x, factor, tl.load(weights + dims, mask=in_norm, other=0.0)).to(kind).to(tl.float32), x)
        if TURNED > 0:
            other = _times(other, factor, tl.load(weights + other_dims, mask=turned, other=0.0)).to(kind).to(tl.float32)
    if TURNED > 0:
        table = tl.load(positions + token) * HALF + tl.where(dims < HALF, dims, dims - HALF)
        cosine = tl.load(cos + table, mask=dims < TURNED, other=0.0)
        sine = tl.load(sin + table, mask=dims < TURNED, other=0.0)
        straight = (x * cosine.to(tl.float32)).to(cosine.dtype).to(tl.float32)
        across = (other * sine.to(tl.float32)).to(sine.dtype).to(tl.float32)
        x = tl.where(turned, tl.where(dims < HALF, straight - across, straight + across), x)
    result = x.to(kind)
    tl.store(queries + (token * HEADS + heads) * DIM + dims, result, mask=in_use & is_query)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    at = slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * slot_stride + dims
    key_head = heads - HEADS
    value_head = key_head - KV_HEADS
    if FP8:
        codes, scales = round_fp8_heads(result, in_use)
        scale_at = slot // BLOCK_SIZE * scale_stride + slot % BLOCK_SIZE
        tl.store(key_scales + scale_at + key_head * BLOCK_SIZE, scales, mask=is_turned & (key_head >= 0))
        is_value = (value_head >= 0) & (value_head < KV_HEADS)
        tl.store(value_scales + scale_at + value_head * BLOCK_SIZE, scales, mask=is_value)
    else:
        codes = result.to(keys.dtype.element_ty)
    tl.store(keys + at + key_head * head_stride, codes, mask=in_use & is_turned & (key_head >= 0))
    tl.store(values + at + value_head * head_stride, codes, mask=in_use & (value_head >= 0))


def add_and_norm(
    x: torch.Tensor,
    change: torch.Tensor | None,
    change_norm: torch.Tensor | None,
    norm: torch.Tensor | None,
    eps: float,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds to the residual stream, and norms the sum.

    Args:
        x: `[T, width]`, contiguous in its last dimension.
        change: likewise, what is added; None is nothing.
        change_norm: `[width]`, weights of its norm before it is added; None is no norm.
        norm: `[width]`, weights of the sum's norm; None is no norm.
        eps: of the norms.
        scale: factor of what is added.

    Returns:
        The sum, and its norm: `[T, width]` each. Without a change or a norm they are the tensors that they are made of.
    """
    tokens, width = x.shape
    total = x if change is None else x.new_empty(x.shape)
    normed = total if norm is None else x.new_empty(x.shape)
    if tokens == 0 or (change is None and norm is None):
        return total, normed
    pad = padded(width)
    residual_kernel[(tokens,)](
        total,
        normed,
        x,
        x if change is None else change,  # a pointer that nobody follows, like those below
        x if change_norm is None else change_norm,
        x if norm is None else norm,
        eps,
        scale,
        x.stride(0),
        x.stride(0) if change is None else change.stride(0),
        WIDTH=width,
        PAD=pad,
        HAS_CHANGE=change is not None,
        HAS_CHANGE_NORM=change_norm is not None,
        HAS_SCALE=scale != 1.0,
        HAS_NORM=norm is not None,
        num_warps=residual_warps(width),
        enable_fp_fusion=True,
    )
    return total, normed


def residual_warps(width: int) -> int:
    """Warps of a program of `residual_kernel`."""
    return _RESIDUAL_WARPS[min(most for most in _RESIDUAL_WARPS if width <= most)]


def activate(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """`activation(gate) * up`.

    Args:
        gate_up: `[T, 2 width]`, the gate first, contiguous in its last dimension.
        activation: "silu" or "gelu_tanh".

    Returns:
        `[T, width]`.
    """
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    if tokens == 0:
        return out
    tile = min(_TILE_ELEMENTS, padded(width))
    activation_kernel[(tokens, -(-width // tile))](
        out, gate_up, gate_up.stride(0), WIDTH=width, TILE=tile, IS_SILU=activation == "silu", enable_fp_fusion=True
    )
    return out


def store_heads(
    qkv: torch.Tensor,
    stored: LayerKV,
    slots: torch.Tensor,
    positions: torch.Tensor,
    *,
    num_heads: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    norm: str,
    eps: float,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """Norms and turns queries and keys, and stores keys and values.

    Args:
        qkv: `[T, (num_heads + 2 kv_heads) dim]`, contiguous in its last dimension.
        stored: keys and values of the layer, contiguous in the last dimension.
        slots: int64 `[T]`, where keys and values of each token go; -1 is nowhere.
        positions: int64 `[T]`.
        num_heads: of queries.
        q_norm: weights of the queries' norm, `[dim]`, or `[num_heads dim]` if norm is "full".
        k_norm: likewise of the keys'.
        norm: "none", "head" or "full", see `DenseConfig.qk_norm`.
        eps: of the norms.
        rotation: cosine and sine of all positions, `[positions, rotary_dim / 2]` each; None turns nothing.

    Returns:
        The queries, `[T, num_heads, dim]`.
    """
    tokens = qkv.shape[0]
    keys, values, scales = stored.keys, stored.values, stored.scales
    block_size, kv_heads, dim = keys.shape[1:]
    queries = qkv.new_empty(tokens, num_heads, dim)
    if tokens == 0:
        return queries
    heads = num_heads + 2 * kv_heads
    tile = heads_tile(heads, dim)
    cos, sin = (qkv, qkv) if rotation is None else rotation  # pointers that nobody follows, like those below
    heads_kernel[(tokens, -(-heads // tile))](
        queries,
        keys,
        values,
        *(scales or (qkv, qkv)),
        qkv,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        cos,
        sin,
        positions,
        slots,
        eps,
        qkv.stride(0),
        *keys.stride()[:3],
        scales[0].stride(0) if scales is not None else 0,
        HEADS=num_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        PAD=padded(dim),
        TURNED=0 if rotation is None else 2 * cos.shape[1],
        NORM=NORMS[norm],
        BLOCK_SIZE=block_size,
        TILE=tile,
        FP8=scales is not None,
        enable_fp_fusion=True,
    )
    return queries


def heads_tile(heads: int, dim: int) -> int:
    """Heads that one program of `heads_kernel` computes."""
    return max(1, min(padded(heads), _TILE_ELEMENTS // padded(dim)))
