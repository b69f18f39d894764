"""Lines and their rows: nothing is lost, nothing is too wide, and what is copied is what was written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.content import Content

from chatpaged.markdown_pieces import parser, split_pieces
from chatpaged.ui.widgets.code_block import coloured_lines
from chatpaged.ui.widgets.flow_lines import FlowLine, fair_widths, tabbed_line, wrap_positions
from chatpaged.ui.widgets.markdown_lines import CodeSegment, TextSegment, render_piece
from chatpaged.ui.widgets.message_window import KEPT, message_at, wanted

TEXTS = st.text(st.sampled_from("ab cd  日本é\u0301👩 -"), max_size=80)


@settings(deadline=None)
@given(TEXTS, st.integers(4, 30))
def test_rows_fit_and_together_are_the_text(text: str, width: int) -> None:
    line = FlowLine(Content(text), lead=Content("• "))
    rows = [line.row(width, i) for i in range(line.height(width))]
    bounds = [0, *wrap_positions(text, max(width - 2, 4)), len(text)]
    assert bounds == sorted(bounds)
    assert [row.x for row in rows] == bounds[:-1]
    assert "".join(text[start:end] for start, end in pairwise(bounds)) == text
    for row in rows[:-1]:
        assert cell_len(row.text.plain) <= max(width - 2, 4)
    assert rows[0].is_first
    assert not any(row.is_first for row in rows[1:])


def test_words_are_kept_whole_where_they_can_be() -> None:
    assert wrap_positions("one two three", 8) == [8]
    assert wrap_positions("one two", 7) == []
    assert wrap_positions("aaaaaaaaaa", 4) == [4, 8]
    assert wrap_positions("日本語", 4) == [2]


def test_tabs_are_copied_as_tabs() -> None:
    line = tabbed_line("\tif x:\ty")
    assert line.body.plain == "    if x:   y"
    assert line.copy(0, None) == "\tif x:\ty"
    assert line.copy(4, 9) == "if x:"
    assert line.copy(0, 4) == "\t"


def test_columns_share_what_there_is() -> None:
    assert fair_widths([3, 5], 20) == [3, 5]
    assert fair_widths([3, 50, 50], 23) == [3, 10, 10]
    assert fair_widths([9, 9, 9], 3) == [1, 1, 1]


def copied(source: str) -> str:
    found: list[str] = []
    for piece in split_pieces(source):
        for segment in render_piece(parser(), piece):
            if isinstance(segment, TextSegment):
                found += [line.copy(0, None) for line in segment.lines]
            else:
                found.append(segment.code)
    return "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "plain text\nin two lines",
        "- a\n- b\n  - c",
        "1. a\n2. b",
        "7. a\n8. b",
        "> a\n> b",
        "| a | b |\n| --- | ---: |\n| 1 | 2 |",
        "a\n\n---\n\nb",
    ],
)
def test_what_is_copied_from_lists_quotes_and_tables_is_markdown(source: str) -> None:
    assert copied(source) == source


def test_code_within_lists_is_a_block_of_its_own() -> None:
    (piece,) = split_pieces("1. do\n   ```sh\n   ls\n   ```\n2. done")
    first, code, last = render_piece(parser(), piece)
    assert code == CodeSegment("ls", "sh", 3)
    assert isinstance(first, TextSegment)
    assert isinstance(last, TextSegment)
    assert last.lines[0].copy(0, None) == "2. done"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["x = 1", "\ty = '''", "", "'''", "# é 日本", "def f():", "\x1b[0m"]), max_size=12))
def test_colours_change_no_character(lines: list[str]) -> None:
    code = "\n".join(lines)
    found = coloured_lines(code, "python")
    assert [line.copy(0, None) for line in found] == [line.replace("\x1b", "␛") for line in lines or [""]]
    assert all(span.end <= len(line.body.plain) for line in found for span in line.body.spans)


def test_what_is_near_the_view_is_laid_out_and_what_is_far_is_not() -> None:
    heights = [10] * 1000
    first, last = wanted(heights, 5000, 40, 0, 0)
    assert first < 500
    assert last > 504
    assert last - first < 30
    assert wanted(heights, 5000, 40, first, last) == (first, last)
    moved = wanted(heights, 5100, 40, first, last)
    assert moved[0] == first  # not far enough away to be taken down
    far = wanted(heights, 5000 + int(40 * (KEPT + 3)), 40, first, last)
    assert far[0] > first
    assert wanted(heights, 100, 40, first, last)[1] < first
    assert wanted([], 0, 40, 0, 0) == (0, 0)
    assert message_at(heights, 5003) == (500, 3)
    assert message_at([5], 99) == (0, 99)
