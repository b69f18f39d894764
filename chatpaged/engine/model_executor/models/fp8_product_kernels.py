"""Products with weights of 8 bits as Triton kernels: activations stay of 16 or 32 bits, codes become numbers when they are read.

Imported only where Triton is wanted (`fp8_matrix.py`), as this module cannot be imported without it.

```text
out [rows, outputs] = (x [rows, inputs]  codes' [inputs, outputs]) * scales [outputs] + bias [outputs]

a program      some rows, some outputs, all inputs, or one of several parts of them
parts          few rows of few outputs are too few programs: their inputs are split, and the sums added up from the first to the last
```

Codes are numbers of E4M3, which 16 bits hold exactly, so nothing is rounded but the result. Grids, and how inputs are split, depend on
nothing but the shapes of tensors.
"""

# No `from __future__ import annotations`: the interpreter does not recognise `tl.constexpr` in a string.

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from chatpaged.engine.model_executor.attention.fp8_kernels import read_fp8_as
from chatpaged.engine.model_executor.attention.triton_kernels import IS_INTERPRETED, dense_rows

_ENOUGH_PROGRAMS = 256
_LEAST_TILES = 2
"""Of inputs, for one program: with fewer, starting it and adding up take longer than what it does."""
_MAX_PARTS = 8
_MAX_PARTIAL_ROWS = 512
"""Rows of a tile times parts: sums of parts are written and read again."""
_COMBINED = 1024
"""Outputs that one program of `combine_kernel` adds up."""


