"""Weights in panels stand for the numbers that were packed: nearly, and where a GGUF file held them in as few bits, exactly."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.model_executor.native.interface import F16, F32, GROUP, I4, I8, PANEL
from chatpaged.engine.model_executor.native.library import Team
from chatpaged.engine.model_executor.native.packing import interleave, pack, packed_bytes, unpack

FORMATS = {"fp32": F32, "fp16": F16, "int8": I8, "int4": I4}
SHAPES = [(1, 1), (32, 32), (31, 33), (33, 31), (5, 64), (64, 100), (100, 7), (96, 160)]
HALF_STEP = 2.0**-11
"""Of a number, at most, when it is rounded to half precision."""
KINDS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, (I4, I8)),
    "Q4_1": (gguf.GGMLQuantizationType.Q4_1, (I4,)),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, (I8,)),
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def round_trip(weight: torch.Tensor, layout: int, team: Team) -> torch.Tensor:
    n, k = weight.shape
    data = pack(weight, layout, team)
    assert data.dtype == torch.uint8
    assert data.shape == (packed_bytes(n, k, layout),)
    back = unpack(data, n, k, layout)
    assert (back.shape, back.dtype) == (weight.shape, torch.float32)
    return back


def groups_of(weight: torch.Tensor) -> torch.Tensor:
    """`[n, groups, 32]`, with zeros for what is not there."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % GROUP))
    return padded.view(len(weight), -1, GROUP)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_plain_numbers_come_back(shape: tuple[int, int], team: Team) -> None:
    weight = numbers(*shape)
    assert torch.equal(round_trip(weight, F32, team), weight)
    assert torch.equal(round_trip(weight, F16, team), weight.half().float())
    assert torch.equal(round_trip(weight.bfloat16(), F32, team), weight.bfloat16().float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_are_the_nearest_ones(shape: tuple[int, int], team: Team) -> None:
    weight = numbers(*shape, seed=1)
    groups = groups_of(weight)
    reach = groups.abs().amax(-1, keepdim=True)
    for layout, step in ((I8, reach / 127), (I4, (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15)):
        # Half a step; scale and least number are rounded to halves, which the furthest code feels most.
        allowed = step / 2 + 2 * reach * HALF_STEP + 1e-6
        error = groups_of(round_trip(weight, layout, team) - weight).abs()
        assert bool((error <= allowed).all()), layout


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_what_is_not_there_is_zero(layout: int, team: Team) -> None:
    """Kernels compute whole panels and groups."""
    weight = numbers(33, 40) + 3
    columns = 40 if layout in {F32, F16} else 64
    whole = unpack(pack(weight, layout, team), 2 * PANEL, columns, layout)
    assert not bool(whole[33:].any())
    if layout == I8:  # inputs beyond the last are zero themselves
        assert not bool(whole[:, 40:].any())


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_threads_and_strides_make_no_difference(layout: int, teams: Any) -> None:
    weight = numbers(130, 96)
    packed = pack(weight, layout, teams(1, None))
    assert torch.equal(pack(weight, layout, teams(3, None)), packed)
    assert torch.equal(pack(weight.T.contiguous().T, layout, teams(1, None)), packed)


@pytest.mark.parametrize("layout", [F16, I8, I4])
def test_numbers_beyond_half_precision_become_the_largest(layout: int, team: Team) -> None:
    weight = numbers(8, 64)
    weight[3, 5], weight[4, 40] = 1e30, -1e30
    back = round_trip(weight, layout, team)
    assert bool(back.isfinite().all())
    assert float(back[3, 5]) >= 65504.0
    assert float(back[4, 40]) <= -65504.0
    unharmed = [0, 1, 2, 5, 6, 7]
    assert torch.equal(back[unharmed], round_trip(weight[unharmed], layout, team))


@pytest.mark.parametrize("layout", [I8, I4])
@pytest.mark.parametrize("scale", [1e-3, 1e-7, 1e-30, 1e-42])
def test_small_numbers_stay_small(layout: int, scale: float, team: Team) -> None:
    weight = numbers(4, 64) * scale
    error = (round_trip(weight, layout, team) - weight).abs().max()
    smallest_half = 2.0**-24
    assert float(error) <= max(0.3 * scale, 16 * smallest_half)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(64, 256), (33, 96), (1, 32)], ids=str)
