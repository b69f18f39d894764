"""What one step has to do, as a frozen snapshot of plain numbers: all that the executor gets to see."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BlockOperationKind(enum.Enum):
    """How the contents of a block move."""

    COPY = "copy"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    SAVE = "save"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class BlockOperation:
    """Move one block's contents before the forward pass.

    Attributes:
        kind: copy (device to device), swap_out (device to host slot), swap_in (host slot to device), save (device to the exchange, on the
            way to a file), load (from the exchange to the device).
        source: block, slot or ticket that is read.
        destination: block, slot or ticket that is written.
    """

    kind: BlockOperationKind
    source: int
    destination: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitChanges:
    """What is done to a row's logits before a token is drawn from them.

    Attributes:
        repetition_penalty: divides positive logits, multiplies negative ones, of tokens in `prompt_ids` or `output_ids`.
        presence_penalty: taken off the logits of tokens in `output_ids`.
        frequency_penalty: likewise, times how often the token is there.
        prompt_ids: the prompt; empty where no penalty looks at it.
        output_ids: the answer so far; empty where no penalty looks at it.
        bias: token ids and what is added to their logits.
        banned: token ids that cannot be drawn.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token to draw from the logits of a row's last token.

    Attributes:
        index: which of the request's samples it is for.
        position: tokens the answer has already.
        temperature: 0 is greedy.
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
        uniform: the draw of the sequence's own generator, in [0, 1); 0 when greedy.
        min_p: 0 keeps all tokens.
        logprobs: how many of the likeliest tokens to report besides the one that is drawn; None reports nothing.
        changes: what is done to the logits first, if anything.
    """

    index: int
    position: int
    temperature: float
    top_k: int
    top_p: float
    uniform: float
    min_p: float = 0.0
    logprobs: int | None = None
    changes: LogitChanges | None = None


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """The part of one sequence that this step computes.

    Attributes:
        seq_id: the sequence.
        token_ids: the tokens to compute; their positions are `start`, `start + 1`, ...
        start: tokens of the sequence whose keys and values are in the KV pool already.
        block_table: blocks of positions 0 up to the last one computed here, in order.
        samples: tokens to draw after the last of `token_ids`; empty when more of the sequence is known than is computed.
    """

    seq_id: int
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    samples: tuple[SampleRow, ...]

    @property
    def end(self) -> int:
        """Tokens in the KV pool after this step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step.

    Attributes:
        step: number of the step, from 0.
        rows: the sequences that take part.
        operations: block moves, to be applied in this order before the forward pass. A step may consist of them alone.
    """

    step: int
    rows: tuple[ScheduledRow, ...]
    operations: tuple[BlockOperation, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes."""
        return sum(len(row.token_ids) for row in self.rows)
