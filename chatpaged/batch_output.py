"""A batch's output: one JSON line a row, in the form of OpenAI's Batch API.

```text
{"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
{"id": "batch_req_2", "custom_id": "b", "response": null, "error": {"code": "invalid_row", "message": ...}}
```

The number in `id` is the row's line in the input. A body has `engine` on top of OpenAI's fields: what the engine did for this row.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from chatpaged.batch_rows import BadRow, BatchRow
from chatpaged.engine.outputs import Completion, FinishReason, RequestMetrics
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.token_reports import token_report

_USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens")
_FIGURES = tuple(field.name for field in fields(RequestMetrics) if field.name not in _USAGE)
# OpenAI's clients know no others. What goes round in circles has not come to its end either.
_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.REPETITION: "length"}
_ID = re.compile(r"batch_req_([1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back for one row.

    Attributes:
        completions: in order of samples.
        metrics: what the engine did.
        seed: of the first sample.
    """

    completions: Sequence[Completion]
    metrics: RequestMetrics
    seed: int


class OutputRows:
    """Makes output lines. Each run has names of its own for its responses."""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        """Makes it for one run.

        Args:
            model: what the model is called.
            tokenizer: the model's.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._run = secrets.token_hex(6)

    def answer(self, row: BatchRow, answered: Answered) -> bytes:
        """The line of a row that was answered."""
        name = f"{self._run}-{row.number}"
        body = self._completion(name, answered) if isinstance(row.prompt, str) else self._chat(name, answered)
        response = {"status_code": 200, "request_id": f"req-{name}", "body": body}
        return _line(row.number, row.custom_id, response, None)

    def failure(self, bad: BadRow) -> bytes:
        """The line of a row that could not be answered."""
        return _line(bad.number, bad.custom_id, None, {"code": bad.code, "message": bad.message})

    def _chat(self, name: str, answered: Answered) -> dict[str, Any]:
        choices = [self._choice(done) for done in answered.completions]
        return self._body(f"chatcmpl-{name}", "chat.completion", choices, answered)

    def _choice(self, done: Completion) -> dict[str, Any]:
        message = {"role": "assistant", "content": done.text, "refusal": None}
        if done.reasoning is not None:
            message["reasoning_content"] = done.reasoning
        reports = [token_report(report, self._tokenizer) for report in done.logprobs]
        logprobs = {"content": reports, "refusal": None} if reports else None
        return {"index": done.index, "message": message, "logprobs": logprobs, "finish_reason": _REASONS[done.finish_reason]}

    def _completion(self, name: str, answered: Answered) -> dict[str, Any]:
        choices = [
            {
                "index": done.index,
                "text": done.text,
                "logprobs": self._text_logprobs(done) if done.logprobs else None,
                "finish_reason": _REASONS[done.finish_reason],
            }
            for done in answered.completions
        ]
        return self._body(f"cmpl-{name}", "text_completion", choices, answered)

    def _text_logprobs(self, done: Completion) -> dict[str, Any]:
        reports = [token_report(report, self._tokenizer) for report in done.logprobs]
        tokens = [report["token"] for report in reports]
        return {
            "tokens": tokens,
            "token_logprobs": [report["logprob"] for report in reports],
            "top_logprobs": [{top["token"]: top["logprob"] for top in report["top_logprobs"]} for report in reports],
            "text_offset": list(itertools.accumulate(map(len, tokens[:-1]), initial=0)),
        }

    def _body(self, name: str, kind: str, choices: list[dict[str, Any]], answered: Answered) -> dict[str, Any]:
        metrics = answered.metrics
        return {
            "id": name,
            "object": kind,
            "created": int(time.time()),
            "model": self._model,
            "choices": choices,
            "usage": {
                "prompt_tokens": metrics.prompt_tokens,
                "completion_tokens": metrics.completion_tokens,
                "total_tokens": metrics.prompt_tokens + metrics.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": metrics.cached_tokens},
            },
            "engine": {
                "seed": answered.seed,
                "finish_reasons": [done.finish_reason.value for done in answered.completions],
                **{figure: getattr(metrics, figure) for figure in _FIGURES},
            },
        }


def _line(number: int, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    row = {"id": f"batch_req_{number}", "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"


def read_line(line: bytes) -> tuple[int, bool]:
    """Which line of the input an output line belongs to, and whether it is an answer.

    Raises:
        ValueError: this is no output line.
    """
    row = json.loads(line.decode("utf-8"))
    if not isinstance(row, dict) or not {"custom_id", "response", "error"} <= row.keys():
        raise ValueError("it is not the response to a row")
    found = _ID.fullmatch(str(row.get("id")))
    if found is None:
        raise ValueError("its id is not of the form batch_req_N")
    return int(found[1]), row["error"] is None
