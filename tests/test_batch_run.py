"""A batch on an engine with a scripted model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from chatpaged.batch_output import OutputRows
from chatpaged.batch_rows import BadRow, BatchRow, RowReader
from chatpaged.batch_run import BatchCounts, BatchRun
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.prompts import render_prompt
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow
from chatpaged.engine.scripted import Script, ScriptedExecutor
from chatpaged.messages import ChatMessage, RenderedPrompt
from tests.byte_tokenizer import END, byte_template, byte_tokenizer

HELLO = [*b"Hello", END]


class Batch:
    """Rows through an engine, with the lines that come out."""

    def __init__(self, script: Script | Sequence[int] = HELLO, *, ordered: bool = False, num_blocks: int = 257, **config: Any) -> None:
        tokenizer = byte_tokenizer()
        template = byte_template(tokenizer)
        executor = ScriptedExecutor(script, vocab_size=258, max_model_len=1024, num_blocks=num_blocks)
        self.engine = LLMEngine(executor, tokenizer, EngineConfig(**config), chat_template=template)
        self.lines: list[dict[str, Any]] = []

        def render(row: BatchRow) -> RenderedPrompt:
            return render_prompt(row.prompt, tokenizer, template)

        self.job = BatchRun(
            self.engine,
            OutputRows("m", tokenizer),
            lambda line: self.lines.append(json.loads(line)),
            render=render,
            defaults=SamplingParams(temperature=0, max_tokens=50),
            ordered=ordered,
        )

    def run(self, *rows: str | dict[str, Any]) -> BatchCounts:
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        self.job.run(RowReader(io.BytesIO(text.encode())), lambda _: self.engine.check_invariants())
        assert not self.engine.has_unfinished
        return self.job.counts

    def ids(self) -> list[str]:
        return [line["custom_id"] for line in self.lines]

    def codes(self) -> dict[str, str]:
        return {line["custom_id"]: line["error"]["code"] for line in self.lines if line["error"] is not None}

    def texts(self) -> dict[str, str]:
        return {
            line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
            for line in self.lines
            if line["response"] is not None
        }


def last_byte(row: ScheduledRow, sample: SampleRow) -> int:
    """Answers with END at once, but for rows that ask for more: as many tokens as `max_tokens` allows."""
    del row
    return 65 + sample.position % 26


def test_one_bad_row_harms_no_other() -> None:  # H1
    batch = Batch(num_blocks=33)
    counts = batch.run({"prompt": "a"}, "{bad json", {"prompt": "a" * 1000}, {"prompt": "a", "temprature": 1}, {"prompt": "b"})
    assert (counts.ok, counts.failed) == (2, 3)
    assert batch.texts() == {"line-1": "Hello", "line-5": "Hello"}
    assert batch.codes() == {"line-2": "invalid_row", "line-3": "prompt_too_long", "line-4": "invalid_row"}
    messages = {line["custom_id"]: line["error"]["message"] for line in batch.lines if line["error"]}
    assert "pool has 32 (512)" in messages["line-3"]
    assert "'temprature'; did you mean temperature?" in messages["line-4"]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"temperature": -1}, "temperature must be between 0 and 100, not -1"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"n": 0}, "n must be between"),
        ({"n": 1.5}, "n must be a whole number"),
        ({"stop": ""}, "a stop text must not be empty"),
        ({"logit_bias": {"999": 1}}, "token id 999 in logit_bias is not between 0 and 257"),
        ({"logit_bias": {"9": 101}}, "logit_bias must be between"),
        ({"min_tokens": 60}, "min_tokens (60) is more than max_tokens (50)"),
    ],
)
def test_values_out_of_range_are_error_rows(fields: dict[str, Any], part: str) -> None:
    batch = Batch()
    batch.run({"prompt": "a", **fields}, {"prompt": "b"})
    assert batch.codes() == {"line-1": "invalid_row"}
    assert part in next(line["error"]["message"] for line in batch.lines if line["error"])
    assert batch.texts() == {"line-2": "Hello"}


def test_rows_that_never_fit_and_a_template_that_refuses() -> None:  # C1
    batch = Batch()
    batch.run({"prompt": "a" * 2000}, {"prompt": "b"})
    assert batch.codes() == {"line-1": "prompt_too_long"}
    assert batch.texts() == {"line-2": "Hello"}


def test_a_row_without_numbers_harms_no_other() -> None:
    def script(row: ScheduledRow, sample: SampleRow) -> int:
        return NO_TOKEN if row.token_ids[0] == 256 and ord("!") in row.token_ids else HELLO[sample.position % 6]

    batch = Batch(script)
    counts = batch.run({"prompt": "a"}, {"prompt": "!"}, {"prompt": "b"})
    assert batch.codes() == {"line-2": "failed"}
    assert (counts.ok, counts.failed, batch.texts()) == (2, 1, {"line-1": "Hello", "line-3": "Hello"})


def test_rows_are_written_as_they_are_done_or_in_order() -> None:  # H4
    rows = [{"prompt": "a", "max_tokens": count} for count in (40, 3, 1, 20)]
    batch = Batch(last_byte)
    batch.run(*rows)
    assert batch.ids() == ["line-3", "line-2", "line-4", "line-1"]
    ordered = Batch(last_byte, ordered=True)
    ordered.run(*rows, "{bad")
    assert ordered.ids() == ["line-1", "line-2", "line-3", "line-4", "line-5"]
    assert ordered.texts() == batch.texts()


@pytest.mark.parametrize("ordered", [False, True])
def test_few_rows_are_held(ordered: bool) -> None:
    taken = 0

    def rows() -> Iterator[BatchRow | BadRow]:
        nonlocal taken
        for number in range(1, 2001):
            taken += 1
            length = 400 if number == 1 else 1  # the first one holds up all others
            yield BatchRow(number, str(number), (ChatMessage("user", "a"),), {"max_tokens": length})

    batch = Batch(last_byte, ordered=ordered, max_num_seqs=2)
    most = 0

    def look(counts: BatchCounts) -> None:
        nonlocal most
        most = max(most, taken - len(batch.lines))
        assert counts.ok >= len(batch.lines)

    batch.job.run(rows(), look)
    assert batch.job.counts.ok == 2000
    assert most <= (128 if ordered else 4)
    assert (batch.ids() == [str(number) for number in range(1, 2001)]) is ordered


def test_several_answers_logprobs_and_seeds() -> None:
    batch = Batch()
    batch.run({"prompt": "a", "n": 3, "seed": 5, "max_tokens": 2})
    body = batch.lines[0]["response"]["body"]
    assert [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]] == [
        (i, "He", "length") for i in range(3)
    ]
    assert body["engine"]["seed"] == 5
    assert body["usage"]["completion_tokens"] == 6


def test_completions_are_not_chats() -> None:
    batch = Batch()
    batch.run({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "Once"}})
    body = batch.lines[0]["response"]["body"]
    assert (body["object"], body["choices"][0]["text"], body["usage"]["prompt_tokens"]) == ("text_completion", "Hello", 4)


def test_counts_of_tokens() -> None:
    batch = Batch(max_num_seqs=1)
    counts = batch.run(*[{"prompt": "x" * 64}] * 3)
    length = 1 + len("user\n") + 64 + 2 + 1 + len("assistant\n")
    assert counts.prompt_tokens == 3 * length
    assert counts.cached_tokens == 2 * (length // 16 * 16)
    assert counts.prefill_tokens == counts.prompt_tokens - counts.cached_tokens
    assert counts.completion_tokens == counts.generated == 18
    assert counts.hit_rate == pytest.approx(counts.cached_tokens / counts.prompt_tokens)
    assert BatchCounts().hit_rate == 0.0


@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_identical_rows_that_fill_their_blocks(max_num_seqs: int) -> None:  # B6, B7
    seen: list[int] = []

    def script(row: ScheduledRow, sample: SampleRow) -> int:
        seen.append(len(row.token_ids))
        return int(HELLO[sample.position])

    batch = Batch(script, max_num_seqs=max_num_seqs)
    filled = 48 - (1 + len("user\n") + 2 + 1 + len("assistant\n"))
    batch.run(*[{"prompt": "x" * filled}] * 8)
    assert set(batch.texts().values()) == {"Hello"}
    assert len(batch.lines) == 8
    usages = [line["response"]["body"]["usage"] for line in batch.lines]
    assert {usage["prompt_tokens"] for usage in usages} == {48}
    assert all(usage["prompt_tokens_details"]["cached_tokens"] < 48 for usage in usages)
    assert min(seen) >= 1
    if max_num_seqs == 1:
        assert [usage["prompt_tokens_details"]["cached_tokens"] >= 32 for usage in usages] == [False, *[True] * 7]


def test_a_pool_too_small_for_all_rows_at_once() -> None:  # C2
    rows = [{"prompt": "a" * 100, "max_tokens": 100}] * 4
    small, large = Batch(last_byte, num_blocks=21), Batch(last_byte, num_blocks=1001)
    assert small.run(*rows).ok == large.run(*rows).ok == 4
    assert small.texts() == large.texts()
    assert sum(line["response"]["body"]["engine"]["preemptions"] for line in small.lines) > 0
