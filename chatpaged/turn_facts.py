"""What is told under an answer: what the engine found, read and wrote, what it read again and why, and how the answer ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chatpaged.amounts import counted
from chatpaged.conversation import Node, NodeState
from chatpaged.engine.outputs import FinishReason

_ENDINGS = {
    FinishReason.LENGTH.value: "length limit reached",
    FinishReason.CANCELLED.value: "stopped",
    FinishReason.REPETITION.value: "ended because it repeated itself",
    FinishReason.ERROR.value: "ended by an error",
}


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What is told of one answer.

    Attributes:
        figures: `cached 1,204`, `read 31`, `0.18 s to first token`, `62 tok/s`; those that are known.
        notes: why something was read again, and what was not sent.
        ending: how it ended, if not by itself; else empty.
    """

    figures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ending: str = ""

    def __str__(self) -> str:
        return " · ".join((*self.figures, *self.notes, *((self.ending,) if self.ending else ())))


def turn_facts(node: Node, *, continue_key: str = "o") -> TurnFacts:
    """What is known of an answer.

    Args:
        node: the answer; of other messages nothing is told.
        continue_key: what to press to let it go on.
    """
    if node.role != "assistant":
        return TurnFacts()
    return TurnFacts(_figures(node.usage), _notes(node.usage), _ending(node, continue_key))


def _figures(usage: Mapping[str, object]) -> tuple[str, ...]:
    found: list[str] = []
    cached, read = _count(usage, "cached_tokens"), _count(usage, "prefill_tokens")
    if cached is not None:
        found.append(f"cached {cached:,}")
    if read is not None:
        found.append(f"read {read:,}")
    first, speed = _number(usage, "time_to_first_token"), _number(usage, "tokens_per_second")
    if first is not None:
        found.append(f"{seconds(first)} to first token")
    if speed is not None:
        found.append(f"{speed:.0f} tok/s" if speed >= 10 else f"{speed:.1f} tok/s")
    return tuple(found)


def _notes(usage: Mapping[str, object]) -> tuple[str, ...]:
    entries = usage.get("rereads")
    found = [
        f"{tokens:,} read again: {entry.get('reason') or 'reason unknown'}"
        for entry in (entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ())
        if isinstance(entry, Mapping) and (tokens := _count(entry, "tokens"))
    ]
    if recomputed := _count(usage, "recomputed_tokens"):
        found.append(f"{recomputed:,} computed again: memory was short")
    if left_out := _count(usage, "left_out"):
        found.append(f"{counted(left_out, 'oldest message')} not sent")
    return tuple(found)


def _ending(node: Node, continue_key: str) -> str:
    ending = _ENDINGS.get(node.finish_reason, "")
    if not ending and node.state is NodeState.INTERRUPTED:
        ending = "interrupted"
    return f"{ending}: {continue_key} goes on" if ending and node.can_continue else ending


def seconds(value: float) -> str:
    """A span of time, as exact as it is of use."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60):02} s"


def _count(usage: Mapping[str, object], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(usage: Mapping[str, object], name: str) -> float | None:
    value = usage.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
