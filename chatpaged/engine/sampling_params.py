"""What a request asks of sampling and stopping."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from chatpaged.errors import InvalidRequestError

MAX_SEED = 2**63 - 1
MAX_SAMPLES = 1024
MAX_LOGPROBS = 100
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_COUNTS = ("top_k", "logprobs", "seed", "n", "max_tokens", "min_tokens")
_OPTIONAL = frozenset({"logprobs", "seed", "max_tokens"})
_SEED_BITS = 32  # short enough to type again


def new_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(_SEED_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, the same for each of its samples.

    Attributes:
        temperature: 0 picks the most likely token; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum, the boundary token included.
        min_p: keep tokens at least this many times as likely as the most likely one; 0 keeps all.
        repetition_penalty: positive logits are divided by it and negative ones multiplied, once for each token that occurs in
            the prompt or the answer (transformers' rule); 1 is off.
        presence_penalty: taken off the logit of each token that occurs in the answer; the prompt does not count.
        frequency_penalty: likewise, times how often the token occurs in the answer.
        logit_bias: token ids, and what is added to their logits, -100 to 100.
        logprobs: give the log-probability of each token of the answer and of this many likeliest ones at its place; None
            gives none. They are those after penalties and bias, before temperature, top_k, top_p and min_p.
        seed: sample i of the request draws from its own generator, seeded with seed + i; None draws a seed.
        n: samples from one prompt, which is computed once.
        max_tokens: new tokens for each sample; None is as many as context and KV pool allow.
        min_tokens: before so many tokens no end token is drawn and no stop text is looked for.
        stop: texts that end the answer; they are never part of it, and are not looked for in its reasoning.
        stop_token_ids: token ids that end the answer, on top of the model's own.
        ignore_eos: do not stop at the model's end tokens.
        stop_on_repeat: end an answer that goes round in circles (see `engine.repetition`).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop_on_repeat: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_drawing()
        self._check_penalties()
        self._check_ending()

    def _check_types(self) -> None:
        """Annotations bind nobody, and numbers from JSON may be of the wrong kind."""
        for names, kinds, what in ((_NUMBERS, (int, float), "a number"), (_COUNTS, (int,), "a whole number")):
            for name in names:
                value = getattr(self, name)
                if isinstance(value, bool) or not (isinstance(value, kinds) or (value is None and name in _OPTIONAL)):
                    raise InvalidRequestError(f"{name} must be {what}, not {value!r}")
        for name, kind, what in (("stop", str, "texts"), ("stop_token_ids", int, "token ids")):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
                raise InvalidRequestError(f"{name} must be a tuple of {what}, not {values!r}")

    def _check_drawing(self) -> None:
        if not 0 <= self.temperature <= 100:  # also false for NaN
            raise InvalidRequestError(f"temperature must be between 0 and 100, not {self.temperature}")
        if self.top_k < -1:
            raise InvalidRequestError(f"top_k must be -1 or 0 (off) or at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise InvalidRequestError(f"min_p must be between 0 and 1, not {self.min_p}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequestError(f"seed must be between 0 and {MAX_SEED}, not {self.seed}")
        if not 1 <= self.n <= MAX_SAMPLES:
            raise InvalidRequestError(f"n must be between 1 and {MAX_SAMPLES}, not {self.n}")
        if self.seed is not None and self.seed + self.n - 1 > MAX_SEED:
            raise InvalidRequestError(f"the seeds of {self.n} samples from {self.seed} on are beyond {MAX_SEED}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(f"logprobs must be between 0 and {MAX_LOGPROBS}, not {self.logprobs}")

    def _check_penalties(self) -> None:
        if not MIN_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY:
            allowed = f"between {MIN_REPETITION_PENALTY:g} and {MAX_REPETITION_PENALTY:g}"
            raise InvalidRequestError(f"repetition_penalty must be {allowed}, not {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -MAX_PENALTY <= value <= MAX_PENALTY:
                raise InvalidRequestError(f"{name} must be between {-MAX_PENALTY:g} and {MAX_PENALTY:g}, not {value}")
        for token_id, bias in self.logit_bias.items():
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise InvalidRequestError(f"logit_bias must be between {-MAX_BIAS:g} and {MAX_BIAS:g}, not {bias} (token {token_id})")

    def _check_ending(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.min_tokens < 0:
            raise InvalidRequestError(f"min_tokens must not be negative, as {self.min_tokens} is")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})")
        if any(not text for text in self.stop):
            raise InvalidRequestError("a stop text must not be empty")
