"""Times of a step's parts, with a clock and a device that do as they are told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import torch

from chatpaged.engine.model_executor.step_times import StepTimes


@dataclass
class Machine:
    """A host and a device that works on what was queued in order."""

    host: float = 100.0
    device_free: float = 0.0
    waits: list[float] = field(default_factory=list)

    def work(self, host: float, device: float) -> None:
        """The host queues work, which takes it a while; the device begins when it has it and is free."""
        self.host += host
        self.device_free = max(self.device_free, self.host) + device

    def wait(self) -> None:
        self.host = max(self.host, self.device_free)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "stream of cuda:0"
            self.passed = max(machine.host, machine.device_free)

        def synchronize(self) -> None:
            machine.waits.append(self.passed)
            machine.host = max(machine.host, self.passed)

        def elapsed_time(self, other: Event) -> float:
            assert machine.host >= other.passed, "the event has not been passed"
            return 1000 * (other.passed - self.passed)

    monkeypatch.setattr(time, "perf_counter", lambda: machine.host)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    return machine


def test_a_cpu_is_timed_by_the_clock(machine: Machine) -> None:
    times = StepTimes(torch.device("cpu"))
    for seconds in (1.0, 2.0):
        machine.host += seconds
        times.mark()
    machine.host += 0.5
    assert times.seconds() == [1.0, 2.0, 0.5]
    assert not machine.waits


def test_a_device_is_timed_by_when_it_has_done_the_work(machine: Machine) -> None:
    times = StepTimes(torch.device("cuda:0"))
    machine.work(0.25, 1.0)  # copies of blocks
    times.mark()
    machine.work(0.5, 0.25)  # building tensors while blocks are still copied, and their transfer
    times.mark()
    machine.work(1.0, 8.0)  # the forward pass
    times.mark()
    machine.work(0.5, 0.5)  # drawing
    machine.wait()
    assert times.seconds() == [1.25, 0.25, 8.25, 0.5]
    assert machine.host == 110.25  # as much as all of them


def test_work_that_the_host_is_slow_to_queue_counts_where_it_belongs(machine: Machine) -> None:
    times = StepTimes(torch.device("cuda:0"))
    times.mark()
    machine.work(2.0, 0.0)
    times.mark()
    machine.work(4.0, 0.5)
    times.mark()
    machine.work(1.0, 0.25)
    machine.wait()
    assert times.seconds() == [0.0, 2.0, 4.5, 0.75]


def test_a_step_that_reads_nothing_is_waited_for(machine: Machine) -> None:
    times = StepTimes(torch.device("cuda:0"))
    machine.work(0.5, 3.0)
    times.mark()
    assert times.seconds() == [3.5, 0.0]
    assert machine.waits == [103.5]
