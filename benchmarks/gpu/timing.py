"""Seconds of work on a GPU, and what the card can do at most."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_WARM_UP = 3


def recorded(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same work as one CUDA graph, so that only the card's time counts; beside a CPU, the work as it is.

    Args:
        run: launches work, always the same.
        device: where it runs.
    """
    if device.type != "cuda":
        return run
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # whatever is compiled or reserved once must not come while a graph is recorded
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def seconds_of(run: Callable[[], object], device: torch.device, *, times: int = 10) -> float:
    """The median time that some work takes, by CUDA's own clock.

    Args:
        run: launches it.
        device: where it runs.
        times: how often it is measured.
    """
    run()
    if device.type != "cuda":
        return statistics.median(_wall(run) for _ in range(times))
    measured: list[float] = []
    for _ in range(times):
        begin, end = _event(), _event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        measured.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(measured)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _wall(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def copy_bandwidth(device: torch.device) -> float:
    """GB/s: the most that copying within the card's memory gives, bytes that are read and bytes that are written."""
    size = 4 * 2**30 if device.type == "cuda" else 2**20
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device) / 1e9
