"""How long the parts of a step take, where a device works on what was queued long after it was queued."""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class StepTimes:
    """Marks between the parts of a step.

    On CUDA a mark is queued behind the work before it, and is passed when that is done: then nobody has to wait at it. The last mark
    is the host's own, after it has waited for everything.
    """

    def __init__(self, device: torch.device) -> None:
        """Begins the first part."""
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._passed: list[float] = []
        self.mark()

    def mark(self) -> None:
        """Ends a part and begins the next one."""
        self._passed.append(time.perf_counter())
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's own
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)

    def seconds(self) -> list[float]:
        """Ends the last part, and waits for the device if nobody has. Returns the seconds of each part; they sum up to the step's."""
        if not self._events:
            passed = [*self._passed, time.perf_counter()]
        else:
            first = self._events[0]
            self._events[-1].synchronize()
            begin, end = self._passed[0], time.perf_counter()
            passed = [min(begin + first.elapsed_time(event) / 1000, end) for event in self._events] + [end]
        return [after - before for before, after in pairwise(passed)]
