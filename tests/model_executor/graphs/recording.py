"""Graphs without a GPU: operations with the very tensors and numbers they were recorded with, as a CUDA graph has them.

A replay runs no Python of the model: what was a number while recording stays that number, what was a tensor is the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import plain_attention
from chatpaged.engine.model_executor.kv_cache import KVCache

WAITS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "is_nonzero", "equal"})
"""Operations that wait for the device, which cannot be recorded."""


def tensors(values: Any) -> list[torch.Tensor]:
    """All tensors in arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Operation:
    """One operation, its arguments, and where it has left its results."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[torch.Tensor]

    def repeat(self) -> None:
        """Does it again. Views are there already."""
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors((self.args, self.kwargs))}
        if self.function._schema.is_mutable:
            self.function(*self.args, **self.kwargs)
        elif not all(result.untyped_storage().data_ptr() in memory for result in self.results) or not self.results:
            for place, result in zip(self.results, tensors(self.function(*self.args, **self.kwargs)), strict=True):
                place.copy_(result)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func._schema.name.split("::")[1]
        if name in WAITS:
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.operations.append(Operation(func, args, kwargs or {}, tensors(result)))
        return result


class RecordedGraph:
    """One recording. Satisfies `Graph`."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for operation in self.operations:
            operation.repeat()


class Recordings:
    """Satisfies `GraphMaker`."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []

    def record(self, run: Callable[[], None]) -> RecordedGraph:
        run()
        with _Recorder() as recorder:
            run()
        self.graphs.append(RecordedGraph(recorder.operations))
        return self.graphs[-1]

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)


class _Again:
    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class Repeats:
    """Runs a step anew on the same buffers, where there is no recording, as of interpreted kernels. Satisfies `GraphMaker`."""

    def record(self, run: Callable[[], None]) -> _Again:
        run()
        return _Again(run)


class StaticAttention:
    """Attention that depends on nothing but tensors, as Triton's: each token over all slots of its sequence. Satisfies `PagedAttention`."""

    def __init__(self, rows: StepRows, kv_cache: KVCache) -> None:
        self._rows = rows
        self._kv_cache = kv_cache

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        rows, pool = self._rows, self._kv_cache.pool
        size = self._kv_cache.layout.block_size
        # What goes nowhere goes to the null block, where nobody looks.
        slots = rows.slots.clamp(min=0)
        for part, new in enumerate((key, value)):
            pool[:, layer, part, :, : new.shape[1], : new.shape[2]][slots // size, slots % size] = new
        count = torch.arange(len(query), dtype=torch.int32)
        sequence = torch.searchsorted(rows.cu_q, count, right=True) - 1
        ends = rows.seq_lens[sequence]
        positions = ends - rows.cu_q[sequence + 1] + count
        table = rows.block_table[sequence].to(torch.int64)
        found = pool[table, layer]
        keys, values = (
            found[:, :, part, :, : new.shape[1], : new.shape[2]].flatten(1, 2).transpose(1, 2) for part, new in enumerate((key, value))
        )
        places = torch.arange(keys.shape[2])
        hidden = (places > positions[:, None]) | (places >= ends[:, None])
        if options.window is not None:
            hidden |= places <= positions[:, None] - options.window
        keys, values = (part.masked_fill((places >= ends[:, None])[:, None, :, None], 0) for part in (keys, values))
        bias = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(hidden, -torch.inf)[:, None, None, :]
        attended = plain_attention(query.unsqueeze(2), keys, values, bias, options).squeeze(2)
        return attended.masked_fill((ends == 0)[:, None, None], 0)
