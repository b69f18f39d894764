"""The machine that figures are measured on: without it they mean nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import chatpaged
from chatpaged.child_process import failure_reason, run_module
from chatpaged.engine.config import EngineConfig
from chatpaged.errors import ChatpagedError

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


def num_threads(config: EngineConfig) -> int:
    """The threads that the engine computes with; see `EngineConfig.threads`."""
    return config.threads if config.threads is not None else psutil.cpu_count(logical=False) or 1


def describe_machine(threads: int) -> dict[str, Any]:
    """Processor, threads, versions and commit. Libraries are those that have been loaded by now."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    return {
        "processor": _processor(),
        "cpus": _num_cpus(),
        "threads": threads,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "chatpaged": chatpaged.__version__,
        "commit": _commit(),
        **{name: str(version) for name, version in versions.items() if version is not None},
    }


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Where the program is run from its repository, the commit."""
    root = Path(chatpaged.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def measure_ceilings(threads: int, device: str) -> dict[str, Any]:
    """How fast the machine reads memory and multiplies matrices, measured in a process of its own.

    Raises:
        ChatpagedError: they cannot be measured.
    """
    done = run_module("chatpaged.engine.model_executor.ceilings", str(threads), device)
    if done.returncode != 0:
        raise ChatpagedError(f"what the machine can do at most cannot be measured: {failure_reason(done)}")
    ceilings: dict[str, Any] = json.loads(done.stdout)
    return ceilings


class LoadMeter:
    """The share of the CPUs that other programs use meanwhile. A pass with more than a few percent is worth little."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def foreign_percent(self) -> float:
        """Since the meter was made."""
        capacity = (time.perf_counter() - self._begin) * (psutil.cpu_count() or 1)
        foreign = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return max(0.0, 100 * foreign / capacity) if capacity > 0 else 0.0


def _busy_seconds() -> float:
    """Of all CPUs; what the hypervisor takes counts as well."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_seconds() -> float:
    """Of this process and those that it has started."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has ended meanwhile
        total += times.user + times.system
    return total
