"""Numbers of 8 bits with a scale for each row, in torch operations: what the Triton kernels compute, by the same formula."""

from __future__ import annotations

import torch

LARGEST = 448.0
LEAST_SCALE = 1e-30
NAN_CODE = 0x7F


def fp8_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds rows to E4M3, so that the largest number of each becomes the largest code; see `attention/fp8_kernels.py`.

    Args:
        rows: `[..., n]`, floating.

    Returns:
        `[..., n]` of `torch.float8_e4m3fn`, and a scale for each row, float32 `[..., 1]`; their products are about the rows. What is not
        finite becomes NaN, and has no part in the scale.
    """
    numbers = rows.float()
    finite = numbers.isfinite()
    largest = numbers.abs().where(finite, 0.0).amax(-1, keepdim=True)
    # Divided by a tensor beside it: a plain number is multiplied with its reciprocal on CUDA, which may be off in the last place.
    scales = (largest / largest.new_full((), LARGEST)).clamp(min=LEAST_SCALE)
    codes = (numbers / scales).clamp(-LARGEST, LARGEST).where(finite, torch.nan)
    return codes.to(torch.float8_e4m3fn), scales
