"""Products on packed weights: right for every instruction set, and each row the same to the last bit whatever is computed beside it."""

from __future__ import annotations

import ctypes

import pytest
import torch

from chatpaged.engine.model_executor.native.interface import F16, F32, GROUP, I4, I8, PANEL, Linear
from chatpaged.engine.model_executor.native.library import NativeError, Team, instruction_sets, native_problem
from chatpaged.engine.model_executor.native.packing import pack, unpack
from tests.model_executor.native.conftest import Teams

SETS = instruction_sets() if native_problem() is None else ()
FORMATS = {"fp32": F32, "fp16": F16, "int8": I8, "int4": I4}
SHAPES = [(32, 32), (1, 1), (70, 100), (31, 33), (96, 31), (160, 288)]
MAX_ROWS = 40
WHOLE_TOP = 32512.0
ROUNDING = 2.0**-22
"""Of the sum of all magnitudes that take part: float32 sums of some hundred numbers."""


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def apply(team: Team, packed: torch.Tensor, layout: int, n: int, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product, and nothing but zeros (and biases) behind it."""
    rows, k = x.shape
    out = torch.full((rows, -(-n // PANEL) * PANEL), torch.nan)
    layer = Linear(layout, n, k, packed.data_ptr(), bias.data_ptr() if bias is not None else None)
    assert team.library.cp_linear_apply(team.handle, ctypes.byref(layer), rows, x.data_ptr(), out.data_ptr()) == 0
    if bias is None and bool(x.isfinite().all()):
        assert not bool(out[:, n:].any())
    return out[:, :n]


def in_16_bits(x: torch.Tensor) -> torch.Tensor:
    """What is left of activations: whole numbers with a scale for each group of 32."""
    rows, k = x.shape
    groups = torch.nn.functional.pad(x, (0, -k % GROUP)).view(rows, -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    whole = (groups * torch.where(largest > 0, torch.tensor(WHOLE_TOP).div(largest), 0)).round()
    return (whole.double() * (largest / WHOLE_TOP).double()).view(rows, -1)[:, :k]


def check_product(team: Team, layout: int, n: int, x: torch.Tensor) -> None:
    k = x.shape[1]
    packed = pack(random(n, k, seed=n * k), layout, team)
    weight = unpack(packed, n, k, layout).double()
    seen = x.double() if layout in {F32, F16} else in_16_bits(x)
    error = (apply(team, packed, layout, n, x).double() - seen @ weight.T).abs()
    # int4 adds up codes and least numbers by themselves, which are of other sizes than the weights.
    reach = GROUP * x.abs().amax() if layout == I4 else 0.0
    assert bool((error <= ROUNDING * (x.double().abs() @ weight.abs().T + reach)).all())


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int], layout: int, name: str, teams: Teams) -> None:
    n, k = shape
    x = random(MAX_ROWS, k, seed=9)
    x[3] = 0
    x[4] *= 1e4
    x[5, ::2] *= 1e-6
    check_product(teams(1, name), layout, n, x)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shape", [(70, 100), (160, 288)], ids=str)
def test_rows_do_not_depend_on_others(shape: tuple[int, int], layout: int, name: str, teams: Teams) -> None:
    n, k = shape
    packed, x = pack(random(n, k), layout, teams(1, name)), random(MAX_ROWS, k, seed=1)
    alone = torch.cat([apply(teams(1, name), packed, layout, n, x[row : row + 1].clone()) for row in range(MAX_ROWS)])
    for rows in range(2, MAX_ROWS + 1):
        first = (rows * 7) % (MAX_ROWS - rows + 1)
        together = apply(teams(1, name), packed, layout, n, x[first : first + rows].contiguous())
        assert torch.equal(together, alone[first : first + rows]), rows
    for threads in (2, 3):
        for rows in (1, 5, MAX_ROWS):
            assert torch.equal(apply(teams(threads, name), packed, layout, n, x[:rows].contiguous()), alone[:rows]), threads
    # Numbers beside them that are none do no harm either.
    x[1::2] = torch.nan
    assert torch.equal(apply(teams(1, name), packed, layout, n, x)[::2], alone[::2])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_bias(layout: int, name: str, teams: Teams) -> None:
    packed, x = pack(random(40, 50), layout, teams(1, name)), random(3, 50, seed=1)
    bias = torch.nn.functional.pad(random(40, seed=2), (0, 24))
    plain, biased = (apply(teams(1, name), packed, layout, 40, x, added) for added in (None, bias))
    torch.testing.assert_close(biased, plain + bias[:40])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_none(wrong: float, layout: int, name: str, teams: Teams) -> None:
    """An answer from nonsense would not be noticed."""
    packed = pack(random(40, 70), layout, teams(1, name))
    for place in (0, 7, 33, 69):
        x = random(2, 70, seed=1)
        x[1, place] = wrong
        out = apply(teams(1, name), packed, layout, 40, x)
        assert bool(out[0].isfinite().all())
        assert not bool(out[1].isfinite().any()), place


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("size", [1e-37, 1e-40, 1e-44, 1e36])
def test_very_small_and_large_activations(size: float, name: str, teams: Teams) -> None:
    x = random(3, 64, seed=1) * size
    for layout in FORMATS.values():
        packed = pack(random(32, 64), layout, teams(1, name))
        out, expected = apply(teams(1, name), packed, layout, 32, x), x.double() @ unpack(packed, 32, 64, layout).double().T
        assert float((out.double() - expected).abs().max()) <= 1e-3 * float(expected.abs().max()) + 1e-35


def test_best_set_is_the_default_and_others_are_refused(teams: Teams) -> None:
    assert SETS[-1] == "plain"
    assert teams(1, None).instruction_set == SETS[0]
    assert [teams(1, name).instruction_set for name in SETS] == list(SETS)
    with pytest.raises(NativeError, match="2 threads with SSE9 instructions cannot be had here"):
        Team(2, "SSE9")


@pytest.mark.parametrize("bytes_read", [0, 4, 1000, 1 << 20])
def test_reading(bytes_read: int, teams: Teams) -> None:
    data, total = torch.ones(bytes_read // 4 + 1), ctypes.c_float()
    for name in SETS:
        team = teams(2, name)
        team.library.cp_read_bandwidth(team.handle, data.data_ptr(), bytes_read, ctypes.byref(total))
        assert total.value == bytes_read // 4 // 2 // 64 * 64 * 2
