"""The KV pool where memory is short: measured first, made smaller once, refused with numbers."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor import pool_maker, step_memory
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.memory import first_error, is_out_of_memory
from chatpaged.engine.model_executor.model_runner import step_sizes
from chatpaged.engine.model_executor.models.code_path import choose_code
from chatpaged.engine.model_executor.models.loader import LoadedModel, load_model
from chatpaged.engine.model_executor.models.step_model import StepModel
from chatpaged.engine.model_executor.pool_maker import make_pool
from chatpaged.engine.model_executor.step_draws import StepDraws, draw_step
from chatpaged.engine.model_executor.step_memory import GRAPH_BYTES, StepSizes, largest_steps, measure_reserve
from chatpaged.engine.scheduler_output import LogitChanges, ScheduledRow
from chatpaged.engine.weight_files import check_directory
from chatpaged.errors import MemoryBudgetError

CPU = torch.device("cpu")
OPTIONS = EngineConfig(device="cpu", dtype="float64", max_num_seqs=4, max_num_batched_tokens=32, block_size=4)
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
Directory = Callable[[str], Path]


@pytest.fixture
def loaded(model_directory: Directory) -> LoadedModel:
    directory = model_directory("llama")
    files = check_directory(directory)
    path = choose_code(directory, files, OPTIONS, CPU, torch.float64)
    return load_model(directory, files, path, OPTIONS, CPU, lambda _: None)


def sizes(loaded: LoadedModel) -> StepSizes:
    return step_sizes(OPTIONS, loaded.model.max_model_len, CPU)


def failing(loaded: LoadedModel, times: int, error: BaseException = NO_MEMORY) -> tuple[LoadedModel, list[int]]:
    """The same, whose pools cannot be made so many times; and what was asked for."""
    asked: list[int] = []

    def make(num_blocks: int) -> Any:
        asked.append(num_blocks)
        if len(asked) <= times:
            raise error
        return loaded.make_kv_cache(num_blocks)

    return replace(loaded, make_kv_cache=make), asked


@pytest.mark.parametrize(
    "error", [NO_MEMORY, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), MemoryError()]
)
def test_a_smaller_pool_is_tried_once(loaded: LoadedModel, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    tight, asked = failing(loaded, 1, error)
    with caplog.at_level(logging.WARNING, logger="chatpaged"):
        pool = make_pool(tight, sizes(loaded), OPTIONS, CPU, lambda _: None)
    assert asked == [asked[0], int(asked[0] * 0.75)]
    assert pool.num_blocks == asked[1]
    assert "did not fit beside what steps need: it has" in caplog.text


def test_no_third_one(loaded: LoadedModel) -> None:
    tight, asked = failing(loaded, 2)
    with pytest.raises(MemoryBudgetError) as caught:
        make_pool(tight, sizes(loaded), OPTIONS, CPU, lambda _: None)
    assert len(asked) == 2
    told = str(caught.value)
    assert told.startswith("no memory for a KV pool of ")
    assert ", nor one of " in told
    assert "what steps of 32 tokens need beside it" in told
    assert "use a smaller --kv-memory (such as " in told
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("given", [replace(OPTIONS, kv_blocks=20), replace(OPTIONS, kv_memory=10**6)])
def test_a_size_that_was_asked_for_is_not_changed(loaded: LoadedModel, given: EngineConfig) -> None:
    tight, asked = failing(loaded, 1)
    with pytest.raises(MemoryBudgetError, match="no memory for a KV pool of"):
        make_pool(tight, sizes(loaded), given, CPU, lambda _: None)
    assert len(asked) == 1


def test_other_errors_are_not_about_memory(loaded: LoadedModel) -> None:
    tight, _ = failing(loaded, 1, RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        make_pool(tight, sizes(loaded), OPTIONS, CPU, lambda _: None)
    assert not is_out_of_memory(ValueError("can't allocate memory"))


@pytest.mark.parametrize(
    "told",
    [
        "Triton Error [CUDA]: out of memory",
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the documentation",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_errors_of_others_than_torch_are_about_memory(told: str) -> None:
    assert is_out_of_memory(RuntimeError(told))


def test_what_an_error_came_of_counts() -> None:
    """A recording that breaks off cannot be ended either, and it is the end's error that arrives."""

    def record() -> None:
        try:
            raise NO_MEMORY
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError, match="previous error") as caught:
        record()
    assert is_out_of_memory(caught.value)
    assert first_error(caught.value) is NO_MEMORY


class _Recording:
    """A model whose graphs do not fit beside a large pool."""

    def __init__(self, model: StepModel, most: int) -> None:
        self._model, self._most = model, most
        self.recorded: list[list[Bucket]] = []
        self.dropped = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def record_graphs(self, kv_cache: Any, max_blocks: int, buckets: list[Bucket], tell: object) -> int:
        if kv_cache.num_blocks > self._most:
            raise NO_MEMORY
        self.recorded.append(list(buckets))
        return len(self.recorded[-1])

    def drop_graphs(self) -> None:
        self.dropped += 1


