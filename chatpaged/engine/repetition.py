"""Answers that go round in circles: the same tokens over and over."""

from __future__ import annotations

_KEY = 4  # tokens that are looked up to find where the end of an answer stood before
NOTICEABLE_REPEATS = 20
NOTICEABLE_TOKENS = 64
LONG_LOOP_REPEATS = 4
LONG_LOOP_TOKENS = 512


class RepetitionDetector:
    """Watches one answer. Each token takes constant time, whatever the length of the loop.

    A loop is out of the ordinary when it has come 20 times and fills 64 tokens (a line of dashes is none), or when it has come
    4 times and fills 512 tokens (whole paragraphs).
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        """Where each run of a few tokens ended last."""
        self._period = 0
        self._length = 0
        """Tokens at the end that are the ones `_period` before them."""

    def append(self, token_id: int) -> int:
        """Takes one more token. Returns how often the end of the answer has come, once that is out of the ordinary; else 0."""
        tokens = self._tokens
        at = len(tokens)
        tokens.append(token_id)
        if self._period and tokens[at - self._period] == token_id:
            self._length += 1
        else:
            self._period = self._length = 0
        if at + 1 >= _KEY:
            key = tuple(tokens[-_KEY:])
            before = self._last.get(key)
            if not self._period and before is not None:
                self._period, self._length = at - before, _KEY
            self._last[key] = at
        return self._noticeable_repeats()

    def _noticeable_repeats(self) -> int:
        if not self._period:
            return 0
        filled = self._period + self._length
        repeats = filled // self._period
        short = repeats >= NOTICEABLE_REPEATS and filled >= NOTICEABLE_TOKENS
        long = repeats >= LONG_LOOP_REPEATS and filled >= LONG_LOOP_TOKENS
        return repeats if short or long else 0
