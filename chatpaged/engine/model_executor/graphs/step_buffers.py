"""The memory that recorded forward passes read their input from: always the same, filled anew for each step.

What a step does not fill is padding. It is reset for every step, as what an earlier and larger step has left there would be computed,
and stored in somebody's blocks:

```text
                     a step of 3 sequences and 3 tokens in a bucket of 4
input_ids    [ 17  9  40 | 0 ]     positions [ 5  80  12 | 0 ]     slots [ 21  96  44 | -1 ]      -1: stored nowhere
seq_lens     [ 6  81  13 | 0 ]     block table rows of padding: the null block                    0: attends to nothing
```
"""

from __future__ import annotations

import torch

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.input_batch import InputBatch

_NOWHERE = -1


class StepBuffers:
    """Input of steps up to a size.

    Attributes:
        input_ids: int64 `[T]`.
        positions: int64 `[T]`.
        logits_rows: int64 `[N]`.
    """

    def __init__(self, max_tokens: int, max_seqs: int, max_blocks: int, device: torch.device) -> None:
        """Reserves them.

        Args:
            max_tokens: T, tokens of the largest bucket.
            max_seqs: N, sequences of the largest bucket.
            max_blocks: blocks of the longest sequence.
            device: where the model runs.
        """
        self.input_ids = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.input_ids)
        self.logits_rows = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._slots = torch.full_like(self.input_ids, _NOWHERE)
        self._cu_q = torch.zeros(max_seqs + 1, dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros(max_seqs, dtype=torch.int32, device=device)
        self._block_table = torch.full((max_seqs, max_blocks), NULL_BLOCK, dtype=torch.int32, device=device)
        self._every = torch.arange(max_seqs + 1, dtype=torch.int32, device=device)

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence that fits."""
        return self._block_table.shape[1]

    def rows(self, bucket: Bucket) -> StepRows:
        """The sequences of a bucket: views of the buffers."""
        seqs = bucket.num_seqs
        return StepRows(
            # With one token each, padding included, they begin where they always do.
            cu_q=(self._every if bucket.only_single else self._cu_q)[: seqs + 1],
            seq_lens=self._seq_lens[:seqs],
            block_table=self._block_table[:seqs],
            slots=self._slots[: bucket.num_tokens],
            only_single=bucket.only_single,
        )

    def clear(self, bucket: Bucket) -> None:
        """Makes all of a bucket padding."""
        tokens, seqs = bucket.num_tokens, bucket.num_seqs
        self.input_ids[:tokens] = 0
        self.positions[:tokens] = 0
        self.logits_rows[:seqs] = 0
        self._slots[:tokens] = _NOWHERE
        self._seq_lens[:seqs] = 0
        self._block_table[:seqs] = NULL_BLOCK
        # All tokens of padding belong to the first sequence of padding. A slice even of one: a single number would be
        # copied from the host, and waited for.
        self._cu_q[:1] = 0
        self._cu_q[1 : seqs + 1] = tokens

    def fill(self, bucket: Bucket, batch: InputBatch, rows: StepRows) -> None:
        """Takes a step, and makes the rest of its bucket padding, if there is any.

        Args:
            bucket: large enough for it.
            batch: the step.
            rows: its sequences.
        """
        if (len(batch.input_ids), len(rows.seq_lens), len(batch.logits_rows)) != (bucket.num_tokens, bucket.num_seqs, bucket.num_seqs):
            self.clear(bucket)  # every launch counts where steps are short
        for buffer, values in (
            (self.input_ids, batch.input_ids),
            (self.positions, batch.positions),
            (self.logits_rows, batch.logits_rows),
            (self._slots, rows.slots),
            (self._seq_lens, rows.seq_lens),
            (self._cu_q, rows.cu_q),
        ):
            buffer[: len(values)] = values
        table = rows.block_table[:, : self.max_blocks]
        self._block_table[: len(table), : table.shape[1]] = table
