"""Answers as they come back from the engine, and what is told about them as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chatpaged.errors import ModelError

if TYPE_CHECKING:
    from chatpaged.engine.outputs import Completion, RequestMetrics
    from chatpaged.engine.tokenizer import Tokenizer
    from chatpaged.messages import RenderedPrompt

_USAGE = ("prompt_tokens", "cached_tokens", "prefill_tokens", "completion_tokens")


@dataclass(slots=True)
class Answers:
    """What came back, complete or as far as it got.

    Attributes:
        seed: of the first answer.
        completions: in order of samples.
        metrics: what the engine did.
        repeats: how often the end of an answer has come, the most of all answers; 0 where none goes round in circles.
        message_ids: the answers' names in the conversation.
        rereads: what had to be read again, and why.
        interrupted_by: the exit status of the signal that ended it early, if one did.
    """

    seed: int = 0
    completions: list[Completion] = field(default_factory=list)
    metrics: RequestMetrics | None = None
    repeats: int = 0
    message_ids: tuple[str, ...] = ()
    rereads: tuple[str, ...] = ()
    interrupted_by: int | None = None

    def with_prefill(self, prompt: RenderedPrompt) -> None:
        """Puts the beginning that the user gave in front of each answer, or of its reasoning where the prompt has opened that."""
        if not prompt.prefill:
            return
        self.completions = [replace(done, token_ids=(*prompt.prefill_ids, *done.token_ids)) for done in self.completions]
        if prompt.in_reasoning:
            self.completions = [replace(done, reasoning=prompt.prefill + (done.reasoning or "")) for done in self.completions]
        else:
            self.completions = [replace(done, text=prompt.prefill + done.text) for done in self.completions]


def answers_as_json(answers: Answers, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything about the answers and what the engine did for them.

    Raises:
        ModelError: there is none.
    """
    metrics = answers.metrics
    if metrics is None or not answers.completions:
        raise ModelError("the engine gave no answer")
    first = answers.completions[0]
    figures = asdict(metrics)
    return {
        "text": first.text,
        "reasoning": first.reasoning,
        "finish_reason": first.finish_reason.value,
        **_logprobs(first, tokenizer),
        "answers": [_answer(done, answers.seed, tokenizer) for done in answers.completions],
        "usage": {name: figures.pop(name) for name in _USAGE},
        "seed": answers.seed,
        "engine": figures,
    }


def _answer(done: Completion, seed: int, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "index": done.index,
        "text": done.text,
        "reasoning": done.reasoning,
        "finish_reason": done.finish_reason.value,
        "completion_tokens": done.num_tokens,
        "token_ids": done.token_ids,
        "seed": seed + done.index,
        **_logprobs(done, tokenizer),
    }


def _logprobs(done: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    from chatpaged.token_reports import token_report

    return {"logprobs": [token_report(report, tokenizer) for report in done.logprobs]} if done.logprobs else {}


def stats_of(metrics: RequestMetrics) -> str:
    """Two lines of figures."""
    first = f"{metrics.time_to_first_token:.2f} s" if metrics.time_to_first_token is not None else "none"
    speed = f"{metrics.tokens_per_second:.1f} tok/s" if metrics.tokens_per_second is not None else "- tok/s"
    return (
        f"prompt {metrics.prompt_tokens} tokens: {metrics.cached_tokens} cached, {metrics.prefill_tokens} read · "
        f"answer {metrics.completion_tokens} tokens · first token {first} · {speed} · {metrics.total_time:.2f} s in all\n"
        f"blocks {metrics.peak_blocks} · copies on write {metrics.cow} · preemptions {metrics.preemptions} · "
        f"read again {metrics.recomputed_tokens} tokens · swapped out {metrics.swap_out} in {metrics.swap_in}"
    )


def write_json(value: object) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
