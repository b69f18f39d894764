"""What callers get back: pieces of answers while they grow, whole answers at their end."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REPETITION = "repetition"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token of an answer was, and what else was likely at its place.

    Attributes:
        token_id: the token that was drawn.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens with theirs, most likely first; tokens that are ruled out are not among them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole answer.

    Attributes:
        index: which of the request's samples.
        text: the answer, without reasoning, end markers and stop texts.
        token_ids: ids that stand for reasoning and `text` in a later prompt. They are the generated ones; only where a stop
            text begins inside a token is the rest of that token encoded anew.
        finish_reason: why it ended.
        num_tokens: tokens generated, end markers and stop texts included.
        reasoning: what the model thought before it answered, without markers; None if it did not.
        reasoning_closed: whether the reasoning came to its end, so that an answer could begin.
        logprobs: one entry for each token generated, where the request asked for them.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_tokens: int
    reasoning: str | None = None
    reasoning_closed: bool = True
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one sample has gained since the last output.

    Attributes:
        index: which of the request's samples.
        text: new text; empty while a character or a possible stop text is incomplete.
        token_ids: ids of the new tokens, end markers included.
        completion: the whole answer, once it is complete.
        reasoning: new text of the model's reasoning.
        repeats: how often the end of the answer has repeated itself, once that is out of the ordinary; else 0.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    completion: Completion | None = None
    reasoning: str = ""
    repeats: int = 0

    @property
    def num_tokens(self) -> int:
        """New tokens."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """What the engine did for one request, and when.

    Times are seconds. `time_to_first_token` is counted from the moment the request was added, queueing included.
    """

    prompt_tokens: int
    cached_tokens: int
    prefill_tokens: int
    recomputed_tokens: int
    completion_tokens: int
    preemptions: int
    cow: int
    swap_out: int
    swap_in: int
    peak_blocks: int
    queue_time: float
    time_to_first_token: float | None
    total_time: float
    tokens_per_second: float | None
    """Tokens after the first one, of all samples, by the time since the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """News of one request.

    Attributes:
        request_id: the caller's name for it.
        deltas: what its samples have gained, at most one entry a sample.
        finished: nothing will follow.
        metrics: given once the request is finished.
        error: why the request failed; the engine and all other requests go on.
    """

    request_id: str
    deltas: tuple[Delta, ...] = ()
    finished: bool = False
    metrics: RequestMetrics | None = None
    error: Exception | None = None

    @property
    def completions(self) -> tuple[Completion, ...]:
        """The answers that this output completes, in order of samples."""
        return tuple(delta.completion for delta in self.deltas if delta.completion is not None)


def merge_outputs(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """The output that says what two successive ones say. For a reader that is slower than the engine."""
    deltas = {delta.index: delta for delta in first.deltas}
    for delta in second.deltas:
        earlier = deltas.get(delta.index)
        if earlier is not None:
            delta = replace(  # noqa: PLW2901
                delta,
                text=earlier.text + delta.text,
                token_ids=earlier.token_ids + delta.token_ids,
                reasoning=earlier.reasoning + delta.reasoning,
            )
        deltas[delta.index] = delta
    return replace(second, deltas=tuple(deltas[index] for index in sorted(deltas)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """A finished request as `LLMEngine.generate` returns it: its answers in order of samples."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    metrics: RequestMetrics

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first answer's token ids."""
        return self.completions[0].token_ids
