"""What a request asks of sampling and stopping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chatpaged.errors import InvalidRequestError

MAX_SEED = 2**63 - 1
MAX_SAMPLES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, the same for each of its samples.

    Attributes:
        temperature: 0 picks the most likely token; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum, the boundary token included.
        seed: sample i of the request draws from its own generator, seeded with seed + i; None draws a seed.
        n: samples from one prompt, which is computed once.
        max_tokens: new tokens for each sample; None is as many as context and KV pool allow.
        stop: texts that end the answer; they are never part of it.
        stop_token_ids: token ids that end the answer, on top of the model's own.
        ignore_eos: do not stop at the model's end tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:  # also false for NaN
            raise InvalidRequestError(f"temperature must be between 0 and 100, not {self.temperature}")
        if self.top_k < -1:
            raise InvalidRequestError(f"top_k must be -1 or 0 (off) or at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequestError(f"seed must be between 0 and {MAX_SEED}, not {self.seed}")
        if not 1 <= self.n <= MAX_SAMPLES:
            raise InvalidRequestError(f"n must be between 1 and {MAX_SAMPLES}, not {self.n}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if any(not text for text in self.stop):
            raise InvalidRequestError("a stop text must not be empty")


DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 0.95


def model_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """Temperature, top_k and top_p that a model's `generation_config.json` recommends, where it does; else the defaults above.

    A configuration that says not to sample stands for temperature 0.
    """
    if generation_config.get("do_sample") is False:
        return {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
    names = ("temperature", "top_k", "top_p")
    named = {name: generation_config[name] for name in names if isinstance(generation_config.get(name), int | float)}
    return (
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **named}
        if named
        else {"temperature": DEFAULT_TEMPERATURE, "top_k": 0, "top_p": DEFAULT_TOP_P}
    )
