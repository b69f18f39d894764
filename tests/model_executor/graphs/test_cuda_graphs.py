"""How torch's graphs are used, with stand-ins of its functions: what is done in what order, and what is left after a failure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chatpaged.engine.model_executor.graphs.cuda_graphs import CudaGraphMaker

WAITS = RuntimeError("called a synchronizing CUDA operation")
BROKEN = RuntimeError("operation failed due to a previous error during capture")


class Device:
    """Stands in for `torch.cuda`. Like torch's own, its recording does not leave the stream where its end fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, end_fails: bool = False, end_is_clean: bool = False) -> None:
        self.told: list[Any] = []
        self.stream = "default"
        self.mode = 0
        self._end_fails, self._end_is_clean = end_fails, end_is_clean
        functions: dict[str, Any] = {
            "Stream": lambda _: SimpleNamespace(wait_stream=lambda _: None, device_index=3),
            "graph_pool_handle": lambda: (0, 7),
            "current_stream": lambda _: SimpleNamespace(wait_stream=lambda _: self.told.append("wait for it")),
            "CUDAGraph": lambda: "a graph",
            "stream": self._on_stream,
            "graph": self._recording,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": self._set_mode,
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end_allocation, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *given: self.told.append(("released", given)), raising=False)

    def _set_mode(self, mode: int | str) -> None:
        if mode == "error":
            warnings.warn("a prototype feature", stacklevel=2)
        self.mode = {"error": 2}.get(mode, 0) if isinstance(mode, str) else mode

    @contextmanager
    def _on_stream(self, _: object) -> Iterator[None]:
        before, self.stream = self.stream, "side"
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def _recording(self, *_: object, **given: object) -> Iterator[None]:
        assert given["pool"] == (0, 7)
        self.stream = "recording"
        try:
            yield
        finally:
            if self._end_fails:
                raise BROKEN
        self.stream = "side"

    def _end_allocation(self, *given: object) -> None:
        if self._end_is_clean:
            raise RuntimeError("not currently recording")
        self.told.append(("ended", given))

    def run(self, error: Exception | None = None, *, only: str = "") -> Callable[[], None]:
        """Work that says where it runs; it fails at a place."""

        def work() -> None:
            place = "checked" if self.mode == 2 else self.stream
            self.told.append(place)
            if error is not None and place == only:
                raise error

        return work


def make() -> CudaGraphMaker:
    return CudaGraphMaker(torch.device("cuda"))


@pytest.mark.filterwarnings("error")
def test_work_is_run_and_checked_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    maker = make()
    graph: Any = maker.record(device.run())
    assert graph == "a graph"
    assert device.told == ["side", "checked", "recording", "wait for it"]
    assert device.mode == 0
    device.told.clear()
    maker.record(device.run())  # what waits does so at any size
    assert device.told == ["side", "recording", "wait for it"]


def test_work_that_waits_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    with pytest.raises(RuntimeError) as caught:
        make().record(device.run(WAITS, only="checked"))
    assert caught.value is WAITS
    assert device.told == ["side", "checked"]
    assert (device.stream, device.mode) == ("default", 0)


def test_a_recording_that_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, end_fails=True)
    with pytest.raises(RuntimeError) as caught:
        make().record(device.run(WAITS, only="recording"))
    assert caught.value is BROKEN
    assert caught.value.__context__ is WAITS
    assert device.told[-2:] == [("ended", (3, (0, 7))), ("released", (3, (0, 7)))]
    assert device.stream == "default"


def test_where_torch_has_ended_it_nothing_is_released_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, end_fails=True, end_is_clean=True)
    with pytest.raises(RuntimeError):
        make().record(device.run(WAITS, only="recording"))
    assert device.told == ["side", "checked", "recording"]
