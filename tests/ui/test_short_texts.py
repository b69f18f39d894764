from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from chatpaged.amounts import memory_size
from chatpaged.ui.short_texts import fitted, one_line, share, short_count, short_speed


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (99_949, "99.9k"),
        (123_456, "123k"),
        (999_940, "1000k"),
        (4_500_000, "4.5M"),
    ],
)
def test_counts(count: int, text: str) -> None:
    assert short_count(count) == text


@given(st.integers(0, 10**15))
def test_counts_are_short(count: int) -> None:
    assert len(short_count(count)) <= 6


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (720 * 1024, "720 KiB"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (181 * 2**20, "181 MiB"),
        (1.44 * 2**30, "1.4 GiB"),
        (3 * 2**50, "3072 TiB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert memory_size(count) == text


def test_speeds_and_shares() -> None:
    assert [short_speed(speed) for speed in (0, 0.44, 14.25, 128.4, 12_345)] == ["0.0", "0.4", "14.2", "128", "12.3k"]
    assert [share(part) for part in (0, 0.001, 0.004, 0.5, 1)] == ["0%", "<1%", "<1%", "50%", "100%"]


def test_titles_cannot_move_the_cursor() -> None:
    assert one_line("a\x1b[31m\nb\t\u202ec  d\x07") == "a [31m b c d"


@given(st.text(), st.integers(-1, 30))
def test_a_fitted_text_fills_its_cells(text: str, width: int) -> None:
    assert cell_len(fitted(one_line(text), width)) == max(0, width)


def test_what_does_not_fit_ends_in_an_ellipsis() -> None:
    assert [fitted("abcdef", width) for width in (7, 6, 5, 1, 0)] == ["abcdef ", "abcdef", "abcd…", "…", ""]
    assert fitted("日本語", 5) == "日本…"
    assert fitted("日本語", 4) == "日… "
    assert fitted("日本語", 2) == "… "
