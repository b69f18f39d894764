"""What a step takes at most beside weights and pool, found out by running the largest ones before the pool takes its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from chatpaged.engine.model_executor.graphs.buckets import Bucket, decode_buckets, mixed_buckets
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import MIN_BLOCKS
from chatpaged.engine.model_executor.memory import format_bytes, free_memory, is_out_of_memory, release_unused
from chatpaged.engine.model_executor.step_draws import draw_step
from chatpaged.engine.scheduler_output import LogitChanges, SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.errors import MemoryBudgetError

if TYPE_CHECKING:
    from chatpaged.engine.model_executor.models.loader import LoadedModel

GRAPH_BYTES = 4 * 2**20
"""What a recorded graph takes for itself, about, beside the memory that all share."""
_USED_BLOCK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """The largest steps that there will be.

    Attributes:
        max_num_seqs: sequences.
        max_num_batched_tokens: tokens.
        max_model_len: tokens of a sequence, computed before or now.
        block_size: tokens of a KV block.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)

    def buckets(self) -> list[Bucket]:
        """What graphs are recorded for."""
        return [*decode_buckets(self.max_num_seqs), *mixed_buckets(self.max_num_seqs, self.max_num_batched_tokens)]

    def largest_buckets(self) -> list[Bucket]:
        """The largest of each kind."""
        return [decode_buckets(self.max_num_seqs)[-1], mixed_buckets(self.max_num_seqs, self.max_num_batched_tokens)[-1]]


def largest_steps(sizes: StepSizes, *, long_decodes: bool) -> Iterator[SchedulerOutput]:
    """A step of as many tokens as there can be, of as many sequences, all of which sample; one long prompt; and the longest decodes.

    All their blocks are the same one: what they compute is of no use.

    Args:
        sizes: what there can be.
        long_decodes: whether decodes of the longest contexts, all at once, are among them: where keys and values are copied out of the
            pool first, they would need more memory than a pool that holds such contexts.
    """
    # Numbers as flat as these need all tokens as candidates, which takes the most memory.
    changes = LogitChanges(repetition_penalty=1.1, prompt_ids=(0,))
    sample = (SampleRow(0, 0, temperature=1e6, top_k=0, top_p=0.9, uniform=0.5, min_p=1e-9, logprobs=1, changes=changes),)
    for seqs in dict.fromkeys((min(sizes.max_num_seqs, sizes.max_num_batched_tokens), 1)):
        length = min(sizes.max_num_batched_tokens // seqs, sizes.max_model_len)
        table = (_USED_BLOCK,) * -(-length // sizes.block_size)
        yield SchedulerOutput(0, tuple(ScheduledRow(seq, (0,) * length, 0, table, sample) for seq in range(seqs)), ())
    if long_decodes:
        # Memory depends on the table alone, time on how many keys there are: seconds, if they were a million for each.
        table = (_USED_BLOCK,) * sizes.max_blocks
        yield SchedulerOutput(0, tuple(ScheduledRow(seq, (0,), 0, table, sample) for seq in range(sizes.max_num_seqs)), ())


def measure_reserve(loaded: LoadedModel, sizes: StepSizes, device: torch.device, tell: Callable[[str], None]) -> int:
    """Bytes that have to stay free beside the pool, for intermediate results and for graphs.

    Args:
        loaded: the model.
        sizes: of its steps.
        device: where it runs.
        tell: is told that something is being done.

    Raises:
        MemoryBudgetError: there is not even memory for that.
    """
    tell("measuring the memory of a step")
    release_unused(device)
    before = free_memory(device)
    model: Any = loaded.model
    try:
        pool: Any = loaded.make_kv_cache(MIN_BLOCKS)
        pool.pool.zero_()
        for output in largest_steps(sizes, long_decodes=loaded.path.attention == "triton"):
            logits = model.forward(InputBatch.build(output, sizes.block_size, device), pool)
            draw_step(model.draw, logits, output.rows)
            del logits
        # What was given back inside the process still counts as taken here, which is what is wanted: the most that was taken at once.
        after_steps = free_memory(device)
        release_unused(device)
        between = free_memory(device)
        # Recording gives back all that is unused before it begins, so the two are measured one by one.
        graphs = model.record_graphs(pool, sizes.max_blocks, sizes.largest_buckets(), tell)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryBudgetError(
            f"{format_bytes(before)} are free beside the model's weights: not enough for a step of {sizes.max_num_batched_tokens:,} tokens "
            f"and {sizes.max_num_seqs} sequences; use a smaller --max-batched-tokens, --max-num-seqs or --max-model-len, or --enforce-eager"
        ) from error
    reserve = max(0, between - after_steps)
    if graphs:
        reserve += max(0, between - free_memory(device)) + GRAPH_BYTES * len(sizes.buckets())
    model.drop_graphs()
    del pool
    release_unused(device)
    return reserve
