"""Markdown in pieces: the same text however it comes, and as much work at its end as at its beginning."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.markdown_pieces import BLOCK_LIMIT, Piece, PieceStream, exact_pieces, split_pieces
from chatpaged.shown_text import shown

PARAGRAPH = "Some words that make a paragraph of a **usual** length, with `code` in it.\n\n"
FENCE = "```python\n" + "".join(f"value_{i} = {i}\n" for i in range(400)) + "```\n"
LIST = "".join(f"{i}. item number {i}\n" for i in range(1, 400))
TABLE = "| a | b |\n|---|---|\n" + "".join(f"| {i} | cell |\n" for i in range(400))
LONG = " ".join(["word"] * 4000)
QUOTE = "".join(f"> line {i}\n" for i in range(600))
MIXED = "# Title\n\n" + PARAGRAPH * 9 + FENCE + "\n" + LIST + "\n" + PARAGRAPH + TABLE + "\n" + QUOTE + "\n" + LONG + "\n"


def fed(text: str, step: int) -> tuple[PieceStream, list[Piece]]:
    stream = PieceStream()
    opened = None
    for i in range(0, len(text), step):
        opened = stream.feed(text[i : i + step])
    return stream, [*stream.closed, *((opened,) if opened is not None else ())]


@pytest.mark.parametrize("step", [3, 17, 400])
def test_the_pieces_are_the_text(step: int) -> None:
    _, pieces = fed(MIXED, step)
    assert "".join(piece.source for piece in pieces) == MIXED
    assert "".join(piece.source for piece in split_pieces(MIXED)) == MIXED
    assert "".join(piece.source for piece in exact_pieces(MIXED, pieces)) == MIXED


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.sampled_from(
            ["# t\n", "a\n", "\n", "- x\n", "  y\n", "```\n", "~~~py\n", "> q\n", "| a |\n|---|\n", "1. n\n", "\r\n", "\r", "    c\n", " "]
        ),
        max_size=60,
    ),
    st.integers(1, 9),
)
def test_any_text_in_any_steps_is_kept(parts: list[str], step: int) -> None:
    text = "".join(parts)
    plain = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
    _, pieces = fed(text, step)
    assert "".join(piece.source for piece in pieces) == plain
    assert all(not piece.source.strip() or piece.source in plain for piece in pieces)


@pytest.mark.parametrize("text", [PARAGRAPH * 300, FENCE * 3, LIST * 3, TABLE * 3, QUOTE, LONG, MIXED], ids=lambda text: text[:9].strip())
def test_a_character_costs_the_same_at_the_end_as_at_the_beginning(text: str) -> None:
    text = (text * (20_000 // len(text) + 1))[:20_000]
    stream = PieceStream()
    counts: list[int] = []
    for i in range(0, len(text), 50):  # a frame
        before = stream.parsed
        stream.feed(text[i : i + 50])
        counts.append(stream.parsed - before)
    assert max(counts) <= 2 * (BLOCK_LIMIT + 400)
    tenth = len(counts) // 10
    assert sum(counts[-tenth:]) <= 2 * max(sum(counts[:tenth]), tenth * BLOCK_LIMIT)


def test_an_open_fence_is_code_and_its_closing_line_is_not() -> None:
    stream = PieceStream()
    stream.feed("before\n\n```py\nx = 1\n")
    opened = stream.feed("``")
    assert opened is not None
    assert (opened.code, opened.language) == ("x = 1\n", "py")
    assert stream.closed == [Piece("before\n\n")]
    opened = stream.feed("`\nafter")
    assert stream.closed[1] == Piece("```py\nx = 1\n```\n")
    assert opened == Piece("after")


def test_backticks_within_code_do_not_close_it() -> None:
    stream = PieceStream()
    opened = stream.feed("````\n```\nx\n```\n")
    assert opened is not None
    assert opened.code == "```\nx\n```\n"


def test_pieces_that_were_right_stay_and_cuts_are_mended() -> None:
    text = PARAGRAPH * 40 + LIST + "\n" + PARAGRAPH * 40
    _, pieces = fed(text, 40)
    exact = exact_pieces(text, pieces)
    assert any(piece.continued for piece in pieces)
    assert not any(piece.continued for piece in exact)
    assert any(LIST in piece.source for piece in exact)
    kept = [piece for piece in exact if piece in pieces]
    assert len(kept) >= len(exact) - 1


def test_a_text_that_did_not_grow_like_this_is_split_anew() -> None:
    _, pieces = fed(PARAGRAPH * 40, 40)
    assert "".join(piece.source for piece in exact_pieces("other " + PARAGRAPH * 3, pieces)) == "other " + PARAGRAPH * 3


def test_a_link_that_is_defined_later_is_found() -> None:
    text = "See [this][x].\n\n" + PARAGRAPH * 40 + "[x]: http://example.org\n"
    _, pieces = fed(text, 40)
    assert exact_pieces(text, pieces) == [Piece(text)]


def test_random_cuts_never_lose_a_fence() -> None:
    random_ = random.Random(3)
    for _ in range(8):
        stream, position = PieceStream(), 0
        while position < len(MIXED):
            step = random_.randint(1, 900)
            stream.feed(MIXED[position : position + step])
            position += step
        assert any(piece.source == FENCE for piece in stream.closed)


def test_control_characters_are_signs() -> None:
    assert shown("a\x1b[31mb\x07\x9b\u202ec\td\ne\r\nf\x7f") == "a␛[31mb␇\ufffd\ufffdc\td\ne\nf␡"
    assert shown("plain") == "plain"
