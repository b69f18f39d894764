"""CUDA graphs: what a forward pass launches, recorded once and launched as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CudaGraphMaker:
    """Records on a stream of its own, into one pool of memory for all graphs: they never run at the same time. Satisfies `GraphMaker`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """See `GraphMaker.record`. A replay is queued on the current stream."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run()  # kernels are compiled, libraries take their work space: neither can be done while recording
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may use the device meanwhile, a benchmark's or a plugin's: that spoils nothing.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            run()
        return graph
