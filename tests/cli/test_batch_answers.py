"""`batch` with the real starter model, in this process: torch is imported once for all of these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai.types.chat
import pytest

from tests.cli.runner import Result, run_inside

pytestmark = pytest.mark.starter


@pytest.fixture(autouse=True)
def _model(starter_model: Path) -> None:
    """The starter is there."""


def batch(rows: list[Any], *arguments: str) -> tuple[Result, list[dict[str, Any]]]:
    """Rows that are text stand in the input as they are."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    result = run_inside("batch", "--kv-blocks", "512", *arguments, stdin=text.encode())
    return result, [json.loads(line) for line in result.out.splitlines()]


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def bodies(lines: list[dict[str, Any]]) -> list[Any]:
    """In the order of the input; each is what OpenAI's client takes it for."""
    found = [line["response"]["body"] for line in sorted(lines, key=lambda line: int(line["id"].rpartition("_")[2]))]
    for body in found:
        openai.types.chat.ChatCompletion.model_validate(body)
    return found


def texts(lines: list[dict[str, Any]]) -> list[str]:
    return [body["choices"][0]["message"]["content"] for body in bodies(lines)]


def cached(lines: list[dict[str, Any]]) -> list[int]:
    return [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies(lines)]


def test_one_bad_row_harms_no_other() -> None:  # H1, C1
    rows = [user("hi", max_tokens=4), "{bad json", user(" a" * 1000), user("hi", temperatur=1), user("hi", max_tokens=4)]
    result, lines = batch(rows, "--kv-blocks", "8")
    assert result.status == 6
    assert result.err.startswith("chatpaged: 2 ok, 3 failed; ")
    failed = {line["id"]: line["error"] for line in lines if line["response"] is None}
    assert sorted(failed) == ["batch_req_2", "batch_req_3", "batch_req_4"]
    assert "needs 65 blocks (1030 tokens), pool has 8 (128)" in failed["batch_req_3"]["message"]
    assert len(set(texts([line for line in lines if line["response"]]))) == 1


@pytest.mark.parametrize(
    ("row", "length"),
    [
        (user(" a a", max_tokens=4), 32),
        (
            {"messages": [{"role": "system", "content": "x " * 400}, {"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4},
            416,
        ),
    ],
    ids=["32", "416"],
)
def test_prompts_that_fill_their_blocks_to_the_last(row: dict[str, Any], length: int) -> None:  # B6, B7
    _, alone = batch([row], "--max-num-seqs", "1")
    _, pair = batch([row, row], "--max-num-seqs", "1")
    _, eight = batch([row] * 8, "--max-num-seqs", "8")
    assert {body["usage"]["prompt_tokens"] for body in bodies(eight)} == {length}
    assert set(texts(pair)) == set(texts(eight)) == set(texts(alone))
    assert len(eight) == 8
    assert length - 16 <= cached(pair)[1] < length
    assert all(count < length for count in cached(eight))


def test_a_pool_too_small_for_all_rows_at_once() -> None:  # C2
    rows = [user(" a" * 100, max_tokens=100, ignore_eos=True)] * 4
    small_result, small = batch(rows, "--kv-blocks", "20")
    _, large = batch(rows, "--kv-blocks", "1000")
    assert small_result.status == 0
    assert texts(small) == texts(large)
    assert sum(body["engine"]["preemptions"] for body in bodies(small)) > 0


def test_a_shared_system_prompt() -> None:  # H9, the first rows that start together included
    rows = [user(f"Question {i}?", max_tokens=2) for i in range(20)]
    result, lines = batch(rows, "-s", "x " * 400, "--max-num-seqs", "4")
    assert result.status == 0
    assert sorted(cached(lines)) == [0] + [400] * 19
    total = sum(body["usage"]["prompt_tokens"] for body in bodies(lines))
    assert f"prompts {total} tokens, {total - sum(cached(lines))} read, prefix hits" in result.err


def test_answers_are_those_of_ask() -> None:
    _, lines = batch(
        [{"prompt": "Name a colour."}, "", {"prompt": "What is the capital of France?"}], "--temperature", "0", "--max-tokens", "12"
    )
    asked = [
        run_inside("ask", "--temperature", "0", "--max-tokens", "12", "--json", question).json
        for question in ("Name a colour.", "What is the capital of France?")
    ]
    assert texts(lines) == [answer["text"] for answer in asked]


def test_logprobs_and_several_answers() -> None:
    _, lines = batch([user("hi", logprobs=True, top_logprobs=2, max_tokens=3, n=2, seed=1)])
    (body,) = bodies(lines)
    parsed = openai.types.chat.ChatCompletion.model_validate(body)
    assert [choice.index for choice in parsed.choices] == [0, 1]
    for choice in parsed.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 3
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2, 2, 2]
