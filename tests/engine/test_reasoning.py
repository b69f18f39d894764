"""Markers of thinking are found in whatever names them, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken

from chatpaged.engine.reasoning import ReasoningMarkers, find_reasoning_markers, starts_inside
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
