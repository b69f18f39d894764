"""Output rows are what OpenAI's own client takes them for."""

from __future__ import annotations

import json
from typing import Any

import openai.types
import openai.types.chat
import pytest

from chatpaged.batch_output import Answered, OutputRows, read_line
from chatpaged.batch_rows import BadRow, BatchRow
from chatpaged.engine.outputs import Completion, FinishReason, RequestMetrics, TokenLogprobs
from chatpaged.messages import ChatMessage
from tests.byte_tokenizer import END, byte_tokenizer

METRICS = RequestMetrics(
    prompt_tokens=20,
    cached_tokens=16,
    prefill_tokens=4,
    recomputed_tokens=0,
    completion_tokens=3,
    preemptions=1,
    cow=0,
    swap_out=0,
    swap_in=0,
    peak_blocks=2,
    queue_time=0.5,
    time_to_first_token=None,
    total_time=1.5,
    tokens_per_second=None,
)
CHAT = BatchRow(7, "ä/7", (ChatMessage("user", "hi"),))
RAW = BatchRow(8, "raw", "Once")


def completion(index: int = 0, **fields: Any) -> Completion:
    values: dict[str, Any] = {"text": "Hé", "token_ids": (*"Hé".encode(),), "finish_reason": FinishReason.STOP, "num_tokens": 3}
    return Completion(index=index, **values | fields)


def body_of(row: BatchRow, *completions: Completion) -> Any:
    line = OutputRows("org/name", byte_tokenizer()).answer(row, Answered(completions, METRICS, 5))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    told = json.loads(line)
    assert list(told) == ["id", "custom_id", "response", "error"]
    assert (told["id"], told["custom_id"], told["error"]) == (f"batch_req_{row.number}", row.custom_id, None)
    assert told["response"]["status_code"] == 200
    assert told["response"]["request_id"]
    assert read_line(line) == (row.number, True)
    return told["response"]["body"]


def test_a_chat_parses_with_openais_types() -> None:
    body = body_of(CHAT, completion(), completion(1, reasoning="hm", finish_reason=FinishReason.LENGTH))
    parsed = openai.types.chat.ChatCompletion.model_validate(body)
    assert (parsed.object, parsed.model) == ("chat.completion", "org/name")
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in parsed.choices] == [
        (0, "Hé", "stop"),
        (1, "Hé", "length"),
    ]
    assert parsed.usage is not None
    assert (parsed.usage.prompt_tokens, parsed.usage.completion_tokens, parsed.usage.total_tokens) == (20, 3, 23)
    assert parsed.usage.prompt_tokens_details is not None
    assert parsed.usage.prompt_tokens_details.cached_tokens == 16
    assert [choice["message"].get("reasoning_content") for choice in body["choices"]] == [None, "hm"]
    assert body["engine"]["seed"] == 5
    assert (body["engine"]["preemptions"], body["engine"]["prefill_tokens"], body["engine"]["total_time"]) == (1, 4, 1.5)


def test_the_types_do_refuse_what_is_wrong() -> None:
    body = body_of(CHAT, completion())
    body["choices"][0]["finish_reason"] = "cancelled"
    with pytest.raises(ValueError, match="finish_reason"):
        openai.types.chat.ChatCompletion.model_validate(body)


def test_an_answer_in_circles_has_a_reason_that_clients_know() -> None:
    body = body_of(CHAT, completion(finish_reason=FinishReason.REPETITION))
    assert openai.types.chat.ChatCompletion.model_validate(body).choices[0].finish_reason == "length"
    assert body["engine"]["finish_reasons"] == ["repetition"]


def test_logprobs_parse_with_openais_types() -> None:
    reports = tuple(TokenLogprobs(token_id, -0.5, ((token_id, -0.5), (65, -1.5))) for token_id in (*"Hé".encode(), END))
    done = completion(logprobs=reports)
    logprobs = openai.types.chat.ChatCompletion.model_validate(body_of(CHAT, done)).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(token.token, token.logprob, token.bytes) for token in logprobs.content] == [
        ("H", -0.5, [0x48]),
        ("�", -0.5, [0xC3]),
        ("�", -0.5, [0xA9]),
        ("<|end|>", -0.5, [*b"<|end|>"]),
    ]
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["H", "A"]
    texts = openai.types.Completion.model_validate(body_of(RAW, done)).choices[0].logprobs
    assert texts is not None
    assert texts.tokens == ["H", "�", "�", "<|end|>"]
    assert texts.text_offset == [0, 1, 2, 3]
    assert texts.top_logprobs is not None
    assert texts.top_logprobs[0] == {"H": -0.5, "A": -1.5}


def test_a_completion_parses_with_openais_types() -> None:
    parsed = openai.types.Completion.model_validate(body_of(RAW, completion()))
    assert (parsed.object, parsed.choices[0].text, parsed.choices[0].finish_reason) == ("text_completion", "Hé", "stop")


def test_a_failure() -> None:  # H1
    line = OutputRows("m", byte_tokenizer()).failure(BadRow(3, "c", "invalid_row", "not JSON"))
    error = {"code": "invalid_row", "message": "not JSON"}
    assert json.loads(line) == {"id": "batch_req_3", "custom_id": "c", "response": None, "error": error}
    assert read_line(line) == (3, False)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"\xff", b"[]", b'{"id": "batch_req_1"}', b'{"id": "batch_req_0", "custom_id": "a", "response": null, "error": null}'],
)
def test_lines_that_are_no_output(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_line(line)