def test_graphs_that_do_not_fit_make_the_pool_smaller(loaded: LoadedModel) -> None:
    most = int(2 * 4 * sizes(loaded).max_blocks * 0.8)
    model: Any = _Recording(loaded.model, most)
    pool = make_pool(replace(loaded, model=model), sizes(loaded), OPTIONS, CPU, lambda _: None)
    assert pool.num_blocks <= most
    assert model.recorded == [sizes(loaded).buckets()]
    assert model.dropped == 1


def test_the_reserve_is_what_the_largest_steps_took(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before; after the steps; when what is unused has been given back; after recording.
    free = iter([10**9, 10**9 - 9000, 10**9 - 2000, 10**9 - 2500])
    monkeypatch.setattr(step_memory, "free_memory", lambda _: next(free))
    model: Any = _Recording(loaded.model, 10**9)
    with torch.inference_mode():
        reserve = measure_reserve(replace(loaded, model=model), sizes(loaded), CPU, lambda _: None)
    assert reserve == 7000 + 500 + GRAPH_BYTES * len(sizes(loaded).buckets())
    assert model.recorded == [sizes(loaded).largest_buckets()]
    assert model.dropped == 1


def test_largest_steps_draw_in_all_ways(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top-p looks at all tokens, and what is reported takes memory as well."""
    asked: list[tuple[Any, ...]] = []

    def watched(draw: object, computed: Logits, rows: Sequence[ScheduledRow]) -> StepDraws:
        asked.append(tuple(type(row.samples[0].changes) for row in rows))
        drawn = draw_step(loaded.model.draw, computed, rows)
        assert all(report is not None for reports in drawn[1] for report in reports)
        return drawn

    monkeypatch.setattr(step_memory, "draw_step", watched)
    with torch.inference_mode():
        assert measure_reserve(loaded, sizes(loaded), CPU, lambda _: None) >= 0
    assert asked == [(LogitChanges,) * 4, (LogitChanges,)]


def test_the_reserve_is_taken_off_what_is_free(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(pool_maker, "measure_reserve", lambda *_: 600_000)
    monkeypatch.setattr("chatpaged.engine.model_executor.kv_cache.free_memory", lambda _: 1_000_000)
    pool = make_pool(loaded, sizes(loaded), OPTIONS, cuda, lambda _: None)
    assert pool.num_blocks == 360_000 // loaded.layout.block_bytes
    monkeypatch.setattr(pool_maker, "measure_reserve", lambda *_: 999_999)
    with pytest.raises(MemoryBudgetError, match=r"no room for a KV pool: 1 B are free beside 976\.6 KiB that steps need"):
        make_pool(loaded, sizes(loaded), OPTIONS, cuda, lambda _: None)


def test_a_step_that_does_not_fit_is_refused_with_numbers(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: object) -> None:
        raise NO_MEMORY

    monkeypatch.setattr(loaded.model, "forward", forward)
    with pytest.raises(MemoryBudgetError, match=r"not enough for a step of 32 tokens and 4 sequences; use a smaller --max-batched-tokens"):
        measure_reserve(loaded, sizes(loaded), CPU, lambda _: None)


def test_largest_steps() -> None:
    most = StepSizes(max_num_seqs=3, max_num_batched_tokens=32, max_model_len=20, block_size=4)
    shapes = [
        [(len(row.token_ids), row.start, len(row.block_table)) for row in step.rows] for step in largest_steps(most, long_decodes=True)
    ]
    assert shapes == [[(10, 0, 3)] * 3, [(20, 0, 5)], [(1, 0, 5)] * 3]
    assert len(list(largest_steps(most, long_decodes=False))) == 2
    one = StepSizes(max_num_seqs=1, max_num_batched_tokens=8, max_model_len=20, block_size=4)
    assert len(list(largest_steps(one, long_decodes=False))) == 1


LIMITED = """
import json, resource, sys
from pathlib import Path
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.errors import MemoryBudgetError
room, options = int(sys.argv[2]), json.loads(sys.argv[3])
limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + room
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    runner = ModelRunner.load(Path(sys.argv[1]), EngineConfig(device="cpu", threads=1, **options))
    print(json.dumps(runner.num_blocks * runner.block_bytes))
except MemoryBudgetError as error:
    print(json.dumps(str(error)))
"""


def limited(directory: Path, room: int, **options: Any) -> Any:
    """What an engine is told, or the bytes of its pool, where so many bytes of addresses are left."""
    arguments = [sys.executable, "-c", LIMITED, str(directory), str(room), json.dumps(options)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_process_that_may_not_have_the_memory_says_so(model_directory: Directory) -> None:
    told = limited(model_directory("llama"), 2 * 2**30, dtype="float64", kv_memory=3 * 2**30)
    assert re.match(r"--kv-memory \d+ needs 3.0 GiB, 1\.\d GiB are free; the largest that fits is --kv-blocks \d+", told)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_pool_fits_the_limit_of_the_process(model_directory: Directory) -> None:
    assert 0 < limited(model_directory("llama"), 2**30, memory_utilization=0.9, max_num_seqs=100_000) < 2**30


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_weights_that_cannot_even_be_looked_into(model_directory: Directory) -> None:
    assert re.match("out of memory while the model|the model .* needs", limited(model_directory("llama"), 2**16))
