"""When things happened to one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from chatpaged.engine.outputs import RequestMetrics
from chatpaged.engine.sequence import Sequence, SequenceGroup


@dataclass(slots=True)
class RequestClock:
    """Times in seconds of `time.perf_counter`.

    Attributes:
        added: when the request was queued.
        started: when it was first part of a step.
        first_tokens: when each of its samples got its first token.
    """

    added: float
    started: float | None = None
    first_tokens: dict[int, float] = field(default_factory=dict)

    def speed(self, sequence: Sequence, now: float) -> float:
        """Tokens a second of one sample since its first one; 0 before."""
        first = self.first_tokens.get(sequence.index, now)
        return (sequence.num_output_tokens - 1) / (now - first) if now > first else 0.0

    def metrics(self, group: SequenceGroup, now: float) -> RequestMetrics:
        """The figures of a request that ends now."""
        first = min(self.first_tokens.values(), default=None)
        num_tokens = sum(sequence.num_output_tokens for sequence in group.sequences)
        later = num_tokens - len(self.first_tokens)
        counters = group.counters
        return RequestMetrics(
            prompt_tokens=group.num_prompt_tokens,
            cached_tokens=counters.cached_tokens,
            prefill_tokens=counters.prefill_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            completion_tokens=num_tokens,
            preemptions=counters.preemptions,
            cow=counters.cow,
            swap_out=counters.swap_out,
            swap_in=counters.swap_in,
            peak_blocks=counters.peak_blocks,
            queue_time=(self.started if self.started is not None else now) - self.added,
            time_to_first_token=first - self.added if first is not None else None,
            total_time=now - self.added,
            tokens_per_second=later / (now - first) if first is not None and later > 0 and now > first else None,
        )
