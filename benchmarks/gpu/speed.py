"""One model: tokens a second with CUDA graphs and without, whole decode steps against the card's copies, and transformers beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.bandwidth import BATCHES as STEP_BATCHES
from benchmarks.gpu.bandwidth import BOUND_BATCHES, CONTEXTS, LEAST_PERCENT, tell
from benchmarks.gpu.models import about, model_directory, shape
from benchmarks.gpu.rows import Report

if TYPE_CHECKING:
    from benchmarks.gpu.engines import Loaded
    from chatpaged.bench_workloads import Workload

BATCHES = (1, 8, 32, 128)
PROMPT, NEW = 64, 128
LEAST_GRAPH_RATIO = 2


def run_qwen3(report: Report) -> None:
    """One part of this module."""
    _Speed(report, "qwen3").run()


def run_llama3(report: Report) -> None:
    """The other one."""
    _Speed(report, "llama3").run()


class _Speed:
    """One model's rows."""

    def __init__(self, report: Report, name: str) -> None:
        self._report, self._name = report, name
        self._smoke = report.settings.smoke
        self._directory: Path = model_directory(report, name)
        self._title = about(self._directory, name)
        self._batches = (1, 3) if self._smoke else BATCHES
        self._vocab_size: int = shape(name, smoke=self._smoke)["vocab_size"]
        self._decode: dict[bool, float] = {}
        self._ceiling = 0.0

    def run(self) -> None:
        """Ours with graphs, ours without, then transformers."""
        self._measure_ceiling()
        for eager in (False, True):
            way = "eager" if eager else "graphs"
            if self._report.has_time(f"{self._title}, {way}", 1):
                with self._report.attempt(f"{self._title}, {way}"):
                    self._ours(way, eager=eager)
        what = f"{self._title}: decode of one request, graphs by eager"
        if len(self._decode) == 2:
            least = None if self._smoke else LEAST_GRAPH_RATIO
            self._report.add(what, self._decode[False] / self._decode[True], "times", least=least)
        else:
            self._report.leave_out(what, "one of the two is missing", least=LEAST_GRAPH_RATIO)
        self._transformers()

    def _measure_ceiling(self) -> None:
        """Before a KV pool takes all memory."""
        import torch

        from benchmarks.gpu.engines import release
        from benchmarks.gpu.timing import copy_bandwidth

        with torch.inference_mode():
            self._ceiling = copy_bandwidth(torch.device(self._report.settings.device))
        release()
        self._report.add("copies within the card's memory, read and written", self._ceiling, "GB/s")

    def _ours(self, way: str, *, eager: bool) -> None:
        from benchmarks.gpu.engines import loaded

        context = 256 if self._smoke else max(CONTEXTS)
        with loaded(
            self._directory,
            self._report.settings.device,
            max_num_seqs=max(self._batches),
            max_model_len=context,
            swap_space=0,
            enforce_eager=eager,
        ) as ours:
            self._report.add(f"{self._title}, {way}: loading", ours.seconds, "s", note=str(ours.engine.code))
            for batch in self._batches:
                what = f"{self._title}, {way}: {batch} at once"
                if self._report.has_time(what, 1):
                    figures = ours.answer(self._workload(batch))
                    self._report.add(what, figures["tokens_per_second"] or 0.0, "tokens/s")
                    if batch == 1:
                        self._decode[eager] = figures["decode_tokens_per_second"] or 0.0
            if not eager:
                self._decode_steps(ours)

    def _workload(self, batch: int) -> Workload:
        from benchmarks.gpu.engines import random_requests

        new = 8 if self._smoke else NEW
        return random_requests(batch, (PROMPT, PROMPT), (new, new), self._vocab_size)

    def _decode_steps(self, ours: Loaded) -> None:
        """Whole decode steps with graphs: weights, keys and values by time."""
        ours.engine.forget_cached()
        ours.fill_pool()
        batches, contexts = ((1, 3), (32,)) if self._smoke else (STEP_BATCHES, CONTEXTS)
        for context in contexts:
            for batch in batches:
                what = f"{self._title}: whole decode step, {batch} x {context}"
                bound: dict[str, Any] = {"least": LEAST_PERCENT} if batch in BOUND_BATCHES else {}
                if ours.room(context) < batch:
                    self._report.leave_out(what, f"the KV pool holds {ours.room(context)} of these sequences", **bound)
                elif self._report.has_time(what, 1, **bound):
                    seconds = ours.decode_seconds(batch, context)
                    speed = ours.decode_bytes(batch, context) / seconds / 1e9
                    tell(self._report, what, speed, self._ceiling, is_bound=batch in BOUND_BATCHES, note=f"{1e3 * seconds:.2f} ms")

    def _transformers(self) -> None:
        from benchmarks.gpu.engines import release

        one_by_one = f"{self._title}, transformers' generate one by one"
        if not self._report.has_time(one_by_one, 5):
            return
        with self._report.attempt(one_by_one):
            from benchmarks.gpu.peers import GpuPeer

            release()
            peer = GpuPeer(self._directory, device=self._report.settings.device, dtype="auto")
            self._report.add(one_by_one, peer.one_by_one(self._workload(2)), "tokens/s")
            for batch in self._batches[:0:-1] if self._smoke else self._batches[::-1]:
                what = f"{self._title}, transformers' continuous batching: {batch} at once"
                if self._report.has_time(what, 3):
                    with self._report.attempt(what):
                        self._report.add(what, peer.continuous(self._workload(batch)), "tokens/s")
                    release()
