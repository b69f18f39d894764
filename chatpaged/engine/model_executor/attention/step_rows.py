"""Which tokens of a step belong to which sequence, and where its keys lie, as tensors on the device: what attention kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chatpaged.engine.model_executor.input_batch import InputBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """A step's sequences as tensors; whoever replays a graph copies them into others of the padded sizes.

    N sequences, padding included: a sequence of padding has 0 stored tokens, and any number of tokens in the batch, for which
    attention gives zeros. M blocks, a power of two unless there is a bucket.

    Attributes:
        cu_q: int32 `[N + 1]`, where each sequence's tokens begin.
        seq_lens: int32 `[N]`, stored tokens, those of this step included.
        block_table: int32 `[N, M]`; what lies beyond a sequence's end is never read.
        slots: int64 `[T]`, where keys and values of each token go; -1 is nowhere.
        only_single: no sequence computes more than one token: the kernel for those that do is not launched.
    """

    cu_q: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    only_single: bool

    @classmethod
    def build(cls, batch: InputBatch, block_size: int) -> StepRows:
        """Takes a step's sequences from its batch, on the batch's device."""
        tables = batch.row_tables(block_size)
        return cls(
            cu_q=tables.cu_q,
            seq_lens=tables.seq_lens,
            block_table=tables.block_table,
            slots=tables.slots,
            only_single=all(span.length == 1 for span in batch.spans),
        )
