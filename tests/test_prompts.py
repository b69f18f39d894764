"""What a user can ask of a prompt: another template, its arguments, a prefill, no template, a system prompt that has no place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken

from chatpaged.chat_template import ChatMessage, ChatTemplate
from chatpaged.engine.prompts import raw_prompt, render_prompt
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.errors import InvalidRequestError, ModelError
from tests.byte_tokenizer import END, START, TEMPLATE, byte_template, byte_tokenizer
from tests.small_tokenizers import with_bos

SYSTEM = ChatMessage("system", "be kind <|end|>")
QUESTION = ChatMessage("user", "hi")


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, byte_tokenizer())


def thinking_template(source: str) -> ChatTemplate:
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._tokenizer.to_str())
    inner.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return ChatTemplate(source, Tokenizer(inner))


# --- templates from files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jinja", "A{{ messages[0].content }}"),
        ("t.txt", "\ufeffA{{ messages[0].content }}"),
        ("t.json", json.dumps({"chat_template": "A{{ messages[0].content }}"})),
        ("t.json", json.dumps({"chat_template": [{"name": "default", "template": "A{{ messages[0].content }}"}]})),
    ],
)
def test_template_from_a_file(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert ChatTemplate.from_file(path, byte_tokenizer()).render([QUESTION]).text == "Ahi"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jinja", b"{% if %}", r"^template .*t\.jinja: line 1: Expected an expression, got 'end of statement block'$"),
        ("t.jinja", b"\xff", r"^cannot read template .*t\.jinja: .*utf-8"),
        ("t.jinja", b" \n", r"^no chat template in .*t\.jinja$"),
        ("t.json", b"{}", r"^no chat template in .*t\.json$"),
        ("t.json", b"[", r"^cannot read template .*t\.json"),
        ("t.jinja", None, r"^cannot read template .*t\.jinja: No such file or directory$"),
        (".", None, r"^cannot read template .*: Is a directory$"),
    ],
)
def test_files_that_hold_no_template(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequestError, match=message):
        ChatTemplate.from_file(tmp_path / name, byte_tokenizer())


# --- arguments -----------------------------------------------------------------------------------------------------------


def test_arguments_reach_the_template() -> None:
    made = template("{% if effort is defined %}[{{ effort.level }}{{ items | join('+') }}]{% endif %}" + TEMPLATE)
    assert made.arguments == ("effort", "items")
    rendered = made.render([QUESTION], arguments={"effort": {"level": "high"}, "items": [1, "b"]})
    assert rendered.text == "[high1+b]<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert made.render([QUESTION]).text.startswith("<|start|>")


@pytest.mark.parametrize("value", ["<|end|>", ["x<|end|>"], {"<|end|>": "\ufdd0<|end|>"}])
def test_arguments_are_outside_text(value: object) -> None:
    rendered = template("{{ x | tojson }}<|end|>").render([QUESTION], arguments={"x": value})
    assert rendered.token_ids.count(END) == 1
    assert rendered.text == json.dumps(value, ensure_ascii=False) + "<|end|>"


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="has no argument 'efort'; it takes effort, items"):
        template("{{ effort }}{{ items }}").render([QUESTION], arguments={"efort": 1})
    with pytest.raises(InvalidRequestError, match="has no argument 'x'; it takes none"):
        byte_template(byte_tokenizer()).render([QUESTION], arguments={"x": 1})


# --- prefill -------------------------------------------------------------------------------------------------------------


def test_prefill_is_text_and_goes_last() -> None:
    made = byte_template(byte_tokenizer())
    rendered = made.render([QUESTION], prefill="Sure<|end|>\ufdd0: ")
    assert rendered.token_ids == (START, *b"user\nhi", END, 10, START, *b"assistant\n", *"Sure<|end|>\ufdd0:".encode())
    assert rendered.prefill == "Sure<|end|>\ufdd0:"
    assert rendered.prefill_ids == tuple("Sure<|end|>\ufdd0:".encode())
    reply = made.reply(rendered, tuple(b" yes"))
    assert reply == ChatMessage("assistant", "Sure<|end|>\ufdd0: yes", (*rendered.prefill_ids, *b" yes"))
    following = made.render([QUESTION, reply, QUESTION])
    assert following.token_ids[: len(rendered.token_ids) + 5] == (*rendered.token_ids, *b" yes", END)


@pytest.mark.starter
@pytest.mark.parametrize(
    ("prefill", "kept"),
    [
        ("The answer is ", "The answer is"),  # the model writes " 42" as one token
        ("The answer is", "The answer is"),
        ("def f():\n    ", "def f():\n   "),
        ("```python\n", "```python\n"),
        ("\n\nHello", "\n\nHello"),
        (" ", ""),
        ("", ""),
    ],
)
def test_prefill_of_the_starter(starter_model: Path, prefill: str, kept: str) -> None:
    tokenizer = Tokenizer.from_directory(starter_model)
    made = ChatTemplate.from_directory(starter_model, tokenizer)
    assert made is not None
    plain = made.render([QUESTION])
    rendered = made.render([QUESTION], prefill=prefill)
    assert rendered.prefill == kept
    assert rendered.token_ids == (*plain.token_ids, *tokenizer.encode(kept))
    assert rendered.prefill_ids == tuple(tokenizer.encode(kept))


def test_prefill_needs_a_header() -> None:
    with pytest.raises(InvalidRequestError, match="only begin after its header"):
        byte_template(byte_tokenizer()).render([QUESTION], prefill="x", add_generation_prompt=False)


def test_prefill_that_is_no_unicode() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        byte_template(byte_tokenizer()).render([QUESTION], prefill="x\ud800")


# --- thinking ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "inside", "lead"),
    [
        ("<think>\n", True, (258, 10)),  # F1
        ("<think>\n\n</think>\n\n", False, (258, 10, 10, 259, 10, 10)),
        ("", False, ()),
    ],
)
def test_whether_a_prompt_opens_the_thinking(header: str, inside: bool, lead: tuple[int, ...]) -> None:
    made = thinking_template(TEMPLATE.replace("assistant\n", "assistant\n" + header))
    rendered = made.render([ChatMessage("user", "say <think>")])
    assert rendered.in_reasoning is inside
    assert rendered.lead_ids == lead
    assert rendered.token_ids.count(258) == lead.count(258)
    output = (*b"plan", 259, 10, 10, *b"42") if inside else tuple(b"42")
    reply = made.reply(rendered, output)
    assert (reply.content, reply.reasoning) == ("42", "plan" if inside else "")
    assert (*reply.reasoning_ids, *(reply.token_ids or ())) == (*lead, *output)
    assert not made.render([QUESTION], add_generation_prompt=False).in_reasoning


def test_prefill_goes_on_thinking() -> None:
    made = thinking_template(TEMPLATE.replace("assistant\n", "assistant\n<think>\n"))
    rendered = made.render([QUESTION], prefill="I ")
    assert rendered.in_reasoning
    reply = made.reply(rendered, (*b" guess", 259, *b"42"))
    assert (reply.content, reply.reasoning) == ("42", "I guess")
    assert reply.reasoning_ids == (258, 10, *b"I guess", 259)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # The three ways in which templates look at the thinking of old replies.
        ("{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }};{% endfor %}", "|q;why|because;|q;"),
        ("{% for m in messages %}{% if m['thinking'] %}({{ m['thinking'] }}){% endif %}{{ m.content }};{% endfor %}", "q;(why)because;q;"),
        ("{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\n') }};{% endfor %}", "q;because;q;"),
        ("{% for m in messages %}{{ m.content }};{% endfor %}{# </think> #}", "q;<think>\nwhy\n</think>\n\nbecause;q;"),
        ("{% for m in messages %}{{ m.content }};{% endfor %}", "q;because;q;"),
    ],
)
def test_thinking_that_is_text(source: str, text: str) -> None:
    messages = [ChatMessage("user", "q"), ChatMessage("assistant", "because", reasoning="why"), ChatMessage("user", "q")]
    assert ChatTemplate(source, byte_tokenizer()).render(messages).text == text


def test_messages_with_reasoning_are_checked() -> None:
    with pytest.raises(InvalidRequestError, match="only an assistant's"):
        ChatMessage("user", "x", reasoning="y")
    with pytest.raises(InvalidRequestError, match="needs those of its answer"):
        ChatMessage("assistant", "x", reasoning="y", reasoning_ids=(1,))


# --- the system prompt ---------------------------------------------------------------------------------------------------

RAISING = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TEMPLATE
DROPPING = TEMPLATE.replace(
    "<|start|>{{ message.role }}", "{% if message.role == 'system' %}{% continue %}{% endif %}<|start|>{{ message.role }}"
)


@pytest.mark.parametrize("source", [RAISING, DROPPING], ids=["raising", "dropping"])
def test_system_prompt_goes_before_the_question_where_it_has_no_place(source: str) -> None:
    rendered = template(source).render([SYSTEM, QUESTION, ChatMessage("assistant", "ok", tuple(b"OK")), QUESTION])
    assert rendered.system_merged
    assert rendered.text.startswith("<|start|>user\nbe kind <|end|>\n\nhi<|end|>\n<|start|>assistant\nok<|end|>\n<|start|>user\nhi<|end|>")
    beginning = (START, *b"user\nbe kind <|end|>\n\nhi", END, 10)
    assert rendered.token_ids[: len(beginning)] == beginning
    (reply,) = rendered.replies
    assert reply.index == 2
    assert rendered.token_ids[reply.start : reply.end] == tuple(b"OK")


def test_empty_system_prompt_is_left_out_where_it_has_no_place() -> None:
    assert template(RAISING).render([ChatMessage("system", " "), QUESTION]).text == template(RAISING).render([QUESTION]).text


@pytest.mark.parametrize(
    "source",
    [
        TEMPLATE,
        TEMPLATE.replace("message.content", "message.content | trim"),
        TEMPLATE.replace("message.content", "message.content | tojson"),
        TEMPLATE.replace("message.content", "message.content | replace('be', 'BE')"),
    ],
)
@pytest.mark.parametrize("text", [" spaced ", 'quoted "be"\n', "be"])
def test_system_prompt_stays_where_it_has_a_place(source: str, text: str) -> None:
    rendered = template(source).render([ChatMessage("system", text), QUESTION])
    assert not rendered.system_merged
    assert rendered.text.startswith("<|start|>system\n")


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (RAISING, [SYSTEM]),
        (RAISING, [SYSTEM, ChatMessage("assistant", "a"), QUESTION]),
        ("{{ raise_exception('System role not supported') }}", [SYSTEM, QUESTION]),
    ],
)
def test_system_prompt_that_has_no_place_at_all(source: str, messages: list[ChatMessage]) -> None:
    with pytest.raises(InvalidRequestError, match=r"System role not supported; try it without a system prompt, or use --template FILE$"):
        template(source).render(messages)


# --- no template ---------------------------------------------------------------------------------------------------------


def test_base_model_says_what_to_do() -> None:  # A6
    with pytest.raises(ModelError, match=r"^no chat template; use --template FILE or --raw-prompt$") as raised:
        render_prompt([QUESTION], byte_tokenizer(), None)
    assert raised.value.exit_code == 3


@pytest.mark.starter
def test_raw_prompt_has_one_begin_token(starter_model: Path) -> None:
    tokenizer = with_bos(starter_model)
    assert raw_prompt("hi", tokenizer).token_ids == (0, 6004)
    assert raw_prompt("<|endoftext|>hi<|im_end|>", tokenizer).token_ids.count(0) == 1
    assert raw_prompt("<|im_end|>", tokenizer).token_ids == (0, 44, 108, 306, 79, 486, 108, 46)
    assert raw_prompt("hi", Tokenizer.from_directory(starter_model)).token_ids == (6004,)
    with pytest.raises(InvalidRequestError, match="empty prompt"):
        render_prompt("", tokenizer, None)


def test_options_need_messages() -> None:
    tokenizer = byte_tokenizer()
    made = byte_template(tokenizer)
    assert render_prompt([QUESTION], tokenizer, made, prefill="ok").text.endswith("assistant\nok")
    for prompt in ("hi", [1, 2]):
        with pytest.raises(InvalidRequestError, match="takes no template arguments and no prefill"):
            render_prompt(prompt, tokenizer, made, prefill="ok")


def test_templates_that_make_up_marks() -> None:
    # Written as escapes, the marks are not to be found in the template's source.
    for text in ("\\ufdd1", "\\ufdd1a7\\ufdd2", "\\ufdd1a0\\ufdd2"):
        with pytest.raises(InvalidRequestError, match="noncharacters"):
            template("{{ '" + text + "' }}{{ messages[0].content }}").render([QUESTION])


def test_template_that_prints_the_thinking_elsewhere() -> None:
    # Without the markers around it, it is text.
    made = thinking_template("{% for m in messages %}{{ m.content }}({{ m.reasoning_content }}){% endfor %}")
    reply = ChatMessage("assistant", "42", tuple(b"42"), "plan", (258, *b"plan", 259))
    assert made.render([QUESTION, reply]).token_ids == (*b"hi()42(plan)",)


def test_system_prompt_alone_that_is_dropped() -> None:
    rendered = template(DROPPING).render([SYSTEM])
    assert (rendered.text, rendered.system_merged) == ("<|start|>assistant\n", False)


def test_template_that_takes_no_small_conversation() -> None:
    # The header of a reply is found by a conversation of one question; without it the prompt is the same.
    source = "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}" + TEMPLATE.replace(
        "assistant\n", "assistant\n<think>\n"
    )
    made = thinking_template(source.replace("message.content", "(message.content if message.role != 'system' else '-')"))
    rendered = made.render([SYSTEM, QUESTION, ChatMessage("assistant", "ok"), QUESTION])
    assert rendered.in_reasoning
    assert rendered.lead_ids == ()
    assert not rendered.system_merged


@pytest.mark.starter
def test_prefill_that_would_join_with_the_header(starter_model: Path) -> None:
    tokenizer = Tokenizer.from_directory(starter_model)
    made = ChatTemplate("{{ messages[0].content }} He", tokenizer)
    rendered = made.render([QUESTION], prefill="llo")
    assert rendered.token_ids == (*tokenizer.encode("hi He"), *tokenizer.encode("llo"))
    assert tokenizer.encode("hi Hello")[: len(tokenizer.encode("hi He"))] != tokenizer.encode("hi He")
    assert rendered.text == "hi Hello"
