"""How many prompt tokens a step may compute, so that nobody who reads along has to wait long for the next token."""

from __future__ import annotations

MAX_GAP_RATIO = 2.6
"""A step that carries prompt tokens beside a stream should take at most this many times as long as one that only decodes."""
MAX_STEP_SECONDS = 0.4
"""Longest step while somebody waits for an answer: what stopping it, or a new chat, has to wait for."""
MIN_PREFILL_TOKENS = 4
"""Fewer prompt tokens would leave whoever sent them without an answer for too long."""
FIRST_PREFILL_TOKENS = 8
_SMOOTHING = 0.2
_MAX_CHANGE = 1.3


class TokenBudget:
    """Learns from measured steps how many prompt tokens fit the time that readers can spare.

    Nothing is assumed about how time grows with tokens: after each step that used its whole limit, the limit is moved by the ratio
    of the time wanted to the time taken.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_tokens = max_num_batched_tokens
        self._decode_seconds: float | None = None
        self._beside_stream = float(min(FIRST_PREFILL_TOKENS, max_num_batched_tokens))
        self._without_stream = float(max_num_batched_tokens)

    def observe(self, num_decode: int, num_prefill: int, seconds: float) -> None:
        """Learns from a finished step.

        Args:
            num_decode: tokens of sequences that decoded.
            num_prefill: all other tokens.
            seconds: time of the step.
        """
        if num_prefill == 0:
            old = self._decode_seconds if self._decode_seconds is not None else seconds
            self._decode_seconds = old + _SMOOTHING * (seconds - old)
        elif num_decode == 0:
            self._without_stream = self._adjusted(self._without_stream, num_prefill, MAX_STEP_SECONDS / seconds)
        elif self._decode_seconds is not None:
            wanted = min(MAX_STEP_SECONDS, MAX_GAP_RATIO * self._decode_seconds)
            self._beside_stream = self._adjusted(self._beside_stream, num_prefill, wanted / seconds)

    def _adjusted(self, limit: float, num_prefill: int, ratio: float) -> float:
        if num_prefill < int(limit) and ratio > 1:
            return limit  # a small step says nothing about how much more would have fitted
        limit *= min(_MAX_CHANGE, max(1 / _MAX_CHANGE, ratio))
        return min(self._max_tokens, max(min(MIN_PREFILL_TOKENS, self._max_tokens), limit))

    def max_prefill_tokens(self, *, decoding: bool, interactive: bool) -> int:
        """Prompt tokens that the next step may compute.

        Args:
            decoding: a sequence that somebody reads along is decoding.
            interactive: somebody reads along any request at all.
        """
        if not interactive:
            return self._max_tokens
        return int(self._beside_stream if decoding else self._without_stream)

    def move_seconds(self, *, decoding: bool, interactive: bool) -> float | None:
        """Time that the next step may spend on bringing blocks back; None is any. Arguments as for `max_prefill_tokens`.

        A stream is held up by one step of its own at most.
        """
        if not interactive:
            return None
        return self._decode_seconds if decoding and self._decode_seconds is not None else MAX_STEP_SECONDS
