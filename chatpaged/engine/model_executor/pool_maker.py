"""Makes the KV pool: as large as was asked for, or as memory allows, once smaller where that was too much."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache
from chatpaged.engine.model_executor.kv_cache import MIN_BLOCKS, KVCache, choose_num_blocks
from chatpaged.engine.model_executor.memory import format_bytes, free_memory, is_out_of_memory, release_unused
from chatpaged.engine.model_executor.models.loader import LoadedModel
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from chatpaged.engine.model_executor.step_memory import StepSizes, measure_reserve
from chatpaged.errors import MemoryBudgetError

_log = logging.getLogger(__name__)
_SMALLER = 3 / 4


def make_pool(
    loaded: LoadedModel, sizes: StepSizes, options: EngineConfig, device: torch.device, tell: Callable[[str], None]
) -> KVCache | Fp8KVCache | NativeKVCache:
    """Makes a pool and, on CUDA, the graphs of the steps that work on it.

    What the system calls free is not always to be had in one piece, and graphs may take more than was measured. So a pool whose size
    was not asked for is made smaller, once.

    Args:
        loaded: the model.
        sizes: of its steps.
        options: what the user asked for.
        device: where the model runs.
        tell: is told what is being done.

    Raises:
        MemoryBudgetError: it does not fit, with numbers and the option to change.
    """
    reserve = measure_reserve(loaded, sizes, device, tell) if device.type == "cuda" else 0
    wanted = choose_num_blocks(loaded.layout, options, device, sizes.max_model_len, reserve=reserve)
    smaller = max(MIN_BLOCKS, int(wanted * _SMALLER))
    is_given = options.kv_blocks is not None or options.kv_memory is not None
    first = _try(loaded, sizes, wanted, tell)
    if first is not None:
        return first
    release_unused(device)
    free = free_memory(device)
    size, less = (format_bytes(count * loaded.layout.block_bytes) for count in (wanted, smaller))
    if not is_given and smaller < wanted:
        _log.warning("a KV pool of %s did not fit beside what steps need: it has %s now (--kv-memory sets its size)", size, less)
        second = _try(loaded, sizes, smaller, tell)
        if second is not None:
            return second
        size = f"{size}, nor one of {less},"
    smallest = f"{max(1, int(smaller * loaded.layout.block_bytes * _SMALLER) // 2**20)}M"
    raise MemoryBudgetError(
        f"no memory for a KV pool of {size} and what steps of {sizes.max_num_batched_tokens:,} tokens need beside it: {format_bytes(free)} "
        f"are free; use a smaller --kv-memory (such as {smallest}), --max-batched-tokens or --max-num-seqs"
    )


def _try(
    loaded: LoadedModel, sizes: StepSizes, num_blocks: int, tell: Callable[[str], None]
) -> KVCache | Fp8KVCache | NativeKVCache | None:
    """A pool that is ready for steps; None if there is no memory for it. Nothing of it is left then."""
    try:
        pool = loaded.make_kv_cache(num_blocks)
        loaded.model.record_graphs(pool, sizes.max_blocks, sizes.buckets(), tell)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        loaded.model.drop_graphs()
        return None
    return pool