def test_gguf_numbers_come_back_exactly(kind: str, shape: tuple[int, int], team: Team) -> None:
    """As the gguf package makes them: Q4_0 with negative scales and groups that use few codes."""
    quantization, layouts = KINDS[kind]
    for size in (0.02, 1.0, 300.0):
        plain = np.random.default_rng(2).standard_normal(shape).astype(np.float32) * np.float32(size)
        weight = torch.from_numpy(quants.dequantize(quants.quantize(plain, quantization), quantization))
        for layout in layouts:
            assert torch.equal(round_trip(weight, layout, team), weight), (layout, size)


def halves(draw: Any, least: float, most: float) -> np.float16:
    return np.float16(draw(st.floats(least, most, width=16)))


@st.composite
def grouped(draw: Any, kind: str) -> np.ndarray[Any, Any]:
    """Groups as a file could hold them; the code furthest from 0, which says how large the others are, is always used."""
    count = draw(st.integers(1, 12))
    low, high = {"Q4_0": (0, 15), "Q4_1": (0, 15), "Q8_0": (-127, 127)}[kind]
    rows = []
    for _ in range(count):
        scale = np.float32(halves(draw, 2.0**-14, 2.0))
        top = draw(st.integers(low, high)) if draw(st.booleans()) else high
        codes = np.array(draw(st.lists(st.integers(low, max(low, top)), min_size=GROUP, max_size=GROUP)), np.float32)
        if kind == "Q8_0":
            codes[draw(st.integers(0, GROUP - 1))] = draw(st.sampled_from([-127, 127]))
            rows.append(codes * scale)
            continue
        codes[draw(st.integers(0, GROUP - 1))] = 0
        if kind == "Q4_0":
            rows.append((codes - 8) * (scale if draw(st.booleans()) else -scale))
        else:
            rows.append(codes * scale + np.float32(halves(draw, -8.0, 2.0)))
    return np.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_such_groups_come_back_exactly(kind: str, team: Team, data: st.DataObject) -> None:
    groups = torch.from_numpy(data.draw(grouped(kind)))
    if data.draw(st.booleans(), label="zeros beside them"):
        groups[0] = 0
    for weight in (groups, groups.view(1, -1)):
        for layout in KINDS[kind][1]:
            assert torch.equal(round_trip(weight, layout, team), weight)


def test_few_exact_groups_do_not_spoil_the_others(team: Team) -> None:
    """Where numbers were never in 4 bits, a search for how they were made finds nothing, and is given up."""
    weight = numbers(64, 256, seed=5)
    error = (round_trip(weight, I4, team) - weight).abs().max()
    weight[10:12] = 0
    weight[20, :32] = torch.arange(32) % 16
    back = round_trip(weight, I4, team)
    assert not bool(back[10:12].any())
    assert torch.equal(back[20, :32], weight[20, :32])
    assert float((back - weight).abs().max()) <= float(error)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40])
def test_interleave(n: int) -> None:
    gates, ups = numbers(n, 3), numbers(n, 3, seed=1)
    both = interleave(gates, ups)
    rows = -(-n // 16) * 16
    assert both.shape == (2 * rows, 3)
    for i in range(rows):
        place = i // 16 * 32 + i % 16
        for part, at in ((gates, place), (ups, place + 16)):
            assert torch.equal(both[at], part[i] if i < n else torch.zeros(3))
    assert torch.equal(interleave(gates[:, 0], ups[:, 0]), both[:, 0])
