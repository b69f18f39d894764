"""CUDA graphs: what a forward pass launches, recorded once and launched as one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


class CudaGraphMaker:
    """Records on a stream of its own, into one pool of memory for all graphs: they never run at the same time. Satisfies `GraphMaker`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._is_checked = False

    def record(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """See `GraphMaker.record`. A replay is queued on the current stream."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        # Around the recording as well: where its end fails, torch does not go back to the stream it came from.
        with torch.cuda.stream(stream):
            run()  # kernels are compiled, libraries take their work space: neither can be done while recording
            if not self._is_checked:
                with _waiting_forbidden():
                    run()
                self._is_checked = True
            self._capture(graph, run)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return graph

    def _capture(self, graph: torch.cuda.CUDAGraph, run: Callable[[], None]) -> None:
        try:
            # Other threads of this process may use the device meanwhile, a benchmark's or a plugin's: that spoils nothing.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                run()
        except BaseException:
            self._end_allocation()
            raise

    def _end_allocation(self) -> None:
        """Tells torch's allocator that a recording is over that could not be ended.

        Until 2.12 torch forgets to: it would never give any memory back again, or stop at an assertion when asked to
        (pytorch/pytorch#180395). Where it does not forget, it refuses to be told.
        """
        index = self._stream.device_index
        with suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(index, self._pool)  # noqa: SLF001 - there is no public function
            torch._C._cuda_releasePool(index, self._pool)  # noqa: SLF001 - likewise; the graph that never was holds it


@contextmanager
def _waiting_forbidden() -> Iterator[None]:
    """Makes whatever waits for the device an error that says so. While recording it would be one that spoils the recording."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not notice all that waits, says torch
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