@triton.jit(do_not_specialize=["num_rows"])
def product_kernel(
    out,
    partial,
    x,
    codes,
    scales,
    bias,
    num_rows,
    num_outputs,
    num_inputs,
    row_stride,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of the product, or of one part of it: grid `(tiles of rows, tiles of outputs, PARTS)`.

    Args:
        out: `[num_rows, num_outputs]`, contiguous; if PARTS is 1.
        partial: float32 `[PARTS, num_rows, num_outputs]`, contiguous; if it is not.
        x: `[num_rows, num_inputs]`, contiguous in its last dimension.
        codes: uint8 `[num_outputs, num_inputs]`, contiguous.
        scales: float32 `[num_outputs]`.
        bias: `[num_outputs]`, if HAS_BIAS.
        num_rows: see above.
        num_outputs: likewise.
        num_inputs: likewise.
        row_stride: of x.
        ROWS: of a tile, a power of two.
        OUTPUTS: likewise.
        INPUTS: that are multiplied at once, a power of two.
        PARTS: of the inputs.
        HAS_BIAS: whether something is added.
        UPCAST: multiply in float32: the interpreter takes bfloat16 for whole numbers.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    per_part = tl.cdiv(tl.cdiv(num_inputs, INPUTS), PARTS) * INPUTS
    begin = part * per_part
    end = tl.minimum(begin + per_part, num_inputs)
    in_rows = row < num_rows
    in_outputs = output < num_outputs
    inputs = tl.arange(0, INPUTS)
    x_row = x + row.to(tl.int64)[:, None] * row_stride
    code_row = codes + output.to(tl.int64)[None, :] * num_inputs
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(begin, end, INPUTS):
        at = start + inputs
        in_part = at < end
        a = tl.load(x_row + at[None, :], mask=in_rows[:, None] & in_part[None, :], other=0.0)
        b = tl.load(code_row + at[:, None], mask=in_outputs[None, :] & in_part[:, None], other=0)
        if UPCAST:
            a = a.to(tl.float32)
        total = tl.dot(a, read_fp8_as(b, a.dtype), total, input_precision="ieee")
    in_use = in_rows[:, None] & in_outputs[None, :]
    if PARTS == 1:
        total = total * tl.load(scales + output, mask=in_outputs, other=0.0)[None, :]
        if HAS_BIAS:
            total += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
        to = out + row.to(tl.int64)[:, None] * num_outputs + output[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=in_use)
    else:
        to = partial + (part.to(tl.int64) * num_rows + row)[:, None] * num_outputs + output[None, :]
        tl.store(to, total, mask=in_use)


@triton.jit(do_not_specialize=["num_rows"])
def combine_kernel(out, partial, scales, bias, num_rows, num_outputs, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Adds up the parts of one row: grid `(num_rows, tiles of outputs)`. Arguments as for `product_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    in_use = output < num_outputs
    total = tl.zeros([OUTPUTS], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(partial + (part * num_rows + row) * num_outputs + output, mask=in_use, other=0.0)
    total = total * tl.load(scales + output, mask=in_use, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=in_use, other=0.0).to(tl.float32)
    tl.store(out + row * num_outputs + output, total.to(out.dtype.element_ty), mask=in_use)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Parameters of one launch of `product_kernel`.

    Attributes:
        rows: of a tile; 16 is the least that a matrix product has.
        outputs: of a tile.
        inputs: that are multiplied at once.
        warps: of 32 threads, for one program.
        stages: of the pipeline that loads ahead of use.
        parts: of the inputs.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    parts: int = 1


# By the most rows; the last for all beyond. Not tuned yet.
_LAUNCHES = {
    16: Launch(rows=16, outputs=32, inputs=256, warps=4, stages=4),
    32: Launch(rows=32, outputs=64, inputs=128, warps=4, stages=4),
    64: Launch(rows=64, outputs=64, inputs=128, warps=4, stages=3),
    128: Launch(rows=128, outputs=64, inputs=64, warps=8, stages=3),
}
_MANY_ROWS = Launch(rows=128, outputs=128, inputs=64, warps=8, stages=3)
# Exact products of float32 are made of many instructions, for which registers have to suffice.
_FLOAT32 = {16: Launch(rows=16, outputs=32, inputs=64, warps=4, stages=3)}
_MANY_ROWS_FLOAT32 = Launch(rows=32, outputs=64, inputs=32, warps=4, stages=2)


def choose_launch(rows: int, outputs: int, inputs: int, itemsize: int) -> Launch:
    """Parameters by the shape of a product. They fit the shared memory of all chips from compute capability 8.9 on.

    Args:
        rows: of activations.
        outputs: rows of weights.
        inputs: columns of both.
        itemsize: bytes of an activation.
    """
    table, others = (_FLOAT32, _MANY_ROWS_FLOAT32) if itemsize == 4 else (_LAUNCHES, _MANY_ROWS)
    launch = next((launch for most, launch in table.items() if rows <= most), others)
    programs = -(-rows // launch.rows) * -(-outputs // launch.outputs)
    parts = 1
    most = min(_MAX_PARTS, _MAX_PARTIAL_ROWS // launch.rows, inputs // (launch.inputs * _LEAST_TILES))
    while 2 * parts <= most and programs * parts < _ENOUGH_PROGRAMS:
        parts *= 2
    return replace(launch, parts=parts)


def product(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, launch: Launch | None = None
) -> torch.Tensor:
    """`x (codes * scales)' + bias`.

    Args:
        x: `[rows, inputs]`.
        codes: uint8 `[outputs, inputs]`, contiguous, E4M3.
        scales: float32 `[outputs]`.
        bias: `[outputs]`, or None.
        launch: instead of what would be chosen.

    Returns:
        `[rows, outputs]`, of the type of x; computed in float32.
    """
    x = dense_rows(x)
    (rows, inputs), outputs = x.shape, codes.shape[0]
    out = x.new_empty(rows, outputs)
    if rows == 0:
        return out
    chosen = launch or choose_launch(rows, outputs, inputs, x.dtype.itemsize)
    parts = chosen.parts
    partial = out if parts == 1 else x.new_empty(parts, rows, outputs, dtype=torch.float32)
    added = out if bias is None else bias  # a pointer that nobody follows
    product_kernel[(-(-rows // chosen.rows), -(-outputs // chosen.outputs), parts)](
        out,
        partial,
        x,
        codes,
        scales,
        added,
        rows,
        outputs,
        inputs,
        x.stride(0),
        ROWS=chosen.rows,
        OUTPUTS=chosen.outputs,
        INPUTS=chosen.inputs,
        PARTS=parts,
        HAS_BIAS=bias is not None,
        UPCAST=IS_INTERPRETED and x.dtype == torch.bfloat16,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
        enable_fp_fusion=True,
    )
    if parts > 1:
        combine_kernel[(rows, -(-outputs // _COMBINED))](
            out, partial, scales, added, rows, outputs, OUTPUTS=_COMBINED, PARTS=parts, HAS_BIAS=bias is not None, enable_fp_fusion=True
        )
    return out
