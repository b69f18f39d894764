"""Numbers of 8 bits in Triton kernels: E4M3 codes read and made, and heads of keys or values with a scale each.

E4M3 (`torch.float8_e4m3fn`): a sign, 4 bits of exponent with a bias of 7, 3 of fraction; up to 448, no infinity, NaN is 0x7F and 0xFF.

Codes lie in memory as plain bytes. Chips from compute capability 8.9 on convert them with one instruction for two. Triton's interpreter
converts wrongly (rounding, subnormal numbers, NaN), so there it is done bit by bit, by the same functions.

Imported only where Triton is wanted, by other kernels.
"""

# No `from __future__ import annotations`: the interpreter does not recognise `tl.constexpr` in a string.

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)
LEAST_SCALE = tl.constexpr(1e-30)
"""Of a head of zeros; far above the numbers that a chip may take for zero."""
_LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)


@triton.jit
def is_finite(number):
    """Whether float32 numbers are neither NaN nor infinite."""
    return tl.abs(number) <= _LARGEST_FLOAT


_BIT_BY_BIT = tl.constexpr(not isinstance(is_finite, triton.JITFunction))


@triton.jit
def read_fp8(codes):
    """Codes (uint8) as numbers of some floating type, which float32, float16 and bfloat16 all hold exactly."""
    if _BIT_BY_BIT:
        # As float16 with its bias of 15 the same bits are 2^-8 of the number, subnormal ones included.
        code = codes.to(tl.int32)
        bits = ((code & 0x80) << 8) | ((code & 0x7F) << 7)
        number = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        number = tl.where((code & 0x7F) == 0x7F, float("nan"), number)
    else:
        number = codes.to(tl.float8e4nv, bitcast=True)
    return number


@triton.jit
def read_fp8_as(codes, kind: tl.constexpr):
    """Codes (uint8) as numbers of a type."""
    number = read_fp8(codes)
    if kind == tl.bfloat16:
        # Straight from there chips from 9.0 on go by float16, and from that with an instruction for each number, of a slow unit.
        number = number.to(tl.float32)
    return number.to(kind)


@triton.jit
def round_fp8(numbers):
    """The codes (uint8) of float32 numbers: the nearest, of two the even one; the largest for those beyond it; NaN for NaN."""
    within = tl.minimum(tl.maximum(numbers, -LARGEST), LARGEST)
    if _BIT_BY_BIT:
        bits = within.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # The exponent's bias changed, and 20 bits of the fraction rounded off.
        moved = size - (120 << 23)
        normal = (moved + 0x7FFFF + ((moved >> 20) & 1)) >> 20
        # Below 2^-6 there are multiples of 2^-9, which is the last place of float32 numbers at 2^14.
        small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        codes = (tl.where(size < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)).to(tl.uint8)
    else:
        codes = within.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(numbers) >= 0.0, codes, 0x7F).to(tl.uint8)


@triton.jit
def round_fp8_heads(heads, in_use):
    """Codes of one token's heads of keys or values, with the scale that makes the largest number of a head the largest code.

    What is not finite becomes NaN, and has no part in the scale.

    Args:
        heads: `[HEADS, DIMS]`, of any floating type.
        in_use: `[HEADS, DIMS]`, which numbers are there.

    Returns:
        codes: uint8 `[HEADS, DIMS]`.
        scales: float32 `[HEADS, 1]`; codes times these are the numbers.
    """
    numbers = heads.to(tl.float32)
    finite = is_finite(numbers)
    largest = tl.max(tl.where(finite & in_use, tl.abs(numbers), 0.0), 1, keep_dims=True)
    scales = tl.maximum(tl.div_rn(largest, tl.zeros_like(largest) + LARGEST), LEAST_SCALE)
    codes = round_fp8(tl.where(finite, tl.div_rn(numbers, tl.zeros_like(numbers) + scales), float("nan")))
    return codes, scales
