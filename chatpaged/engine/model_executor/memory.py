"""How much memory there is, and what to say when it is not enough."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from chatpaged.errors import MemoryBudgetError

_CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_NO_MEMORY = re.compile("can't allocate memory|Cannot allocate memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED")
"""Of torch on a CPU and of the system; of CUDA itself, and of Triton, when a kernel or a graph is loaded; of a library's work space."""
_BESIDE = 256 * 2**20
"""Addresses that stacks of threads, libraries still to come and the like take, bytes."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device.

    On the CPU it is what the system calls available, or less where a container's limit, or that of the process's addresses
    (`ulimit -v`), is lower.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)  # Apple chips share one memory
    for limit, usage in _CGROUP_LIMITS:
        room = _room(limit, usage)
        if room is not None:
            available = min(available, room)
    addresses = _free_addresses()
    return available if addresses is None else min(available, addresses)


def _free_addresses() -> int | None:
    """Bytes of addresses that this process may still take; None where there is no limit, or the system does not know one."""
    process = psutil.Process()
    if not sys.platform.startswith("linux"):
        return None
    limit, _ = process.rlimit(psutil.RLIMIT_AS)
    return None if limit == psutil.RLIM_INFINITY else max(0, limit - process.memory_info().vms - _BESIDE)


def _room(limit: Path, usage: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(usage.read_text()))
    except (OSError, ValueError):  # no such control group, or no limit ("max")
        return None


def first_error(error: BaseException) -> BaseException:
    """The error that an error came of: one in a recording makes its end fail too."""
    return list(_came_of(error))[-1]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error came of memory that could not be had. Torch has an error of its own for devices, but not everybody raises it."""
    return any(
        isinstance(one, torch.OutOfMemoryError | MemoryError) or (isinstance(one, RuntimeError) and _NO_MEMORY.search(str(one)) is not None)
        for one in _came_of(error)
    )


def _came_of(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__context__


def release_unused(device: torch.device) -> None:
    """Gives memory back to the system that torch keeps for later."""
    if device.type == "cuda":
        gc.collect()  # tensors of an error's frames refer to each other
        torch.cuda.empty_cache()
        getattr(torch._C, "_host_emptyCache", _nothing)()  # noqa: SLF001 - pinned memory; there is no public function


def _nothing() -> None:
    """Torch cannot give that back."""


@contextmanager
def memory_for(what: str, needed: int, device: torch.device, advice: str) -> Iterator[None]:
    """Around what takes memory that was there when it was looked at, but may be gone, or in pieces that are too small.

    Args:
        what: for the message.
        needed: bytes, about.
        device: whose memory.
        advice: what the user can do.

    Raises:
        MemoryBudgetError: memory could not be had.
    """
    free = free_memory(device)
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release_unused(device)
        numbers = f"it needs about {format_bytes(needed)}, {format_bytes(free)} were free on {device.type}"
        raise MemoryBudgetError(f"out of memory while {what} was loaded: {numbers}; {advice}") from error


def format_bytes(count: float) -> str:
    """A size for people: `512 B`, `1.5 GiB`."""
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def require_memory(what: str, needed: int, available: int, advice: str) -> None:
    """Refuses before anything is allocated.

    Raises:
        MemoryBudgetError: more is needed than there is.
    """
    if needed > available:
        raise MemoryBudgetError(f"{what} needs {format_bytes(needed)}, {format_bytes(available)} are free; {advice}")
