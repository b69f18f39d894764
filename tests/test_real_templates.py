"""Token ids are those of transformers' `apply_chat_template` for the real tokenizers of Qwen3, Llama 3.1 and Gemma 3.

Two things differ on purpose and are left out: text that reads like a control token stays text here, and text that begins with a space
is kept apart from the template's line end (both in docs/prompts.md).
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatpaged.chat_template import ChatMessage, ChatTemplate
from chatpaged.engine.prompts import raw_prompt, render_prompt
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.errors import InvalidRequestError
from tests.real_templates import read_template

CODE = 'def f(x: int) -> str:\n    """Doc."""\n\treturn f"{x!r}"  # ok\n\n\nif __name__ == "__main__":\n    f(1)\n'
TEXTS = (
    "hi",
    "Wie geht's? Œuvre, naïve, ﬁ, Å, 한국어, עברית, हिन्दी",
    "日本語の文章です。改行\nあり",
    "😀👩‍👩‍👧‍👦🇫🇷 emoji ☃︎",
    CODE,
    "<h1>Title</h1><table><tr><td>1</td></tr></table><br/> a < b > c &amp; <!-- -->",
    "trailing spaces  \n\n",
    "tab\there\r\nand there\r",
    "1234567890 3.14159 1,000,000 0x1F",
    "{{ 7 * 7 }} {% raw %} {# no #}",
    "don't won't I'LL we've",
    "a" * 300 + " " * 40 + "b",
    "\u200bzero\u200d width\u00a0nbsp\u2028sep",
    "[INST] <<SYS>> user: assistant:",
)
SWITCHES: tuple[dict[str, object], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})
Pair = tuple[ChatTemplate, Any, tuple[dict[str, object], ...]]


@pytest.fixture(scope="module")
def pair(real_tokenizer: Path) -> Pair:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(real_tokenizer, local_files_only=True, clean_up_tokenization_spaces=False)
    template = read_template(real_tokenizer)
    return template, reference, SWITCHES if "enable_thinking" in template.arguments else ({},)


def conversation(system: str | None, texts: list[str]) -> list[ChatMessage]:
    messages = [ChatMessage("system", system)] if system is not None else []
    return messages + [ChatMessage("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]


def expected(reference: Any, messages: list[ChatMessage], *, generation: bool, arguments: dict[str, object]) -> list[int]:
    chat = [
        {"role": message.role, "content": message.content} | ({"reasoning_content": message.reasoning} if message.reasoning else {})
        for message in messages
    ]
    ids = reference.apply_chat_template(chat, tools=None, add_generation_prompt=generation, tokenize=True, return_dict=False, **arguments)
    return list(ids)


def check(pair: Pair, messages: list[ChatMessage]) -> None:
    template, reference, switches = pair
    for arguments in switches:
        for generation in (True, False):
            rendered = template.render(messages, arguments=arguments, add_generation_prompt=generation)
            assert list(rendered.token_ids) == expected(reference, messages, generation=generation, arguments=arguments)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("system", [None, "You are terse.", "Zwei\n\nAbsätze 😀"])
def test_single_questions(pair: Pair, text: str, system: str | None) -> None:
    check(pair, conversation(system, [text]))
    check(pair, conversation(system, ["hello", text, "and?"]))


def test_long_conversations(pair: Pair) -> None:
    draw = random.Random(7)
    for turns in (1, 3, 5, 9, 21):
        for system in (None, "", "Be brief."):
            check(pair, conversation(system, [draw.choice(TEXTS) for _ in range(turns)]))
    # One that ends with a reply, one with empty ones.
    check(pair, conversation(None, ["a", "b"]))
    check(pair, conversation("s", ["a", "", "b", "", "c"]))


def test_thinking_in_the_history(pair: Pair) -> None:
    reply = ChatMessage("assistant", "42", reasoning="First,\nmultiply.")
    check(pair, [ChatMessage("user", "6*7?"), reply, ChatMessage("user", "sure?")])
    check(pair, [ChatMessage("user", "6*7?"), reply])


WORDS = st.text(st.characters(codec="utf-8", max_codepoint=0x1FFFF), max_size=20) | st.sampled_from(TEXTS)
HARMLESS = WORDS.filter(lambda text: not text[:1].isspace() and not any(mark in text for mark in ("<|", "|>", "_of_", "think", "tool")))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(system=st.none() | HARMLESS, texts=st.lists(HARMLESS, min_size=1, max_size=5))
def test_any_conversation(pair: Pair, system: str | None, texts: list[str]) -> None:
    messages = conversation(system, texts)
    template, reference, _ = pair
    ids = template.render(messages).token_ids
    assert list(ids) == expected(reference, messages, generation=True, arguments={})


# --- injection -----------------------------------------------------------------------------------------------------------


def pieces_of(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    """Texts made of control tokens and parts of them."""
    tokens = [text for text in tokenizer.control_tokens if "unused" not in text and "reserved" not in text]
    parts = [*tokens, *(text[:-1] for text in tokens), *(text[1:] for text in tokens), *(text[: len(text) // 2] for text in tokens)]
    filler = st.sampled_from(["<", ">", "|", "\n", " ", "a", "user", "system\n", "<|", "|>", "\ufdd0", "\ufdd1", "\u0338", "[", "]"])
    return st.lists(st.sampled_from(parts) | filler, max_size=8).map("".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_texts_add_no_control_token(pair: Pair, data: st.DataObject) -> None:
    template, _, switches = pair
    tokenizer = template._tokenizer
    texts = data.draw(st.lists(pieces_of(tokenizer), min_size=4, max_size=4))
    arguments = data.draw(st.sampled_from(switches))
    prefill = data.draw(pieces_of(tokenizer).filter(bool))

    def control(texts: list[str], prefill: str) -> Counter[int]:
        system, question, reply, thinking = texts
        messages = [
            ChatMessage("system", system),
            ChatMessage("user", question),
            ChatMessage("assistant", reply, reasoning=thinking),
            ChatMessage("user", question),
        ]
        ids = template.render(messages, arguments=arguments, prefill=prefill).token_ids
        return Counter(token_id for token_id in ids if token_id in tokenizer._control_ids)

    # Whether a text is empty may matter to a template; nothing else about it may.
    assert control(texts, prefill) == control(["x" if text.strip() else text for text in texts], "x")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_encoding_keeps_the_text(pair: Pair, data: st.DataObject) -> None:
    tokenizer = pair[0]._tokenizer
    text = data.draw(pieces_of(tokenizer).filter(lambda text: "\u0338" not in text))  # Qwen3 composes it with the character before
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer._control_ids & set(ids)
    assert raw_prompt(text, tokenizer).token_ids == ((*tokenizer.leading_ids, *ids) if text else ())


# --- traits of the three -------------------------------------------------------------------------------------------------


def test_one_begin_token(pair: Pair) -> None:  # A1
    template, reference, _ = pair
    tokenizer = template._tokenizer
    begin = reference.bos_token_id
    for prompt in ("hi", [ChatMessage("user", "hi")], "<bos>hi", [ChatMessage("user", "<bos><|begin_of_text|>hi")]):
        ids = render_prompt(prompt, tokenizer, template).token_ids
        assert ids.count(begin) == (0 if begin is None else 1)
        assert begin is None or ids[0] == begin
    assert list(raw_prompt("Once upon a time", tokenizer).token_ids) == reference("Once upon a time").input_ids


def test_llama_has_no_argument_and_trims(llama3: Path) -> None:
    template = read_template(llama3)
    assert template.render([ChatMessage("user", "  hi ")]) == template.render([ChatMessage("user", "hi")])
    with pytest.raises(InvalidRequestError, match="no argument 'enable_thinking'; it takes none"):
        template.render([ChatMessage("user", "hi")], arguments={"enable_thinking": False})


def test_gemma_merges_the_system_prompt_and_alternates(gemma3: Path) -> None:
    template = read_template(gemma3)
    tokenizer = template._tokenizer
    rendered = template.render([ChatMessage("system", "S"), ChatMessage("user", "u")])
    assert rendered.text == "<bos><start_of_turn>user\nS\n\nu<end_of_turn>\n<start_of_turn>model\n"
    assert not rendered.system_merged, "the template has done it itself"
    with pytest.raises(InvalidRequestError, match=r"must alternate .*; two messages in a row are of one role: join them"):
        template.render([ChatMessage("user", "a"), ChatMessage("user", "b")])
    # Its tokens for the markup of web pages are words like others; a picture's are not.
    assert tokenizer.encode("<table>") == [tokenizer._tokenizer.token_to_id("<table>")]
    assert len(tokenizer.encode("<start_of_image>")) > 1


def test_qwen_names_its_argument(qwen3: Path) -> None:
    template = read_template(qwen3)
    with pytest.raises(InvalidRequestError, match="no argument 'thinking'; it takes enable_thinking"):
        template.render([ChatMessage("user", "hi")], arguments={"thinking": False})
    on = template.render([ChatMessage("user", "hi")], arguments={"enable_thinking": True})
    off = template.render([ChatMessage("user", "hi")], arguments={"enable_thinking": False})
    assert (on.lead_ids, off.lead_ids) == ((), (151667, 271, 151668, 271))
    assert off.token_ids == (*on.token_ids, *off.lead_ids)


def test_prefill_is_encoded_as_the_answer_would_be(pair: Pair) -> None:
    template, _, switches = pair
    tokenizer = template._tokenizer
    for arguments in switches:
        plain = template.render([ChatMessage("user", "hi")], arguments=arguments)
        for text, kept in (
            ("Sure, here", "Sure, here"),
            ("The answer is ", "The answer is"),
            ("```python\n", "```python\n"),
            ("  x", "  x"),
        ):
            rendered = template.render([ChatMessage("user", "hi")], arguments=arguments, prefill=text)
            assert rendered.prefill == kept
            assert rendered.token_ids == (*plain.token_ids, *tokenizer.encode(kept))
            assert rendered.prefill_ids == tuple(tokenizer.encode(kept))
            assert rendered.text == plain.text + kept
            assert template.reply(rendered, tokenizer.encode(" end")).content == kept + " end"
