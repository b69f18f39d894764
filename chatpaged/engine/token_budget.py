"""How many tokens a step may compute, so that nobody who reads along has to wait long for the next token."""

from __future__ import annotations

MAX_GAP_RATIO = 2.5
"""A step that carries prompt tokens may take this many times as long as one that only decodes."""
MAX_STEP_SECONDS = 0.4
"""Longest step while somebody reads along: what stopping or a new chat has to wait for."""
MIN_PREFILL_TOKENS = 8
FIRST_PREFILL_TOKENS = 32
_SMOOTHING = 0.2


class TokenBudget:
    """Learns from measured steps what a prompt token costs, and limits prompt tokens while an answer is being read.

    Model: a step takes `decode seconds + prompt tokens x seconds per prompt token`, both smoothed exponentially.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_tokens = max_num_batched_tokens
        self._decode_seconds: float | None = None
        self._prefill_token_seconds: float | None = None

    def observe(self, num_decode: int, num_prefill: int, seconds: float) -> None:
        """Learns from a finished step.

        Args:
            num_decode: tokens of sequences that decoded.
            num_prefill: all other tokens.
            seconds: time of the step.
        """
        if num_prefill == 0:
            self._decode_seconds = _smooth(self._decode_seconds, seconds)
        else:
            rest = seconds - (self._decode_seconds or 0.0) * (num_decode > 0)
            self._prefill_token_seconds = _smooth(self._prefill_token_seconds, max(rest, 0.05 * seconds) / num_prefill)

    def max_prefill_tokens(self, *, decoding: bool, interactive: bool) -> int:
        """Prompt tokens that the next step may compute.

        Args:
            decoding: a sequence that somebody reads along is decoding.
            interactive: somebody reads along any request at all.
        """
        if not interactive:
            return self._max_tokens
        if self._prefill_token_seconds is None:
            return min(FIRST_PREFILL_TOKENS if decoding else self._max_tokens, self._max_tokens)
        seconds = MAX_STEP_SECONDS
        if decoding and self._decode_seconds is not None:
            seconds = min(seconds, (MAX_GAP_RATIO - 1) * self._decode_seconds)
        return min(self._max_tokens, max(MIN_PREFILL_TOKENS, int(seconds / self._prefill_token_seconds)))


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
