"""Markers of thinking are found in whatever names them, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken

from chatpaged.engine.reasoning import ReasoningMarkers, find_reasoning_markers, split_reasoning, starts_inside
from chatpaged.engine.tokenizer import Tokenizer
from tests.byte_tokenizer import byte_tokenizer

HARMONY_END = "<|end|><|start|>assistant<|channel|>final<|message|>"


def with_tokens(*texts: str) -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._tokenizer.to_str())
    inner.add_tokens([AddedToken(text, normalized=False) for text in texts])
    return Tokenizer(inner)


@pytest.mark.parametrize(
    ("source", "tokens", "pair"),
    [
        ("{% if '</think>' in content %}{{ content.split('</think>')[-1] }}{% endif %}<think>\n", (), ("<think>", "</think>")),
        ("{{ content.split('</think>')[-1] }}", (), ("<think>", "</think>")),
        ("{% if add_generation_prompt %}<|start|>assistant\n<think>\n{% endif %}", (), ("<think>", "</think>")),
        ("{%- if add_generation_prompt -%}{{- 'Assistant: [THINK]\\n' -}}{%- endif -%}", (), ("[THINK]", "[/THINK]")),
        (None, ("<think>", "</think>"), ("<think>", "</think>")),
        ("{{ content }}", ("<tool>", "</think>", "</tool>", "<think>"), ("<think>", "</think>")),
        ("First draft your thinking: [THINK]your thoughts[/THINK]", (), ("[THINK]", "[/THINK]")),
        (None, ("[/THINK]", "[THINK]"), ("[THINK]", "[/THINK]")),
        ("<reasoning>{{ r }}</reasoning>", (), ("<reasoning>", "</reasoning>")),
        ("{{ '<seed:think>' ~ r ~ '</seed:think>' }}", (), ("<seed:think>", "</seed:think>")),
        (None, ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("<|begin_of_thought|>x<|end_of_thought|>", (), ("<|begin_of_thought|>", "<|end_of_thought|>")),
        ("<|thinking_start|>x<|thinking_end|>", (), ("<|thinking_start|>", "<|thinking_end|>")),
        ("<|think|>x<|/think|>", (), ("<|think|>", "<|/think|>")),
        # What the template uses goes before what the tokenizer merely has.
        ("{{ '<reasoning>' }}{{ '</reasoning>' }}", ("<think>", "</think>"), ("<reasoning>", "</reasoning>")),
        ("<|channel|>analysis<|message|>{{ m.thinking }}<|end|>", (), ("<|channel|>analysis<|message|>", HARMONY_END)),
        ("{{ '<|channel>thought\\n<channel|>' }}", (), ("<|channel>thought\n", "<channel|>")),
    ],
)
def test_markers_are_found(source: str | None, tokens: tuple[str, ...], pair: tuple[str, str]) -> None:
    markers = find_reasoning_markers(source, with_tokens(*tokens))
    assert markers is not None
    assert (markers.start, markers.end) == pair


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("{{ message.thinking }}{{ args[thinking] }}", ()),
        ("Use <think> tags", ()),
        (None, ("<think>",)),
        (None, ("</think>", "<thinking>")),
        ("<tool_call>x</tool_call>", ("<tool_call>", "</tool_call>", "<|im_end|>")),
        (None, ()),
    ],
)
def test_nothing_else_is_taken_for_a_marker(source: str | None, tokens: tuple[str, ...]) -> None:
    assert find_reasoning_markers(source, with_tokens(*tokens)) is None


def test_ids_are_single_where_the_tokenizer_has_a_token() -> None:
    markers = find_reasoning_markers(None, with_tokens("<think>", "</think>"))
    assert markers == ReasoningMarkers("<think>", "</think>", (258,), (259,))
    assert find_reasoning_markers("</think>", byte_tokenizer()) == ReasoningMarkers(
        "<think>", "</think>", tuple(b"<think>"), tuple(b"</think>")
    )
    harmony = find_reasoning_markers("<|channel|>analysis", with_tokens("<|channel|>", "<|message|>"))
    assert harmony is not None
    assert harmony.start_ids == (258, *b"analysis", 259)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("<|user|>hi<|assistant|><think>\n", True),  # F1
        ("<|user|>hi<|assistant|><think>", True),
        ("<|user|>hi<|assistant|><think>\n\n</think>\n\n", False),  # thinking switched off
        ("<|user|>hi<|assistant|>", False),
        ("<|user|>what does <think> mean?<|assistant|>", False),
        ("<|user|>what does </think> mean?<|assistant|><think>\n", True),
    ],
)
def test_whether_a_prompt_ends_in_a_block(text: str, inside: bool) -> None:
    assert starts_inside(ReasoningMarkers("<think>", "</think>"), text) is inside


@pytest.mark.starter
def test_the_starter_does_not_think(starter_model: Path) -> None:
    tokenizer = Tokenizer.from_directory(starter_model)
    source = (starter_model / "chat_template.jinja").read_text(encoding="utf-8")
    assert find_reasoning_markers(source, tokenizer) is None


# --- taking replies apart ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "inside", "reasoning", "text"),
    [
        ("plan</think>\n\n42", True, "plan", "42"),  # F1
        ("<think>\nplan\n</think>\n\n42\n", False, "plan", "42\n"),
        ("\n<think>plan</think>42", False, "plan", "42"),
        ("<think></think>\n\n  42", False, "", "  42"),
        ("<think>never closed", False, "never closed", ""),
        ("never closed", True, "never closed", ""),
        ("42", False, "", "42"),
        ("\n\n42 <think> no </think>", False, "", "\n\n42 <think> no </think>"),
        ("a</think>b</think>c", True, "a", "b</think>c"),
        ("<think>again</think>x", True, "again", "x"),
        ("</think>", True, "", ""),
        ("", True, "", ""),
        ("", False, "", ""),
    ],
)
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_replies_are_taken_apart(output: str, inside: bool, reasoning: str, text: str, tokens: bool) -> None:
    tokenizer = with_tokens("<think>", "</think>") if tokens else byte_tokenizer()
    markers = find_reasoning_markers("</think>", tokenizer)
    assert markers is not None
    ids = tuple(tokenizer.encode_parts(tokenizer.split_control(output)))
    split = split_reasoning(ids, markers, tokenizer, inside=inside)
    assert (split.reasoning, split.text) == (reasoning, text)
    assert (*split.reasoning_ids, *split.token_ids) == ids
    assert tokenizer.decode(split.token_ids) == text


def test_model_that_does_not_think() -> None:
    split = split_reasoning(tuple(b"<think>a</think>b"), None, byte_tokenizer())
    assert (split.text, split.reasoning_ids) == ("<think>a</think>b", ())


def test_markers_that_are_hidden_are_found_by_their_ids() -> None:
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._tokenizer.to_str())
    inner.add_special_tokens([AddedToken(text, special=True) for text in ("[THINK]", "[/THINK]")])
    tokenizer = Tokenizer(inner)
    markers = find_reasoning_markers(None, tokenizer)
    split = split_reasoning((258, *b"plan", 259, *b"42"), markers, tokenizer)
    assert (split.reasoning, split.text) == ("plan", "42")


def test_channels() -> None:
    names = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._tokenizer.to_str())
    inner.add_special_tokens([AddedToken(text, special=True) for text in names])
    tokenizer = Tokenizer(inner)
    markers = find_reasoning_markers("<|channel|>analysis", tokenizer)
    output = f"<|channel|>analysis<|message|>plan{HARMONY_END}42"
    ids = tuple(tokenizer.encode_parts(tokenizer.split_control(output)))
    split = split_reasoning(ids, markers, tokenizer)
    assert (split.reasoning, split.text, split.token_ids) == ("plan", "42", tuple(b"42"))


@pytest.mark.starter
@pytest.mark.parametrize("answer", ["42", "\n\n42", ".42", ">42"])
def test_markers_of_several_tokens_beside_other_text(starter_model: Path, answer: str) -> None:
    # The marker's last token may hold the beginning of the answer as well.
    tokenizer = Tokenizer.from_directory(starter_model)
    markers = find_reasoning_markers("</think>", tokenizer)
    ids = tokenizer.encode(f"<think>plan</think>{answer}")
    split = split_reasoning(ids, markers, tokenizer)
    assert (split.reasoning, split.text) == ("plan", answer.lstrip("\n"))
    assert tokenizer.decode(split.token_ids) == answer.lstrip("\n")
