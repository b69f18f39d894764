"""Carries out block operations: copies inside the pool, to and from host memory, to and from whoever keeps files.

```text
pool rows  [num_blocks, block_bytes]     a block of all layers is one contiguous row: one copy moves it
host rows  [num_slots,  block_bytes]     pinned memory beside a GPU; a mapped file without a name beside a CPU
```

On a GPU all copies are queued on the stream that computes, in order: a row that is overwritten afterwards has been read by then. Only
bytes for a file have to be waited for.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from chatpaged import paths
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import BlockExchange
from chatpaged.engine.model_executor.memory import format_bytes, free_memory
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.errors import InvalidRequestError, MemoryBudgetError

_log = logging.getLogger(__name__)
DEFAULT_CUDA_SWAP = 4 * 2**30


class BlockMoves:
    """The rows of a pool and of the host memory below it."""

    def __init__(self, pool: torch.Tensor, host: torch.Tensor | None = None) -> None:
        """Looks at a pool as rows of bytes.

        Args:
            pool: contiguous; its first dimension is the block.
            host: `[num_slots, block_bytes]` uint8, if there is memory below.
        """
        self.rows = pool.view(pool.shape[0], -1).view(torch.uint8)
        self.host = host
        self.exchange: BlockExchange | None = None

    def apply(self, operations: Iterable[BlockOperation]) -> None:
        """Carries out operations in order; beside a GPU, queues them."""
        for operation in operations:
            self._apply(operation.kind, operation.source, operation.destination)

    def _apply(self, kind: BlockOperationKind, source: int, destination: int) -> None:
        if kind is BlockOperationKind.COPY:
            _copy(self.rows[source], self.rows[destination])
        elif kind is BlockOperationKind.SWAP_OUT:
            _copy(self.rows[source], self._host_rows[destination])
        elif kind is BlockOperationKind.SWAP_IN:
            _copy(self._host_rows[source], self.rows[destination])
        elif self.exchange is None:
            raise RuntimeError(f"there is nobody to {kind.value} blocks")
        elif kind is BlockOperationKind.SAVE:
            row: Any = self.rows[source].cpu().numpy()  # numpy's arrays are buffers, but are not typed as such
            self.exchange.leave(destination, bytearray(row))
        else:
            _copy(torch.frombuffer(self.exchange.fetch(source), dtype=torch.uint8), self.rows[destination])

    @property
    def _host_rows(self) -> torch.Tensor:
        if self.host is None:
            raise RuntimeError("there is no host memory for blocks")
        return self.host


def _copy(source: torch.Tensor, destination: torch.Tensor) -> None:
    """One row of bytes."""
    if source.is_cpu and destination.is_cpu:
        # One thread is as fast, and torch's would wait for each other: beside other programs, a hundred times as long.
        np.copyto(destination.numpy(), source.numpy())
    else:
        destination.copy_(source, non_blocking=True)


def swap_bytes(config: EngineConfig, device: torch.device) -> int:
    """Host memory for blocks that make room: what was asked for, else some beside a GPU. Beside a CPU there are block files already."""
    if config.swap_space is not None:
        return config.swap_space
    if device.type != "cuda":
        return 0
    most = min(DEFAULT_CUDA_SWAP, free_memory(torch.device("cpu")) // 4)
    return 1 << (most.bit_length() - 1) if most else 0  # torch takes pinned memory in powers of two, whatever is asked for


def make_host_rows(num_bytes: int, block_bytes: int, device: torch.device, *, asked_for: bool = True) -> torch.Tensor | None:
    """Memory for blocks that make room on the device: `[num_slots, block_bytes]` uint8.

    Args:
        num_bytes: how much; 0 is none.
        block_bytes: bytes of a block.
        device: where the pool lies. Beside a CPU the memory is a file, of which the system keeps in memory what fits.
        asked_for: whether the user has named the size. If not, there is none where it cannot be had.

    Raises:
        InvalidRequestError: it holds no block.
        MemoryBudgetError: there is not so much.
    """
    num_slots = num_bytes // block_bytes
    if num_bytes and not num_slots and asked_for:
        raise InvalidRequestError(
            f"a swap space of {format_bytes(num_bytes)} holds no block: this model needs at least {format_bytes(block_bytes)}; "
            "use a larger --swap-space, or 0 for none"
        )
    if not num_slots:
        return None
    size = num_slots * block_bytes
    if device.type == "cpu":
        return torch.frombuffer(_mapped_file(size), dtype=torch.uint8).view(num_slots, block_bytes)
    try:
        return torch.empty((num_slots, block_bytes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    except RuntimeError as error:
        if not asked_for:  # containers and virtual machines may allow little
            _log.warning("no swap space: %s of pinned memory cannot be had (--swap-space sets its size)", format_bytes(size))
            return None
        raise MemoryBudgetError(f"--swap-space needs {format_bytes(size)} of pinned memory, which are not there; use less") from error


def _mapped_file(size: int) -> mmap.mmap:
    """A file without a name in the cache, all of its room taken: a mapping into a full disk would end the process."""
    directory = paths.private_dir(paths.cache_dir())
    free = shutil.disk_usage(directory).free
    problem = MemoryBudgetError(
        f"--swap-space needs {format_bytes(size)} on the disk of {directory}, {format_bytes(free)} are free; use a smaller one"
    )
    if size > free:
        raise problem
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # not on macOS
                file.truncate(size)
        except OSError as error:
            raise MemoryBudgetError(
                f"--swap-space: {format_bytes(size)} in {directory} cannot be reserved ({error.strerror}); use a smaller one"
            ) from error
        return mmap.mmap(file.fileno(), size)
