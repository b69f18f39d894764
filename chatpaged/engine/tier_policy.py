"""Whether to bring a block back from below or to compute it again: by speeds measured on this machine."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_SMOOTHING = 0.3
_PROBE_AFTER = 64
"""Refusals after which a tier is asked once more: it may have been slow only for a while."""
_UNKNOWN_BLOCK_SECONDS = 2e-3
"""What one block is assumed to take before the first one was measured."""


class TierKind(enum.Enum):
    """The memories below the device pool."""

    HOST = "host"
    DISK = "disk"


@dataclass(slots=True)
class _TierSpeed:
    block_seconds: float | None = None
    refusals: int = 0


class TierPolicy:
    """Learns how long a token takes to compute and a block to move.

    What has not been measured yet counts as worth it, so that it gets measured.

    Attributes:
        declined: blocks that would have been found, but are faster to compute.
        seconds_saved: time that computing would have taken, less the time the blocks took to come back.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._token_seconds: float | None = None
        self._speeds = {kind: _TierSpeed() for kind in TierKind}
        self.declined = 0
        self.seconds_saved = 0.0

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """Learns from a step that only read prompts.

        Args:
            num_tokens: of the step. Steps of less than a block say little about reading.
            seconds: time of the step.
        """
        if num_tokens >= self._block_size:
            self._token_seconds = _smoothed(self._token_seconds, seconds / num_tokens)

    def observe_moves(self, kind: TierKind, num_blocks: int, seconds: float) -> None:
        """Learns from blocks that came back.

        Args:
            kind: where from.
            num_blocks: at least one.
            seconds: for all of them.
        """
        speed = self._speeds[kind]
        speed.block_seconds = _smoothed(speed.block_seconds, seconds / num_blocks)
        if self._token_seconds is not None:
            self.seconds_saved += num_blocks * self._block_size * self._token_seconds - seconds

    def is_worth_it(self, kind: TierKind) -> bool:
        """Whether a block of this tier is brought back sooner than it is computed."""
        speed = self._speeds[kind]
        if speed.block_seconds is None or self._token_seconds is None or speed.block_seconds <= self._block_size * self._token_seconds:
            return True
        speed.refusals += 1
        if speed.refusals % _PROBE_AFTER == 0:
            return True
        self.declined += 1
        return False

    @property
    def block_seconds(self) -> float:
        """What a block takes to come back, from the slower tier."""
        return max(
            (speed.block_seconds for speed in self._speeds.values() if speed.block_seconds is not None), default=_UNKNOWN_BLOCK_SECONDS
        )


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
