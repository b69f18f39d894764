"""A step while it is being put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from chatpaged.engine.sequence import Sequence


@dataclass(slots=True)
class StepPlan:
    """Tokens for each sequence, and what is left to hand out.

    Attributes:
        tokens: tokens the step may still compute.
        prefill_tokens: of these, tokens for sequences that do not decode.
        grants: tokens for each sequence that takes part.
        has_preempted: somebody had to give way, so memory is short: nobody new is let in.
    """

    tokens: int
    prefill_tokens: int
    grants: dict[Sequence, int] = field(default_factory=dict)
    has_preempted: bool = False

    def offer(self, sequence: Sequence) -> int:
        """Tokens the sequence may compute; 0 when the budget is used up."""
        gap = sequence.num_uncomputed_tokens
        return min(gap, self.tokens) if gap == 1 else min(gap, self.tokens, self.prefill_tokens)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Schedules a sequence."""
        self.grants[sequence] = num_tokens
        self._spend(sequence, num_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out again; its tokens can be handed to others."""
        self.has_preempted = True
        self._spend(sequence, -self.grants.pop(sequence, 0))

    def _spend(self, sequence: Sequence, num_tokens: int) -> None:
        self.tokens -= num_tokens
        if sequence.num_uncomputed_tokens > 1:
            self.prefill_tokens -= num_tokens
