from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.reasoning import ReasoningMarkers, split_reasoning
from chatpaged.engine.reasoning_splitter import ReasoningSplitter
from tests.byte_tokenizer import byte_tokenizer

THINK = ReasoningMarkers("<think>", "</think>")
HARMONY = ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>final<|message|>", answer_start="<|channel|>final<|message|>")


def split(pieces: list[str], markers: ReasoningMarkers | None = THINK, *, inside: bool = False) -> tuple[str, str, bool]:
    """Reasoning, answer, and whether there was reasoning at all."""
    splitter = ReasoningSplitter(markers, inside=inside)
    parts = [splitter.append(piece) for piece in pieces] + [splitter.flush()]
    return "".join(part.reasoning for part in parts), "".join(part.answer for part in parts), splitter.has_reasoning


CASES = [
    ("plan</think>\n\n42", True, ("plan", "42", True)),  # F1
    ("<think>\nplan\n</think>\n\n42", False, ("plan", "42", True)),
    ("\n<think>plan</think>42", False, ("plan", "42", True)),
    ("<think></think>42", False, ("", "42", True)),
    ("\n\nHello", False, ("", "\n\nHello", False)),  # E16
    ("<thin air>", False, ("", "<thin air>", False)),
    ("the tag <think>x</think> is text", False, ("", "the tag <think>x</think> is text", False)),
    ("a</think>b</think>c", True, ("a", "b</think>c", True)),
    ("<think>one <b>two</b> </thin", False, ("one <b>two</b> </thin", "", True)),
    ("<think>\nplan</think>42", True, ("plan", "42", True)),  # the prompt has it already, but some models write it again
    ("never closed ", True, ("never closed", "", True)),
    ("<think>  two  words \n\n three</think> four ", False, ("two  words \n\n three", " four ", True)),
    ("", True, ("", "", True)),
    ("  ", False, ("", "  ", False)),
]


@pytest.mark.parametrize(("text", "inside", "expected"), CASES)
def test_replies(text: str, inside: bool, expected: tuple[str, str, bool]) -> None:
    assert split([text], inside=inside) == expected
    assert split(list(text), inside=inside) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "/", "\n", " ", "word", "é"]), max_size=12), st.booleans(), st.data())
def test_pieces_do_not_matter(parts: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, inside=inside) == split([text], inside=inside)


def test_nothing_is_held_back_without_need() -> None:
    splitter = ReasoningSplitter(THINK, inside=True)
    shown = [splitter.append(piece).reasoning for piece in ("one", " two", "</", "b>", " x")]
    assert shown == ["one", " two", "", "</b>", " x"]
    shown = [splitter.append(piece).answer for piece in ("</think>", "\n", " 4", "2 ")]
    assert shown == ["", "", " 4", "2 "]


def test_channels() -> None:
    assert split(["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>final<|message|>", "42"], HARMONY) == ("hm", "42", True)
    assert split(["<|channel|>", "final", "<|message|>", "42"], HARMONY) == ("", "42", False)


def test_without_markers_all_is_answer() -> None:
    assert split(["<think>", "a</think>"], None) == ("", "<think>a</think>", False)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", "</th", "\n", " ", "word", "é", "<"]), max_size=10), st.booleans())
def test_while_it_comes_in_and_as_a_whole_are_the_same(parts: list[str], inside: bool) -> None:
    tokenizer = byte_tokenizer()
    ids = list("".join(parts).encode())
    whole = split_reasoning(ids, ReasoningMarkers("<think>", "</think>", tuple(b"<think>"), tuple(b"</think>")), tokenizer, inside=inside)
    reasoning, answer, _ = split(parts, inside=inside)
    assert (reasoning, answer) == (whole.reasoning, whole.text)
