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
        """Lays out a step's sequences, on the batch's device, with one transfer."""
        spans = batch.spans
        longest = max((len(span.block_table) for span in spans), default=1)
        width = 1 << (longest - 1).bit_length()
        cu_q = [*(span.begin for span in spans), len(batch.slot_blocks)]
        numbers = cu_q + [span.num_keys for span in spans]
        for span in spans:
            numbers += [*span.block_table, *(0,) * (width - len(span.block_table))]
        device = batch.slot_blocks.device
        packed = torch.tensor(numbers, dtype=torch.int32).to(device)
        count = len(spans)
        return cls(
            cu_q=packed[: count + 1],
            seq_lens=packed[count + 1 : 2 * count + 1],
            block_table=packed[2 * count + 1 :].view(count, width),
            slots=batch.slot_blocks * block_size + batch.slot_offsets,
            only_single=all(span.length == 1 for span in spans),
        )
