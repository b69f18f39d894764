"""Where words stand in a text; amounts; what is chosen from; the cheat sheet."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chatpaged.text_matches import has_words, match_spans


def test_words_are_found_wherever_they_stand() -> None:
    assert match_spans("Yeast and YEAST", "yeast") == [(0, 5), (10, 15)]
    assert match_spans("banana", "ana") == [(1, 6)]
    assert match_spans("a.b axb", "a.b") == [(0, 3)]
    assert match_spans("nothing", "  ") == []
    assert match_spans("sourdough", "dough sour") == [(0, 9)]


def test_all_words_have_to_occur() -> None:
    assert has_words("Bread without kneading", "KNEAD bread")
    assert not has_words("Bread without kneading", "bread yeast")
    assert has_words("anything", "")


@given(st.text(alphabet="abAB .*", max_size=30), st.text(alphabet="ab .*", max_size=8))
def test_places_are_in_order_apart_and_hold_the_words(text: str, looked_for: str) -> None:
    spans = match_spans(text, looked_for)
    assert all(begin < end for begin, end in spans)
    assert all(one[1] < other[0] for one, other in pairwise(spans))
    inside = "\n".join(text[begin:end] for begin, end in spans).casefold()
    for word in looked_for.casefold().split():
        assert (word in text.casefold()) == (word in inside)
