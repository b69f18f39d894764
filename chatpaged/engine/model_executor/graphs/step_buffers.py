"""The memory that recorded forward passes read their input from: always the same, filled anew for each step.

What a step does not fill is padding. It is written with every step, as what an earlier and larger step has left there would be computed,
and stored in somebody's blocks:

```text
                     a step of 3 sequences and 3 tokens in a bucket of 4
input_ids    [ 17  9  40 | 0 ]     positions [ 5  80  12 | 0 ]     slots [ 21  96  44 | -1 ]      -1: stored nowhere
seq_lens     [ 6  81  13 | 0 ]     block table rows of padding: the null block                    0: attends to nothing
```

Everything but the block table lies in one piece, laid out anew for each bucket: a step is padded on the host and brought by one copy, and
its table by two. Where steps take a millisecond, a copy for each of these would take a tenth of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.model_executor import transfers
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.step_numbers import StepNumbers

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a recorded forward pass of a bucket of T tokens and N sequences is given.

    Attributes:
        rows: the sequences.
        input_ids: int64 `[T]`.
        positions: int64 `[T]`.
        logits_rows: int64 `[N]`.
    """

    rows: StepRows
    input_ids: torch.Tensor
    positions: torch.Tensor
    logits_rows: torch.Tensor


class StepBuffers:
    """Input of steps up to a size.

    Attributes:
        max_seqs: sequences of the largest bucket.
        max_blocks: blocks of the longest sequence that fits.
    """

    def __init__(self, max_tokens: int, max_seqs: int, max_blocks: int, device: torch.device) -> None:
        """Reserves them.

        Args:
            max_tokens: tokens of the largest bucket.
            max_seqs: sequences of the largest bucket.
            max_blocks: blocks of the longest sequence.
            device: where the model runs.
        """
        self.max_seqs = max_seqs
        self.max_blocks = max_blocks
        largest = _Fields.of_padding(Bucket(max_tokens, max_seqs, only_single=False))
        self._packed = torch.zeros(sum(array.nbytes for array in largest.arrays), dtype=torch.uint8, device=device)
        self._block_table = torch.full((max_seqs, max_blocks), NULL_BLOCK, dtype=torch.int32, device=device)

    def input(self, bucket: Bucket) -> StepInput:
        """The input of a bucket: views of the buffers."""
        views = transfers.unpack(self._packed, _Fields.of_padding(bucket).arrays)
        input_ids, positions, slots, logits_rows, seq_lens, cu_q = views
        rows = StepRows(
            cu_q=cu_q, seq_lens=seq_lens, block_table=self._block_table[: bucket.num_seqs], slots=slots, only_single=bucket.only_single
        )
        return StepInput(rows, input_ids, positions, logits_rows)

    def clear(self, bucket: Bucket) -> None:
        """Makes all of a bucket padding."""
        self._bring(_Fields.of_padding(bucket))
        self._block_table[: bucket.num_seqs] = NULL_BLOCK

    def fill(self, bucket: Bucket, numbers: StepNumbers) -> None:
        """Takes a step, and makes the rest of its bucket padding.

        Args:
            bucket: large enough for it.
            numbers: the step.
        """
        fields = _Fields.of_padding(bucket)
        fields.take(numbers)
        self._bring(fields)
        table = numbers.rows.block_table[:, : self.max_blocks]
        count, width = table.shape
        padded = np.full((bucket.num_seqs, width), NULL_BLOCK, np.int32)
        padded[:count] = table
        (here,) = transfers.upload((padded,), self._block_table.device)
        self._block_table[: bucket.num_seqs, :width] = here  # what lies beyond a sequence's end is never read

    def _bring(self, fields: _Fields) -> None:
        packed = transfers.pack(fields.arrays, is_pinned=self._packed.device.type == "cuda")
        self._packed[: len(packed)].copy_(packed, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The input of a bucket of T tokens and N sequences, in the host's memory.

    Attributes:
        input_ids: int64 `[T]`.
        positions: int64 `[T]`.
        slots: int64 `[T]`.
        logits_rows: int64 `[N]`.
        seq_lens: int32 `[N]`.
        cu_q: int32 `[N + 1]`.
    """

    input_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    logits_rows: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int32]
    cu_q: npt.NDArray[np.int32]

    @classmethod
    def of_padding(cls, bucket: Bucket) -> _Fields:
        """Nothing but padding."""
        tokens, seqs = bucket.num_tokens, bucket.num_seqs
        if bucket.only_single:  # with one token each, they begin where they always do
            cu_q = np.arange(seqs + 1, dtype=np.int32)
        else:  # all tokens of padding belong to the first sequence of padding
            cu_q = np.full(seqs + 1, tokens, np.int32)
            cu_q[0] = 0
        return cls(
            input_ids=np.zeros(tokens, np.int64),
            positions=np.zeros(tokens, np.int64),
            slots=np.full(tokens, _NOWHERE, np.int64),
            logits_rows=np.zeros(seqs, np.int64),
            seq_lens=np.zeros(seqs, np.int32),
            cu_q=cu_q,
        )

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int64] | npt.NDArray[np.int32], ...]:
        """All of them, in this order."""
        return self.input_ids, self.positions, self.slots, self.logits_rows, self.seq_lens, self.cu_q

    def take(self, numbers: StepNumbers) -> None:
        """Puts a step in the place of padding."""
        tokens, count, seqs = numbers.tokens, numbers.num_tokens, len(numbers.spans)
        self.input_ids[:count], self.positions[:count] = tokens.columns[0], tokens.columns[1]
        self.slots[:count] = numbers.slots
        self.logits_rows[: len(tokens.logits_rows)] = tokens.logits_rows
        self.seq_lens[:seqs] = numbers.rows.seq_lens
        self.cu_q[: seqs + 1] = numbers.rows.cu_q
