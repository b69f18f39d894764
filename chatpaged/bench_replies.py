"""When the tokens of replies came, and the figures that follow from it; the same for every engine that is measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from chatpaged.errors import ChatpagedError

Figures = dict[str, float | None]
"""Values by their names; None where there is nothing to measure, such as gaps of replies of one token."""


@dataclass(slots=True)
class Reply:
    """One reply. Times are seconds after the start.

    Attributes:
        arrived: when its turn was said.
        times: when each of its tokens came.
    """

    arrived: float
    times: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float | None:
        """Tokens a second after the first one, as whoever reads it sees them."""
        seconds = self.times[-1] - self.times[0]
        return (len(self.times) - 1) / seconds if seconds > 0 else None


def replies_from(entries: Iterable[dict[str, Any]]) -> list[Reply]:
    """What another process has told."""
    return [Reply(entry["arrived"], entry["times"]) for entry in entries]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, 0 to 1; between two of them in proportion (numpy's default, "linear")."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def check_replies(replies: Sequence[Reply], num_replies: int, num_tokens: int, whose: str) -> None:
    """Refuses to measure less work than was asked for.

    Raises:
        ChatpagedError: replies are missing or cut short.
    """
    tokens = sum(len(reply.times) for reply in replies)
    if (len(replies), tokens) != (num_replies, num_tokens):
        raise ChatpagedError(f"{whose} gave {len(replies)} answers of {tokens} tokens in all, not {num_replies} of {num_tokens}")


def reply_figures(replies: Sequence[Reply]) -> Figures:
    """All that replies tell.

    `tokens_per_second` is new tokens of all replies by the seconds from the start to the last of them. A first token's time is
    counted from the arrival of its turn, queueing included. Gaps are those between two tokens of one reply, of all replies together.
    """
    tokens = sum(len(reply.times) for reply in replies)
    seconds = max(reply.times[-1] for reply in replies)
    waits = [1e3 * (reply.times[0] - reply.arrived) for reply in replies]
    gaps = [1e3 * (later - earlier) for reply in replies for earlier, later in itertools.pairwise(reply.times)]
    speeds = [reply.speed for reply in replies if reply.speed is not None]
    return {
        "replies": len(replies),
        "output_tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds > 0 else None,
        "first_token_ms_mean": mean(waits),
        **{f"first_token_ms_p{rank}": percentile(waits, rank / 100) for rank in (50, 95, 99)},
        **{f"gap_ms_p{rank}": percentile(gaps, rank / 100) if gaps else None for rank in (50, 95, 99)},
        "gap_ms_max": max(gaps, default=None),
        "decode_tokens_per_second": median(speeds) if speeds else None,
    }


def middle(passes: Sequence[Figures]) -> Figures:
    """The median of each figure over several passes."""
    return {name: median_of(one.get(name) for one in passes) for name in passes[0]}


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures]) -> Figures:
    """Ours by theirs, pass by pass, and the median of that: a machine that changes its speed changes it for both of a pair."""

    def ratio(mine: float | None, other: float | None) -> float | None:
        return mine / other if mine is not None and other else None

    return {name: median_of(ratio(mine.get(name), other[name]) for mine, other in zip(ours, theirs, strict=True)) for name in theirs[0]}


def spread(passes: Sequence[Figures]) -> float | None:
    """(longest - shortest) / median seconds of several passes."""
    seconds = [one["seconds"] or 0.0 for one in passes]
    return (max(seconds) - min(seconds)) / median(seconds) if len(seconds) > 1 and median(seconds) > 0 else None


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of the values that there are."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
