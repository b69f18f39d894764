"""Lines and their rows: nothing is lost, nothing is too wide, and what is copied is what was written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.content import Content

from chatpaged.markdown_pieces import parser, split_pieces
from chatpaged.ui.widgets.code_block import coloured_lines
from chatpaged.ui.widgets.flow import Flow
from chatpaged.ui.widgets.flow_lines import FlowLine, tabbed_line, wrap_positions
from chatpaged.ui.widgets.flow_tables import fair_widths
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
    assert fair_widths([9, 30, 30], 30, least=[9, 3, 12]) == [9, 9, 12]
    assert fair_widths([5, 30], 20, least=[2, 18]) == [2, 18]


def table_lines(source: str) -> Sequence[FlowLine]:
    (piece,) = split_pieces(source)
    (segment,) = render_piece(parser(), piece)
    assert isinstance(segment, TextSegment)
    return segment.lines


def rows_of(lines: Sequence[FlowLine], width: int) -> list[str]:
    rows = [line.row(width, i) for line in lines for i in range(line.height(width))]
    return [(row.lead.plain + row.text.plain).rstrip() for row in rows]


PRICES = """\
| Dish | Price (each) | When |
|---|---:|---|
| Porridge with berries | 4.50 | mornings only |
| Bread | 12.00 | all day, evenings too |"""


def test_columns_of_a_table_are_as_wide_as_their_longest_words() -> None:
    assert rows_of(table_lines(PRICES), 60)[0] == "Dish                  │ Price (each) │ When"
    assert all(cell_len(row) <= 32 for row in rows_of(table_lines(PRICES), 32))
    text = " ".join(rows_of(table_lines(PRICES), 32))
    for word in ("Porridge", "berries", "mornings", "evenings", "(each)", "12.00"):
        assert word in text
    assert "┼" in text


def test_a_table_that_is_too_narrow_for_its_words_is_shown_as_records() -> None:
    lines = table_lines(PRICES)
    assert rows_of(lines, 24) == [
        "────────────────────────",
        "Dish: Porridge with",
        "  berries",
        "Price (each): 4.50",
        "When: mornings only",
        "────────────────────────",
        "Dish: Bread",
        "Price (each): 12.00",
        "When: all day,",
        "  evenings too",
        "────────────────────────",
    ]
    assert "\n".join(line.copy(0, None) for line in lines) == PRICES.replace("|---|---:|---|", "| --- | ---: | --- |")
    inner = rows_of(table_lines("- a\n\n  | b | c |\n  |---|---|\n  | unbreakable | words |"), 18)
    assert inner[-4:] == ["  ────────────────", "  b: unbreakable", "  c: words", "  ────────────────"]
    assert rows_of(table_lines("| considerable | headers |\n|---|---|"), 14) == ["considerable", "headers", "─" * 14]
    assert "日本" in rows_of(table_lines("| a | b |\n|---|---|\n| 日本語日本語日本語 | 日本語日本語 |"), 20)[2], "has no words"


@settings(deadline=None)
@given(st.lists(st.lists(st.text(st.sampled_from("ab cd  é1"), max_size=24), min_size=3, max_size=3), max_size=4), st.integers(12, 70))
def test_tables_are_never_too_wide_and_never_split_a_word_that_fits(cells: list[list[str]], width: int) -> None:
    rows = [["Name", "Value", "Note"], *([cell.strip() for cell in row] for row in cells)]
    source = "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * 3, *rows[1:]])
    found = rows_of(table_lines(source), width)
    assert all(cell_len(row) <= width for row in found)
    words = [word for row in rows for cell in row for word in cell.split()]
    shown = {part.rstrip(":") for row in found for part in row.replace("│", " ").split()}
    assert all(word in shown for word in words if len(word) <= width - 2)


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


def test_a_line_that_is_exchanged_for_a_longer_one_moves_those_below() -> None:
    async def scenario() -> None:
        flow = Flow([FlowLine(Content(text)) for text in ("ab", "one two", "end")])

        class FlowApp(App[None]):
            def compose(self) -> ComposeResult:
                yield flow

        async with FlowApp().run_test(size=(10, 8)) as pilot:
            await pilot.pause()

            def rows() -> list[str]:
                return [flow.render_line(y).text.rstrip() for y in range(flow.size.height)]

            assert rows() == ["ab", "one two", "end"]
            flow.exchange_line(0, FlowLine(Content("a head that wraps")))
            await pilot.pause()
            assert rows() == ["a head", "that wraps", "one two", "end"]
            flow.exchange_line(0, FlowLine(Content("cd")))
            await pilot.pause()
            assert rows() == ["cd", "one two", "end"]
            flow.exchange_line(1, FlowLine(Content("three")))
            await pilot.pause()
            assert rows() == ["cd", "three", "end"]

    asyncio.run(scenario())
