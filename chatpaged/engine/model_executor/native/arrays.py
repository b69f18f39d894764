"""A step's numbers as the native interface takes them."""

from __future__ import annotations

import torch

from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.native.interface import Step


class StepArrays:
    """Keeps the memory that `step` points to.

    Attributes:
        step: without a place for logits.
        num_logits: rows of logits that are wanted.
    """

    def __init__(self, batch: InputBatch, pool: torch.Tensor) -> None:
        """Copies what it needs of the batch; `pool` has to stay."""
        spans = batch.spans
        self.num_logits = batch.logits_rows.numel()
        self._kept = (
            batch.input_ids.to(torch.int32),
            *(
                torch.tensor(numbers, dtype=torch.int32)
                for numbers in (
                    [span.length for span in spans],
                    [span.start for span in spans],
                    [len(span.block_table) for span in spans],
                    [block for span in spans for block in span.block_table],
                )
            ),
            batch.logits_rows.to(torch.int32),
        )
        self.step = Step(
            batch.input_ids.numel(), len(spans), self.num_logits, *(tensor.data_ptr() for tensor in self._kept), pool.data_ptr()
        )
