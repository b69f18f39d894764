"""Triton's attention and KV writes, shape by shape, against the formula in float64.

Most of the time goes into compiling, which several processes share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import NO_TIME, Report, describe
from benchmarks.gpu.side_by_side import outcomes

if TYPE_CHECKING:
    from benchmarks.gpu.paged_step import Counts, Shape

DTYPES = ("float16", "bfloat16", "float32")
TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2, "float32": 2e-5}
"""Rounding the result, and the weights of the softmax, to the type; a kernel that is wrong is off by far more."""

BATCHES: dict[str, Counts] = {
    "decodes": (
        (1, 0),
        (1, 1),
        (1, 15),
        (1, 16),
        (0, -1),
        (1, 255),
        (1, 256),
        (1, -1),
        (1, 1023),
        *((1, 37 * n) for n in range(1, 25)),
        (1, 8191),
    ),
    "prompts and chunks": ((300, 0), (17, 0), (64, 500), (0, -1), (16, 1000), (7, 9), (128, 128), (2, 4095)),
    "mixed": ((1, 69), (1, 2000), (200, 0), (1, -1), (33, 777), (0, -1), (1, 0), (19, -1), (5, 300), (1, 511), (1, 512)),
}
_SMALL_BATCHES: dict[str, Counts] = {
    "decodes": ((1, 19), (0, -1), (1, 0), (1, -1), (1, 300)),
    "prompts and chunks": ((9, 0), (4, 20)),
    "mixed": ((1, 19), (7, 3), (0, -1), (3, -1), (1, 0)),
}


def shapes() -> dict[str, Shape]:
    """What kernels are compiled for, by name. With the batches, and in each type, these are 54 shapes."""
    from benchmarks.gpu.paged_step import Shape

    return {
        "Llama 3": Shape(kv_heads=8, groups=4, key_dim=128),
        "Qwen3": Shape(kv_heads=8, groups=2, key_dim=128),
        "no groups": Shape(kv_heads=6, groups=1, key_dim=64),
        "one KV head, 16 groups": Shape(kv_heads=1, groups=16, key_dim=128),
        "7 groups": Shape(kv_heads=2, groups=7, key_dim=64),
        "3 groups, 80 dimensions": Shape(kv_heads=3, groups=3, key_dim=80),
        "96 dimensions": Shape(kv_heads=4, groups=1, key_dim=96),
        "256 dimensions": Shape(kv_heads=2, groups=4, key_dim=256),
        "values narrower than keys": Shape(kv_heads=4, groups=1, key_dim=192, value_dim=128),
        "16 dimensions": Shape(kv_heads=2, groups=2, key_dim=16),
        "window 1": Shape(kv_heads=2, groups=4, key_dim=64, window=1),
        "window 100": Shape(kv_heads=4, groups=2, key_dim=128, window=100),
        "softcap, window, 256 dimensions": Shape(kv_heads=4, groups=2, key_dim=256, softcap=50.0, window=512),
        "softcap": Shape(kv_heads=4, groups=2, key_dim=128, softcap=5.0),
        "sinks, window 128 (gpt-oss)": Shape(kv_heads=8, groups=8, key_dim=64, sinks=True, window=128),
        "sinks, softcap, window": Shape(kv_heads=2, groups=3, key_dim=64, sinks=True, softcap=5.0, window=300),
        "blocks of 256": Shape(kv_heads=2, groups=4, key_dim=128, block_size=256),
        "blocks beyond 2^31 elements": Shape(kv_heads=8, groups=4, key_dim=128, min_elements=2**31 + 2**28),
    }


_SMOKE_SHAPES = ("3 groups, 80 dimensions", "sinks, softcap, window")


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one shape.

    Attributes:
        name: shape, batch and type.
        error: of attention; see `PagedStep.attention_error`.
        wrong: see `PagedStep.wrong_slots`.
        failed: what went wrong instead.
    """

    name: str
    error: float = 0.0
    wrong: int = 0
    failed: str = ""

    @property
    def badness(self) -> float:
        """The error; one that is no number is larger than anything."""
        return math.inf if math.isnan(self.error) else self.error


@dataclass(frozen=True, slots=True)
class Unit:
    """A shape in one type, with all its batches: the compiled kernels are the same for them, or nearly."""

    shape: str
    dtype: str
    device: str
    smoke: bool = False


def check_shape(unit: Unit) -> list[Found]:
    """What comes of each batch."""
    import torch

    from benchmarks.gpu.paged_step import PagedStep

    found = []
    for batch, counts in (_SMALL_BATCHES if unit.smoke else BATCHES).items():
        title = f"{unit.shape}, {batch}, {unit.dtype}"
        try:
            with torch.inference_mode():
                step = PagedStep(shapes()[unit.shape], counts, getattr(torch, unit.dtype), torch.device(unit.device))
                found.append(Found(title, step.attention_error(), step.wrong_slots()))
        except Exception as error:  # noqa: BLE001 - the other shapes do not depend on it
            found.append(Found(title, failed=describe(error)))
    return found


def run(report: Report) -> None:
    """The part of this module."""
    import torch

    from chatpaged.engine.model_executor.attention.triton_paged import triton_problem

    settings = report.settings
    problem = triton_problem(torch.device(settings.device), torch.float16)
    if problem is not None:
        report.leave_out("attention and KV writes", problem)
        return
    names = _SMOKE_SHAPES if settings.smoke else tuple(shapes())
    units = [Unit(name, dtype, settings.device, settings.smoke) for name in names for dtype in DTYPES]
    results: dict[str, list[Found]] = {dtype: [] for dtype in DTYPES}
    for outcome in outcomes(settings, check_shape, units):
        what = f"{outcome.unit.shape} in {outcome.unit.dtype}"
        if outcome.error:
            report.fail(what, RuntimeError(outcome.error))
        elif outcome.result is None:
            report.leave_out(what, NO_TIME)
        else:
            results[outcome.unit.dtype] += outcome.result
            for one in outcome.result:
                _tell(report, one, outcome.unit.dtype)
    for dtype, found in results.items():
        _sum_up(report, dtype, found)


def _tell(report: Report, one: Found, dtype: str) -> None:
    if one.failed:
        report.fail(one.name, RuntimeError(one.failed))
        return
    report.add(f"{one.name}: attention", one.error, "largest error", most=TOLERANCE[dtype], detail=True)
    report.add(f"{one.name}: KV write", one.wrong, "wrong numbers", most=0, detail=True)


def _sum_up(report: Report, dtype: str, results: list[Found]) -> None:
    good = [one for one in results if not one.failed]
    if good:
        worst = max(good, key=lambda one: one.badness)
        note = f"{len(good)} shapes; worst: {worst.name}"
        report.add(f"attention in {dtype}", worst.error, "largest error", most=TOLERANCE[dtype], note=note)
        report.add(f"KV writes in {dtype}", sum(one.wrong for one in good), "wrong numbers", most=0, note=f"{len(good)} shapes")
