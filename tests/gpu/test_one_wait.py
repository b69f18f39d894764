"""A step waits for its device once: for the tokens that it has drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor import transfers
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.graphs.step_buffers import StepBuffers
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.sampler import FIRST_CANDIDATES, queue_draws
from chatpaged.engine.model_executor.step_draws import draw_step
from chatpaged.engine.model_executor.step_numbers import StepNumbers
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from tests.model_executor.test_step_draws import mixed_rows
from tests.model_executor.tiny_models import save_family

CPU = torch.device("cpu")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A list that grows with each read: of how many tensors it was. Whatever else waits raises."""
    counts: list[int] = []
    plain = transfers.read

    def counted(tensors: Sequence[torch.Tensor]) -> tuple[transfers.Array, ...]:
        counts.append(len(tensors))
        torch.cuda.set_sync_debug_mode("default")
        try:
            return plain(tensors)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(transfers, "read", counted)
    yield counts
    torch.cuda.set_sync_debug_mode("default")


def outputs() -> Iterator[SchedulerOutput]:
    """Five prompts, then two steps of decoding, with draws of all kinds."""
    kinds = mixed_rows(5)
    for start, tokens in ((0, (5, 6, 7, 8)), (4, (9,)), (5, (10,))):
        yield SchedulerOutput(0, tuple(ScheduledRow(i, tokens, start, (i + 1,), row.samples) for i, row in enumerate(kinds)), ())


def test_a_step_of_a_model(tmp_path: Path, reads: list[int]) -> None:
    options: Any = {"device": "cuda", "dtype": "bfloat16", "kv_blocks": 40, "attention": "triton", "enforce_eager": True}
    runner = ModelRunner.load(save_family("llama", tmp_path), EngineConfig(**options))
    first, *others = outputs()
    runner.execute(first)  # kernels are compiled, and memory is had from the driver: both may wait
    for output in outputs():
        runner.execute(output)
    reads.clear()
    torch.cuda.set_sync_debug_mode("error")
    for output in (first, *others):
        result = runner.execute(output)
        assert min(result.operations, result.prepare, result.forward, result.sample) >= 0
        assert result.forward > 0
    assert len(reads) == 3


def test_draws_are_those_of_a_cpu(reads: list[int]) -> None:
    # Numbers so far apart that rounding in another order decides nothing.
    logits = (4 * torch.randn(40, 3 * FIRST_CANDIDATES, generator=torch.Generator().manual_seed(1))).round() / 2
    rows = mixed_rows(40)
    tokens, reports = draw_step(queue_draws, Logits(logits), rows)
    there = Logits(logits.cuda())
    draw_step(queue_draws, there, rows)
    reads.clear()
    torch.cuda.set_sync_debug_mode("error")
    again, others = draw_step(queue_draws, there, rows)
    assert len(reads) == 1
    assert again == tokens
    for ours, theirs in zip(reports, others, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert other.logprob == pytest.approx(one.logprob, abs=1e-4)


def test_flat_distributions_are_drawn_like_on_a_cpu(reads: list[int]) -> None:
    logits = torch.linspace(0.0, 0.5, 3 * FIRST_CANDIDATES).repeat(3, 1)
    rows = tuple(ScheduledRow(i, (1,), 0, (1,), (SampleRow(0, 0, 1.0, 0, 0.9, 0.1 + 0.3 * i),)) for i in range(3))
    tokens, _ = draw_step(queue_draws, Logits(logits), rows)
    reads.clear()
    again, _ = draw_step(queue_draws, Logits(logits.cuda()), rows)
    assert again == tokens
    assert len(reads) == 2


def test_numbers_go_up_from_pinned_memory_in_one_piece(reads: list[int]) -> None:
    output = SchedulerOutput(0, tuple(ScheduledRow(i, (7, 8), 15, (3 + i, 9 + i), ()) for i in range(3)), ())
    here = InputBatch.build(output, 16, CPU)
    device = torch.device("cuda")
    torch.cuda.set_sync_debug_mode("error")
    there = InputBatch.build(output, 16, device)
    torch.cuda.set_sync_debug_mode("default")
    assert there.tables is not None
    for name in ("input_ids", "positions", "slot_blocks", "slot_offsets", "logits_rows"):
        assert torch.equal(getattr(there, name).cpu(), getattr(here, name))
    for name in ("cu_q", "seq_lens", "block_table", "slots"):
        assert torch.equal(getattr(there.tables, name).cpu(), getattr(here.row_tables(16), name))
    assert transfers.pack([here.input_ids.numpy()], is_pinned=True).is_pinned()
    assert not reads


def test_a_graphs_input_is_filled_without_waiting(reads: list[int]) -> None:
    rows = tuple(ScheduledRow(i, (7, 8), 15, (3 + i, 9 + i), ()) for i in range(3))
    numbers = StepNumbers.lay_out(rows, 16)
    bucket = Bucket(8, 5, only_single=False)
    filled = []
    for device in ("cpu", "cuda"):
        buffers = StepBuffers(16, 6, 4, torch.device(device))
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        buffers.clear(bucket)
        buffers.fill(bucket, numbers)
        torch.cuda.set_sync_debug_mode("default")
        given = buffers.input(bucket)
        filled.append([given.input_ids, given.positions, given.logits_rows, given.rows.slots, given.rows.cu_q, given.rows.seq_lens])
    for here, there in zip(*filled, strict=True):
        assert torch.equal(there.cpu(), here)
    assert not reads
