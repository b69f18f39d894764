from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.repetition import RepetitionDetector


def first_notice(tokens: list[int]) -> tuple[int, int] | None:
    """After how many tokens a loop is told, and how often it has come by then."""
    detector = RepetitionDetector()
    for count, token in enumerate(tokens, start=1):
        repeats = detector.append(token)
        if repeats:
            return count, repeats
    return None


def test_e12_a_short_loop_is_told_after_twenty_repeats() -> None:
    assert first_notice([32737, 512, 8139, 28, 216] * 200) == (100, 20)


def test_what_comes_before_a_loop_does_not_matter() -> None:
    assert first_notice([*range(1000, 1050), *[7, 8, 9, 10] * 30]) == (50 + 80, 20)


def test_a_single_token_has_to_fill_a_line() -> None:
    assert first_notice([5] * 63) is None
    assert first_notice([5] * 64) == (64, 64)


@pytest.mark.parametrize("period", [128, 150, 400])
def test_long_loops_are_told_earlier(period: int) -> None:
    count, repeats = first_notice(list(range(period)) * 10) or (0, 0)
    assert (count, repeats) == (max(4 * period, 512), 4)


def test_a_loop_that_ends_is_forgotten() -> None:
    detector = RepetitionDetector()
    told = [detector.append(token) for token in [*[1, 2, 3, 4] * 25, 99, 1, 2, 3, 4, 1, 2, 3, 4]]
    assert told[99] == 25
    assert not any(told[100:])


def test_ordinary_text_is_not_told() -> None:
    # Lists and tables repeat their frame, not their contents.
    rows = [token for i in range(300) for token in (10, 11, 500 + i, 12, 13)]
    assert first_notice(rows) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_every_loop_is_found(before: list[int], loop: list[int]) -> None:
    assert first_notice(before + loop * 100) is not None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=400))
def test_what_is_told_is_true(tokens: list[int]) -> None:
    detector = RepetitionDetector()
    for count, token in enumerate(tokens, start=1):
        repeats = detector.append(token)
        if repeats:
            seen = tokens[:count]
            assert any(seen[-p * repeats :] == seen[-p:] * repeats for p in range(1, count // repeats + 1))
