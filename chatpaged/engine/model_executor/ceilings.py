"""What the machine can do at most: `python -m chatpaged.engine.model_executor.ceilings THREADS DEVICE`, one line of JSON.

Measured in a process of its own, before anything else is loaded. A decode step is bound by how fast weights are read, a prefill step
by how fast matrices are multiplied; what the engine reaches means something only beside these two.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from chatpaged.engine.model_executor.native.library import Team, native_problem

READ_BYTES = 512 * 2**20  # far more than any cache holds
MATRIX_ROWS = 1024
_READS, _PRODUCTS = 5, 20


def read_bandwidth(read: Callable[[], object], num_bytes: int, times: int = _READS) -> float:
    """GB/s: the fastest of some reads of memory.

    Args:
        read: reads all of it once, on all threads, and waits until that is done.
        num_bytes: how much that is.
        times: how often.
    """
    return num_bytes / _fastest(read, times) / 1e9


def native_read_bandwidth(memory: torch.Tensor, times: int = _READS) -> float:
    """GB/s: the same with the native kernels and the threads that torch is set to.

    Args:
        memory: float32 on the CPU, contiguous.
        times: how often.
    """
    team, total = Team(torch.get_num_threads()), ctypes.c_float()
    try:
        speeds: list[float] = [
            team.library.cp_read_bandwidth(team.handle, memory.data_ptr(), memory.nbytes, ctypes.byref(total)) for _ in range(times)
        ]
        return max(speeds) / 1e9
    finally:
        team.close()


def matrix_speed(multiply: Callable[[], object], rows: int, times: int = _PRODUCTS) -> float:
    """GFLOP/s: the fastest of some products of two square matrices."""
    return 2 * rows**3 / _fastest(multiply, times) / 1e9


def _fastest(function: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def measure(device: torch.device, read_bytes: int = READ_BYTES, rows: int = MATRIX_ROWS) -> dict[str, Any]:
    """Both, with the threads that torch is set to.

    Products are torch's own in float32. Memory is read by the native kernels where they are there; torch's sum spends its time computing.
    """

    def finished(result: torch.Tensor) -> torch.Tensor:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return result

    with torch.inference_mode():
        memory = torch.ones(read_bytes // 4, device=device)
        left, right = (torch.rand(rows, rows, device=device) for _ in range(2))
        return {
            "device": device.type,
            "threads": torch.get_num_threads(),
            "read_gb_per_second": native_read_bandwidth(memory)
            if device.type == "cpu" and native_problem() is None
            else read_bandwidth(lambda: finished(memory.sum()), memory.nbytes),
            "float32_gflop_per_second": matrix_speed(lambda: finished(left @ right), rows),
        }


def main() -> None:
    """Measures and tells."""
    threads, name = sys.argv[1:]
    torch.set_num_threads(int(threads))
    on_gpu = name in {"auto", "cuda"} and torch.cuda.is_available()
    sys.stdout.write(json.dumps(measure(torch.device("cuda" if on_gpu else "cpu"))) + "\n")


if __name__ == "__main__":
    main()
