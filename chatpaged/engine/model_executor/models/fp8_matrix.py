"""Matrices of weights stored as numbers of 8 bits, with a scale for each output. Triton is imported when it is wanted, never before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from chatpaged.engine.model_executor.attention.triton_paged import fp8_device_problem, kernels_problem
from chatpaged.engine.model_executor.fp8_numbers import fp8_rows

_ROWS_AT_ONCE = 4096
_MAX_TRIAL_ERROR = 0.02
"""Of the largest result; rounding to bfloat16 gives a third of that at most."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix `[outputs, inputs]`.

    Attributes:
        codes: uint8 `[outputs, inputs]`, the codes of `torch.float8_e4m3fn`.
        scales: float32 `[outputs]`; a row's numbers are its codes' times its scale.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, weights: torch.Tensor) -> Fp8Matrix:
        """Rounds a matrix `[outputs, inputs]` of any floating type, on its device."""
        # Some rows at a time: what is computed on the way is float32.
        codes, scales = zip(*(fp8_rows(rows) for rows in torch.split(weights, _ROWS_AT_ONCE)), strict=True)
        return cls(torch.cat([part.view(torch.uint8) for part in codes]), torch.cat(scales).squeeze(-1))

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.codes.nbytes + self.scales.nbytes

    def numbers(self) -> torch.Tensor:
        """The matrix that it stands for, float32 `[outputs, inputs]`."""
        return self.codes.view(torch.float8_e4m3fn).float() * self.scales.unsqueeze(1)

    def to(self, device: torch.device) -> Fp8Matrix:
        """The same on a device."""
        return Fp8Matrix(self.codes.to(device), self.scales.to(device))

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x W' + bias` for x `[rows, inputs]`, of the type of x; sums are float32."""
        from chatpaged.engine.model_executor.models import fp8_product_kernels  # noqa: PLC0415

        result: torch.Tensor = fp8_product_kernels.product(x, self.codes, self.scales, bias)
        return result


def fp8_matrix_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why products with such matrices cannot be computed, or None.

    Args:
        device: where.
        dtype: of activations.
    """
    return kernels_problem(device, dtype) or fp8_device_problem(device) or _trial(device, dtype)


@cache
def _trial(device: torch.device, dtype: torch.dtype) -> str | None:
    """Runs the kernels and compares what they compute with the formula: they are trusted on no device unseen."""
    try:
        error = max(_trial_error(device, dtype, rows) for rows in (1, 70))
    except Exception as problem:  # noqa: BLE001 - whatever is missing
        return f"its kernels do not run here: {(str(problem).strip() or type(problem).__name__).splitlines()[0]}"
    return None if error < _MAX_TRIAL_ERROR else f"its kernels are wrong here, by {error:.2g}"


def _trial_error(device: torch.device, dtype: torch.dtype, rows: int) -> float:
    """How far a product is from its formula, as a part of the largest result. Neither inputs nor outputs fill tiles."""
    generator = torch.Generator().manual_seed(1)
    x, weights = (torch.randn(count, 1048, generator=generator).to(device, dtype) for count in (rows, 40))
    bias = torch.randn(40, generator=generator).to(device, dtype)
    matrix = Fp8Matrix.of(weights)
    # In float64: on some devices products of float32 are not exact.
    expected = x.double() @ matrix.numbers().double().T + bias.double()
    difference = (matrix.product(x, bias).double() - expected).abs().max() / expected.abs().max()
    return float(difference) if bool(difference.isfinite()) else torch.inf
