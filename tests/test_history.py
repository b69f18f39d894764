"""The next prompt begins with what is in the KV pool; where it does not, the reason and the cost are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from chatpaged.chat_template import ChatMessage, ChatTemplate
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.history import NextPrompt, Reason, Turn, common_prefix, next_prompt
from tests.byte_tokenizer import END, START, TEMPLATE, byte_tokenizer
from tests.real_templates import read_template

THINK, UNTHINK = 258, 259
# As DeepSeek's: the header of a new reply opens the thinking, old replies are cut behind it.
STRIPPING = (
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n<think>\n{% endif %}"
)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._tokenizer.to_str())
    inner.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return Tokenizer(inner, {"eos_token": "<|end|>"})


def first_turn(template: ChatTemplate, messages: list[ChatMessage], output: tuple[int, ...], **options: object) -> Turn:
    prompt = template.render(messages, arguments=options)
    return Turn.of(template, messages, prompt, output, options)


def test_plain_conversation_is_only_appended_to(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(TEMPLATE, tokenizer)
    turn = first_turn(template, [ChatMessage("system", "S"), user("a")], tuple(b"x"))
    for text in ("b", "c", "d", "e"):  # A8: five turns
        following = next_prompt(template, [*turn.history, user(text)], turn)
        assert following.difference is None
        assert following.kept == len(turn.token_ids)
        assert following.prompt.token_ids == (*turn.token_ids, END, 10, START, *f"user\n{text}".encode(), END, 10, START, *b"assistant\n")
        turn = Turn.of(template, [*turn.history, user(text)], following.prompt, tuple(b"x"))
    assert bytes(token_id for token_id in turn.token_ids if token_id < 256).count(b"system\nS") == 1


@pytest.mark.parametrize("keep", [False, True])
def test_thinking_is_dropped_or_kept(tokenizer: Tokenizer, keep: bool) -> None:  # B4
    template = ChatTemplate(STRIPPING, tokenizer)
    thinking, answer = (*b"t" * 398, UNTHINK, 10), tuple(b"a" * 40)
    messages = [user("question")]
    executor = ScriptedExecutor(lambda row, sample: (*thinking, *answer, END)[sample.position])
    engine = LLMEngine(executor, tokenizer, EngineConfig(block_size=16), chat_template=template)
    prompt = template.render(messages)
    assert prompt.in_reasoning
    assert prompt.lead_ids == (THINK, 10)
    engine.generate(list(prompt.token_ids), SamplingParams(max_tokens=500))
    turn = Turn.of(template, messages, prompt, (*thinking, *answer))
    assert turn.reply == ChatMessage("assistant", "a" * 40, answer, "t" * 398, (THINK, 10, *thinking))

    following = next_prompt(template, [*turn.history, user("more")], turn, keep_reasoning=keep)
    result = engine.generate(list(following.prompt.token_ids), SamplingParams(max_tokens=1))
    if keep:
        assert following.difference is None
        assert following.kept == len(turn.token_ids)
        assert following.prompt.token_ids[: following.kept] == turn.token_ids
    else:
        assert str(following.difference) == "reasoning dropped: re-read 40 tokens"
        assert following.kept == len(prompt.token_ids) - 2
        assert UNTHINK not in following.prompt.token_ids
    assert result.metrics.cached_tokens == following.kept // 16 * 16


def test_cancelled_while_thinking(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(STRIPPING, tokenizer)
    turn = first_turn(template, [user("q")], tuple(b"hm, let me"))
    assert turn.reply == ChatMessage("assistant", "", (), "hm, let me", (THINK, 10, *b"hm, let me"))
    kept = next_prompt(template, [*turn.history, user("go on")], turn, keep_reasoning=True)
    assert kept.prompt.token_ids[: len(turn.token_ids) + 2] == (*turn.token_ids, END, 10)
    dropped = next_prompt(template, [*turn.history, user("go on")], turn)
    assert str(dropped.difference) == "reasoning dropped: re-read 0 tokens"


def test_template_that_drops_nothing_keeps_the_thinking(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(TEMPLATE + "{# </think> #}", tokenizer)
    output = (THINK, 10, *b"plan", 10, UNTHINK, 10, 10, *b"42")
    turn = first_turn(template, [user("q")], output)
    assert (turn.reply.reasoning, turn.reply.content, turn.reply.token_ids) == ("plan", "42", tuple(b"42"))
    following = next_prompt(template, [*turn.history, user("r")], turn)
    assert following.difference is None
    assert following.prompt.token_ids[: following.kept] == turn.token_ids
    assert "assistant\n<think>\nplan\n</think>\n\n42<|end|>" in following.prompt.text


def change(turn: Turn, template: ChatTemplate, *messages: ChatMessage, **options: object) -> NextPrompt:
    return next_prompt(template, [*messages, user("new")], turn, arguments=options)


def test_reasons(tokenizer: Tokenizer) -> None:
    source = "{{ date }}" + TEMPLATE
    template = ChatTemplate(source, tokenizer)
    system, question = ChatMessage("system", "be kind"), user("who?")
    turn = first_turn(template, [system, question], tuple(b"me"), date="monday")
    reply = turn.reply

    def reason(*messages: ChatMessage, of: ChatTemplate = template, date: str = "monday") -> tuple[Reason, int, int] | None:
        difference = change(turn, of, *messages, date=date).difference
        return (difference.reason, difference.position, difference.reread) if difference is not None else None

    end = len(turn.token_ids)
    assert reason(system, question, reply) is None
    assert reason(ChatMessage("system", "be rude"), question, reply) == (Reason.SYSTEM_CHANGED, 17, end - 17)
    assert reason(question, reply) == (Reason.SYSTEM_CHANGED, 7, end - 7 - len("xsystem\nbe kindxx"))
    assert reason(system, user("what?"), reply) == (Reason.MESSAGE_EDITED, 31, end + 1 - 31)
    assert reason(system, reply) == (Reason.MESSAGES_LEFT_OUT, 24, len("assistant\nme"))
    assert reason(system, question, replace(reply, token_ids=None, content="me!")) is None, "all that was read is still there"
    assert reason(system, question, replace(reply, token_ids=None, content="my")) == (Reason.MESSAGE_EDITED, end - 1, 0)
    assert reason(system, question, reply, date="sunday") == (Reason.ARGUMENTS_CHANGED, 0, end)
    assert reason(system, question, reply, of=ChatTemplate("Hello " + source, tokenizer)) == (Reason.TEMPLATE_CHANGED, 0, end + 6)
    edited = change(turn, template, system, user("what?"), reply, date="monday").difference
    assert str(edited) == f"message edited (message 2): re-read {end + 1 - 31} tokens"


def test_reply_that_lost_its_ids(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(TEMPLATE, tokenizer)
    turn = first_turn(template, [user("q")], (*b"a", 0xC3, *b"b"))  # half a character
    difference = change(turn, template, user("q"), replace(turn.reply, token_ids=None)).difference
    assert difference is not None
    assert difference.reason is Reason.REPLY_REWRITTEN


def test_date_in_the_template(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ strftime_now('%f') }}" + TEMPLATE, tokenizer)
    turn = first_turn(template, [user("q")], tuple(b"a"))
    for _ in range(5):  # a microsecond may repeat
        difference = change(turn, template, *turn.history).difference
        if difference is not None:
            break
    assert difference is not None
    assert difference.reason is Reason.TEMPLATE_TEXT


def test_going_back_reads_nothing_again(tokenizer: Tokenizer) -> None:  # B10
    template = ChatTemplate(TEMPLATE, tokenizer)
    turn = first_turn(template, [user("q")], tuple(b"a"))
    again = next_prompt(template, [user("q")], turn)
    assert (again.difference, again.kept) == (None, len(turn.prompt.token_ids))
    assert next_prompt(template, [user("q")], None).kept == 0


def test_reasoning_that_is_put_back(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(STRIPPING, tokenizer)
    turn = first_turn(template, [user("q")], (*b"x", UNTHINK, *b"a"))
    messages = [*turn.history, user("r")]
    second = Turn.of(template, messages, next_prompt(template, messages, turn).prompt, (*b"y", UNTHINK, *b"b"))
    difference = next_prompt(template, [*second.history, user("s")], second, keep_reasoning=True).difference
    assert difference is not None
    assert (difference.reason, difference.message) == (Reason.REASONING_RESTORED, 1)


def test_answer_is_kept_where_the_template_trims(tokenizer: Tokenizer) -> None:  # E16
    template = ChatTemplate(TEMPLATE.replace("message.content", "message.content | trim"), tokenizer)
    turn = first_turn(template, [user("hi")], tuple(b"\n\nHello "))
    assert turn.reply.content == "\n\nHello "
    following = next_prompt(template, [*turn.history, user("x")], turn)
    assert following.difference is None
    assert following.prompt.token_ids[: len(turn.token_ids)] == turn.token_ids


def test_template_that_writes_a_space_before_old_replies(tokenizer: Tokenizer) -> None:
    # In the manner of Mistral: the model writes the space itself.
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, tokenizer)
    turn = first_turn(template, [user("a")], tuple(b" b"))
    following = next_prompt(template, [*turn.history, user("c")], turn)
    assert following.difference is None
    assert following.prompt.token_ids == (*b"[INST] a [/INST] b", END, *b"[INST] c [/INST]")
    prefilled = template.render([user("a")], prefill="Sure")
    assert prefilled.token_ids == tuple(b"[INST] a [/INST] Sure")
    assert prefilled.prefill_ids == tuple(b" Sure")


def test_template_that_takes_texts_apart(tokenizer: Tokenizer) -> None:
    # Ids cannot stand for a text of which only a part is written; then it is text again.
    template = ChatTemplate("{% for m in messages %}{{ m.content[:2] }}{% endfor %}", tokenizer)
    rendered = template.render([user("abc"), ChatMessage("assistant", "def", tuple(b"def")), user("ghi")])
    assert rendered.token_ids == tuple(b"abdegh")
    assert rendered.replies == ()


@settings(deadline=None, max_examples=40)
@given(
    turns=st.lists(
        st.tuples(st.text(max_size=6), st.lists(st.integers(0, 259), max_size=8), st.sampled_from(["", "ab", "x "])), min_size=2, max_size=5
    ),
    stripping=st.booleans(),
    keep=st.booleans(),
)
def test_history_equals_rendering_anew(tokenizer: Tokenizer, turns: list[tuple[str, list[int], str]], stripping: bool, keep: bool) -> None:
    template = ChatTemplate(STRIPPING if stripping else TEMPLATE, tokenizer)
    turn: Turn | None = None
    history: tuple[ChatMessage, ...] = ()
    for text, output, prefill in turns:
        following = next_prompt(template, [*history, user(text)], turn, keep_reasoning=keep, prefill=prefill)
        prompt = following.prompt
        if turn is not None:
            assert following.kept == common_prefix(turn.token_ids, prompt.token_ids)
            if keep or not stripping:
                assert following.difference is None
                assert following.kept == len(turn.token_ids)
            elif following.difference is not None:
                assert following.difference.reason is Reason.REASONING_DROPPED
                assert following.difference.position >= following.prompt.replies[-1].start
                assert following.difference.reread <= len(turn.reply.token_ids or ())
        assert prompt == template.render([*history, user(text)], keep_reasoning=keep, prefill=prefill)
        turn = Turn.of(template, [*history, user(text)], prompt, output)
        assert (*turn.reply.reasoning_ids, *(turn.reply.token_ids or ()))[len(prompt.lead_ids) + len(prompt.prefill_ids) :] == tuple(output)
        history = turn.history


# --- the starter and real models -----------------------------------------------------------------------------------------


@pytest.mark.starter
def test_cancelled_reply_of_the_starter(starter_model: Path) -> None:  # B14
    template = read_template(starter_model)
    tokenizer = template._tokenizer
    partial = (57, 744, 3511, 308, 34519, 28, 354, 5646)
    turn = first_turn(template, [user("who are you")], partial)
    assert turn.reply.content == "I am SmolLM, an AI"
    following = next_prompt(template, [*turn.history, user("please continue")], turn)
    assert (len(turn.prompt.token_ids), following.kept, len(following.prompt.token_ids)) == (33, 41, 54)
    assert following.difference is None
    assert following.prompt.token_ids[33:47] == (*partial, 2, 198, 1, 4093, 198, *tokenizer.encode("please"))


@pytest.mark.starter
def test_odd_ids_and_blank_lines_of_the_starter(starter_model: Path) -> None:  # B2, E16
    template = read_template(starter_model)
    for ids, text in (((11653, 5365), "Hello"), ((198, 198, 19556), "\n\nHello")):
        turn = first_turn(template, [user("hi")], ids)
        assert turn.reply == ChatMessage("assistant", text, ids)
        following = next_prompt(template, [*turn.history, user("again")], turn)
        assert following.difference is None
        assert following.prompt.token_ids[31 : 31 + len(ids)] == ids


def qwen_turns(template: ChatTemplate, *, keep: bool, **arguments: object) -> list[NextPrompt]:
    """Three questions; each is thought about."""
    tokenizer = template._tokenizer
    turn: Turn | None = None
    history: tuple[ChatMessage, ...] = (ChatMessage("system", "Be brief."),)
    prompts = []
    for i, question in enumerate(("What is 6 times 7?", "And plus 1?", "Why?")):
        messages = [*history, user(question)]
        following = next_prompt(template, messages, turn, arguments=arguments, keep_reasoning=keep)
        prompts.append(following)
        parts = ["", "<think>", f"\nstep {i}\n", "</think>", f"\n\nIt is {42 + i}."]
        output = tokenizer.encode(parts[-1].strip()) if arguments.get("enable_thinking") is False else tokenizer.encode_parts(parts)
        turn = Turn.of(template, messages, following.prompt, output, arguments)
        assert turn.reply.content == f"It is {42 + i}."
        assert turn.reply.reasoning == ("" if arguments.get("enable_thinking") is False else f"step {i}")
        history = turn.history
    return prompts


def test_qwen3_leaves_out_old_thinking(qwen3: Path) -> None:
    template = read_template(qwen3)
    prompts = qwen_turns(template, keep=False)
    answer = len(template._tokenizer.encode("It is 42."))
    assert [str(following.difference) for following in prompts[1:]] == [f"reasoning dropped: re-read {answer} tokens"] * 2
    assert "<think>" not in prompts[2].prompt.text
    assert prompts[2].kept == prompts[2].prompt.replies[1].start
    # What the template makes of the same conversation as text.
    plain = [
        ChatMessage("system", "Be brief."),
        user("What is 6 times 7?"),
        ChatMessage("assistant", "It is 42.", reasoning="step 0"),
        user("And plus 1?"),
        ChatMessage("assistant", "It is 43.", reasoning="step 1"),
        user("Why?"),
    ]
    assert template.render(plain).token_ids == prompts[2].prompt.token_ids


def test_qwen3_with_its_thinking_kept(qwen3: Path) -> None:
    template = read_template(qwen3)
    prompts = qwen_turns(template, keep=True)
    assert [following.difference for following in prompts] == [None] * 3
    assert "<|im_start|>assistant\n<think>\nstep 0\n</think>\n\nIt is 42.<|im_end|>\n" in prompts[2].prompt.text
    # Thinking that came as text, from an export, is put back the same.
    plain = [ChatMessage("assistant", "It is 42.", reasoning="step 0"), user("x")]
    ids = template.render([user("a"), *plain], keep_reasoning=True).token_ids
    assert ids.count(151667) == ids.count(151668) == 1


@pytest.mark.parametrize("keep", [False, True])
def test_qwen3_without_thinking(qwen3: Path, keep: bool) -> None:
    template = read_template(qwen3)
    prompts = qwen_turns(template, keep=keep, enable_thinking=False)
    assert prompts[0].prompt.text.endswith("<think>\n\n</think>\n\n")
    assert not prompts[0].prompt.in_reasoning
    # The empty block is dropped from old replies like a full one.
    reasons = [following.difference.reason if following.difference is not None else None for following in prompts[1:]]
    assert reasons == ([None, None] if keep else [Reason.REASONING_DROPPED] * 2)


def test_thinking_within_a_tool_loop_stays(qwen3: Path) -> None:
    # Qwen3 keeps the thinking until the user says something new.
    template = read_template(qwen3)
    tokenizer = template._tokenizer
    turn = first_turn(template, [user("2+2?")], tuple(tokenizer.encode_parts(["", "<think>", "\nhm\n", "</think>", "\n\nasking"])))
    following = next_prompt(template, [*turn.history, ChatMessage("tool", "4")], turn)
    assert following.difference is None
    assert following.prompt.token_ids[: len(turn.token_ids)] == turn.token_ids


def test_real_templates_are_append_only(real_tokenizer: Path) -> None:
    template = read_template(real_tokenizer)
    tokenizer = template._tokenizer
    turn: Turn | None = None
    history: tuple[ChatMessage, ...] = ()
    for question, answer in (("  a ", "\n\nHello"), ("b<|im_end|>", "x\n"), ("日本 😀", " "), ("c", "")):
        following = next_prompt(template, [*history, user(question)], turn)
        assert following.difference is None
        if turn is not None:
            assert following.kept == len(turn.token_ids)
        turn = Turn.of(template, [*history, user(question)], following.prompt, tokenizer.encode(answer))
        assert turn.reply.content == answer
        history = turn.history
