"""One step as tensors: the tokens of all its sequences one after another, and where each finds its blocks.

```text
rows          A (3 tokens of a prompt)   B (decode)   C (decode)
input_ids   [ a5 a6 a7                   b90          c12 ]
positions   [ 5  6  7                    90           12  ]
logits_rows [       2                    3            4   ]      A's prompt ends here, so it samples as well
```
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chatpaged.engine.model_executor import transfers
from chatpaged.engine.model_executor.step_numbers import RowNumbers, RowSpan, StepNumbers
from chatpaged.engine.scheduler_output import SchedulerOutput

__all__ = ("InputBatch", "RowSpan", "RowTables")


@dataclass(frozen=True, slots=True)
class RowTables:
    """What kernels on a device read of the rows, N of them. See `RowNumbers`.

    Attributes:
        cu_q: int32 `[N + 1]`.
        seq_lens: int32 `[N]`.
        block_table: int32 `[N, M]`.
        slots: int64 `[T]`, where keys and values of each token go.
    """

    cu_q: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class InputBatch:
    """Input of one forward pass, T tokens.

    Attributes:
        input_ids: `[T]` int64.
        positions: `[T]` int64.
        slot_blocks: `[T]` int64, block where each token's keys and values go.
        slot_offsets: `[T]` int64, place in that block.
        logits_rows: `[R]` int64, indices of tokens whose logits are needed.
        spans: the rows.
        tables: the same on a device, for its kernels; None on a CPU, where attention reads the spans.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    logits_rows: torch.Tensor
    spans: tuple[RowSpan, ...]
    tables: RowTables | None = None

    @classmethod
    def build(cls, output: SchedulerOutput, block_size: int, device: torch.device) -> InputBatch:
        """Lays out a step and uploads it."""
        return cls.upload(StepNumbers.lay_out(output.rows, block_size), device)

    @classmethod
    def upload(cls, numbers: StepNumbers, device: torch.device) -> InputBatch:
        """A step on a device, with one transfer."""
        tokens = numbers.tokens
        if transfers.is_host(device):
            (ids, positions, blocks, offsets), logits_rows = transfers.upload((tokens.columns, tokens.logits_rows), device)
            return cls(ids, positions, blocks, offsets, logits_rows, numbers.spans)
        rows = numbers.rows
        arrays = (tokens.columns, tokens.logits_rows, rows.cu_q, rows.seq_lens, rows.block_table, numbers.slots)
        (ids, positions, blocks, offsets), logits_rows, cu_q, seq_lens, block_table, slots = transfers.upload(arrays, device)
        return cls(ids, positions, blocks, offsets, logits_rows, numbers.spans, RowTables(cu_q, seq_lens, block_table, slots))

    def row_tables(self, block_size: int) -> RowTables:
        """The rows for kernels, of which a CPU has none but when it interprets them."""
        if self.tables is not None:
            return self.tables
        rows = RowNumbers.lay_out(self.spans, len(self.slot_blocks))
        cu_q, seq_lens, block_table = transfers.upload((rows.cu_q, rows.seq_lens, rows.block_table), self.slot_blocks.device)
        return RowTables(cu_q, seq_lens, block_table, self.slot_blocks * block_size + self.slot_offsets)
