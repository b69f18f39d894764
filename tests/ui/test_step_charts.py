from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged.engine_view import fold
from chatpaged.ui.widgets.step_charts import apportion, bars, scale


@pytest.mark.parametrize(("series", "top"), [([], 4), ([0], 4), ([4], 4), ([5], 8), ([1, 64, 2], 64), ([65], 128)])
def test_the_scale_moves_in_powers_of_two(series: list[int], top: int) -> None:
    assert scale(series) == top


@given(st.lists(st.integers(0, 500), max_size=200), st.integers(0, 80))
def test_folding_loses_no_peak(series: list[int], width: int) -> None:
    folded = fold(series, width)
    assert len(folded) == (min(len(series), width) if width else len(series))
    assert max(folded, default=0) == max(series, default=0)


def test_few_numbers_stay_as_they_are() -> None:
    assert fold([3, 1, 2], 5) == (3, 1, 2)
    assert fold([1, 9, 2, 3], 2) == (9, 3)


def test_bars_fill_from_below_and_nothing_is_not_something() -> None:
    assert bars([0, 1, 8, 12, 16, 100], 16, 0) == " ▁████"
    assert bars([0, 1, 8, 12, 16, 100], 16, 1) == "   ▄██"
    assert bars([1], 1024, 0) == "▁"


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(0, 100))
def test_shares_fill_the_width(shares: list[float], width: int) -> None:
    columns = apportion(shares, width)
    assert len(columns) == len(shares)
    assert sum(columns) == (width if sum(shares) else 0)
    assert min(columns, default=0) >= 0


def test_the_largest_remainder_is_rounded_up() -> None:
    assert apportion([0.5, 0.3, 0.2], 11) == [6, 3, 2]
