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

from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Where one row lies in the batch.

    Attributes:
        begin: index of its first token.
        length: tokens it computes.
        start: tokens of the sequence computed before.
        block_table: blocks of all its tokens up to the last one computed here.
    """

    begin: int
    length: int
    start: int
    block_table: tuple[int, ...]

    @property
    def num_keys(self) -> int:
        """Tokens its last token attends to, itself included."""
        return self.start + self.length


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
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    logits_rows: torch.Tensor
    spans: tuple[RowSpan, ...]

    @classmethod
    def build(cls, output: SchedulerOutput, block_size: int, device: torch.device) -> InputBatch:
        """Lays out a step."""
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        logits_rows: list[int] = []
        spans: list[RowSpan] = []
        for row in output.rows:
            spans.append(RowSpan(len(ids), len(row.token_ids), row.start, row.block_table))
            ids += row.token_ids
            positions += range(row.start, row.end)
            blocks += _slot_blocks(row, block_size)
            if row.samples:
                logits_rows.append(len(ids) - 1)
        # One transfer for all of them.
        packed = torch.tensor([ids, positions, blocks], dtype=torch.int64).to(device)
        return cls(
            input_ids=packed[0],
            positions=packed[1],
            slot_blocks=packed[2],
            slot_offsets=packed[1] % block_size,
            logits_rows=torch.tensor(logits_rows, dtype=torch.int64).to(device),
            spans=tuple(spans),
        )


def _slot_blocks(row: ScheduledRow, block_size: int) -> list[int]:
    return [row.block_table[position // block_size] for position in range(row.start, row.end)]
