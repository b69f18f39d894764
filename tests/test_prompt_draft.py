"""What is typed and not sent yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged.pasted_text import clean_text, one_line
from chatpaged.prompt_draft import Pasted, PromptDraft

PARTS = st.lists(st.one_of(st.text(min_size=1), st.builds(Pasted, st.text()))).map(tuple)


@given(PARTS)
def test_a_draft_comes_back_from_its_text(parts: tuple[str | Pasted, ...]) -> None:
    draft = PromptDraft(parts)
    assert PromptDraft.from_json(draft.to_json()) == draft
    assert "\n" not in draft.to_json()


@pytest.mark.parametrize("line", ["hello", '"hello"', "{}", "[1]", '[{"other": 1}]', "[[]]", "null", "12"])
def test_what_is_no_draft_is_text(line: str) -> None:
    assert PromptDraft.from_json(line) == PromptDraft.of(line)


def test_blank() -> None:
    assert PromptDraft().is_blank
    assert PromptDraft((" \n", Pasted("\t"))).is_blank
    assert not PromptDraft((Pasted("x"),)).is_blank


def test_joined_and_without_prefix() -> None:
    draft, other = PromptDraft.of("a"), PromptDraft((Pasted("b"),))
    assert draft.joined(other).text == "a\nb"
    assert draft.joined(PromptDraft()) == draft
    assert PromptDraft().joined(other) == other
    assert PromptDraft(("/system x", Pasted("y"))).without_prefix(8).text == "xy"
    assert PromptDraft(("/", Pasted("y"))).without_prefix(1) == PromptDraft((Pasted("y"),))
    assert other.without_prefix(1) == other


def test_pasted_pieces_stay_pieces_when_the_text_is_changed() -> None:
    draft = PromptDraft(("see ", Pasted("one\ntwo"), " and ", Pasted("three")))
    changed = draft.changed_to("look: one\ntwo, three!")
    assert changed.parts == ("look: ", Pasted("one\ntwo"), ", ", Pasted("three"), "!")
    assert draft.changed_to("nothing").parts == ("nothing",)
    assert draft.changed_to("").parts == ()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n"),
        ("plain \t text ünïcödé 👩‍💻", "plain \t text ünïcödé 👩‍💻"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bcx", "x"),
        ("a\x08b\x00\x7f", "a␈b␀␡"),
        ("end\x1b", "end␛"),
        ("\u202eevil\u2066", "evil"),
        ("\ufdd0\ud800", "\ufffd\ufffd"),
    ],
)
def test_text_from_elsewhere_is_made_harmless(text: str, clean: str) -> None:
    assert clean_text(text) == clean


def test_notices_have_one_line() -> None:
    assert one_line("a\nb\x1b[1m\tc") == "a b c"
