"""How answers are shown: what goes to standard output, what to standard error, and what is said about them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from chatpaged.chat_template import ChatTemplate
from chatpaged.cli.answer_view import AnswerView, ViewOptions, tell_about
from chatpaged.cli.answers import answers_as_json
from chatpaged.cli.code_blocks import first_code_block
from chatpaged.cli.session_options import run_draft
from chatpaged.cli.terminal import Status
from chatpaged.cli.truncation import cut_text
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.errors import PromptTooLongError
from chatpaged.session import ChatSession, SessionModel
from tests.byte_tokenizer import END, TEMPLATE, byte_tokenizer
from tests.cli.runner import Stream

THOUGHT = "<think>\nhm\n</think>\n\n"
CODE = "Here it is:\n\n```python\nprint(1)\n```\n\nand\n\n```\ntwo\n```\n"
DEFAULTS = ViewOptions(as_json=False, extract=False, raw=False, thinking="show", no_color=False, quiet=False, dry_run=False, stats=False)


class Shown:
    """What comes of one answer."""

    def __init__(
        self, answer: str, *, terminal: bool = False, prefill: str = "", sampling: dict[str, Any] | None = None, **view: Any
    ) -> None:
        tokenizer = byte_tokenizer()
        template = ChatTemplate(TEMPLATE.replace("{% if add", "{# <think></think> #}{% if add"), tokenizer)
        engine = LLMEngine(ScriptedExecutor([*answer.encode(), END]), tokenizer, chat_template=template)
        params = SamplingParams(**(sampling or {}))
        options = ViewOptions(**{field: getattr(DEFAULTS, field) for field in DEFAULTS.__slots__} | view)
        session = ChatSession(SessionModel("m", tokenizer, template))
        draft = session.draft("x", prefill=prefill)
        rendered = draft.prompt
        out, err = Stream(terminal=terminal), Stream(terminal=terminal)
        for stream in (out, err):
            stream.reconfigure(encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setenv("TERM", "xterm")
            patch.delenv("NO_COLOR", raising=False)
            shown = AnswerView(options, params.n, prefill=rendered.prefill)
            answers = run_draft(engine, session, draft, params, shown.show)
            answers.with_prefill(rendered)
            if options.as_json:
                self.json = answers_as_json(answers, tokenizer)
            else:
                shown.finish(answers)
            tell_about(answers, Status(quiet=options.quiet), stops_on_repeat=params.stop_on_repeat)
        self.out, self.err = out.text(), err.text()


def test_thinking_is_kept_out_of_a_pipe() -> None:  # F4
    shown = Shown(THOUGHT + "42")
    assert (shown.out, shown.err) == ("42\n", "")


def test_thinking_is_dimmed_on_a_terminal() -> None:
    shown = Shown(THOUGHT + "42", terminal=True)
    assert shown.out == "42\n"
    assert shown.err.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mhm\x1b[0m\n\n"
    assert Shown(THOUGHT + "42", terminal=True, no_color=True).err == "hm\n\n"


@pytest.mark.parametrize("options", [{"thinking": "hide"}, {"quiet": True}, {"as_json": True}])
def test_thinking_can_be_hidden(options: dict[str, Any]) -> None:
    assert Shown(THOUGHT + "42", terminal=True, **options).err == ""


def test_thinking_on_standard_output() -> None:
    shown = Shown(THOUGHT + "42\n", terminal=True, thinking="stdout")
    assert (shown.out, shown.err) == ("<think>\nhm\n</think>\n\n42\n", "")
    both = Shown(THOUGHT + "42", thinking="stdout", sampling={"n": 2})
    assert both.out == "".join(f"--- {i} of 2 ---\n<think>\nhm\n</think>\n\n42\n" for i in (1, 2))


def test_thinking_in_json() -> None:
    value = Shown(THOUGHT + "42", as_json=True).json
    assert (value["text"], value["reasoning"]) == ("42", "hm")
    assert bytes(value["answers"][0]["token_ids"]).decode() == THOUGHT + "42"
    assert Shown("42", as_json=True).json["reasoning"] is None


def test_thinking_without_end_is_told() -> None:
    shown = Shown("<think>on and on", sampling={"max_tokens": 12})
    assert shown.out == "\n"
    assert shown.err == (
        "chatpaged: the answer ended while the model was still thinking; a larger --max-tokens lets it come to the answer\n"
    )


def test_answers_that_go_round_in_circles_are_told() -> None:  # E12
    shown = Shown("czap," * 100)
    assert "went round in circles (100 times); --stop-on-repeat ends such answers" in shown.err
    assert Shown("czap," * 100, quiet=True).err == ""
    ended = Shown("czap," * 100, sampling={"stop_on_repeat": True})
    assert ended.out == "czap," * 20 + "\n"
    assert "was ended (--stop-on-repeat)" in ended.err
    assert Shown("czap," * 100, as_json=True, sampling={"stop_on_repeat": True}).json["finish_reason"] == "repetition"


def test_only_the_first_code_block() -> None:  # G11
    assert Shown(CODE, extract=True).out == "print(1)\n"
    assert Shown(THOUGHT + "no code at all", extract=True).out == "no code at all\n"
    assert Shown("<think>```\nthought\n```</think>" + CODE, extract=True, thinking="stdout").out == "print(1)\n"
    assert Shown(CODE, extract=True, sampling={"n": 2}).out == "--- 1 of 2 ---\nprint(1)\n--- 2 of 2 ---\nprint(1)\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (CODE, "print(1)\n"),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb\n"),
        ("1. list\n\n   ```sh\n   ls\n   ```\n", "ls\n"),
        ("```\nno end", "no end"),
        ("`inline` and\n\n    indented", None),
        ("", None),
    ],
)
def test_code_blocks(text: str, code: str | None) -> None:
    assert first_code_block(text) == code


def test_whitespace_of_an_answer_is_its_own() -> None:  # E16
    assert Shown("\n\nHello\n\n").out == "\n\nHello\n"
    assert Shown("\n\nHello\n\n", raw=True).out == "\n\nHello\n\n"
    assert Shown("Hello", raw=True).out == "Hello"
    assert Shown("\n\nHello", as_json=True).json["text"] == "\n\nHello"


def test_control_characters_are_symbols_on_a_terminal_only() -> None:
    assert Shown("a\x1b[31mb", terminal=True).out == "a␛[31mb\n"
    assert Shown("a\x1b[31mb", terminal=True, raw=True).out == "a␛[31mb"
    assert Shown("a\x1b[31mb").out == "a\x1b[31mb\n"


def test_an_answer_begins_with_its_prefill() -> None:
    assert Shown(" is", prefill="Paris").out == "Paris is\n"
    assert Shown("", prefill="Paris").out == "Paris\n"
    value = Shown(" is", prefill="Paris", as_json=True).json
    assert value["text"] == "Paris is"
    assert value["answers"][0]["token_ids"] == tuple(b"Paris is")
    assert value["usage"]["completion_tokens"] == 4


# --- cutting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("limit", [60, 90, 150])
def test_cut_texts_fit_and_say_what_is_missing(place: str, limit: int) -> None:
    tokenizer = byte_tokenizer()
    text = "é" * 40 + "ü" * 60
    cut = cut_text(text, place, limit, tokenizer, lambda content: len(tokenizer.encode(content)) + 10)
    assert len(cut.text.encode()) + 10 <= limit
    assert f"[... {cut.num_cut} tokens left out ...]" in cut.text
    assert "\ufffd" not in cut.text
    assert cut.text.startswith("é") == (place != "start")
    assert cut.text.endswith("ü") == (place != "end")


def test_what_fits_is_not_cut_and_what_cannot_fit_is_refused() -> None:
    tokenizer = byte_tokenizer()
    assert cut_text("abc", "middle", 3, tokenizer, len).num_cut == 0
    with pytest.raises(PromptTooLongError, match="even without its text"):
        cut_text("abc", "middle", 5, tokenizer, lambda content: len(content) + 10)
