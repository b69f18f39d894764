"""One step laid out, wherever its numbers lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chatpaged.engine.block_pool import NULL_BLOCK
from chatpaged.engine.model_executor import transfers
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from tests.model_executor.no_waiting import device_like

CPU = torch.device("cpu")
GREEDY = SampleRow(0, 0, 0.0, 0, 1.0, 0.0)


@st.composite
def steps(draw: st.DrawFn) -> tuple[SchedulerOutput, int]:
    """A step and its block size."""
    block_size = draw(st.sampled_from([1, 2, 16]))
    rows = []
    for i in range(draw(st.integers(0, 5))):
        start, length = draw(st.integers(0, 70)), draw(st.one_of(st.just(1), st.integers(1, 50)))
        table = draw(st.permutations(range(1, 130)))[: -(-(start + length) // block_size)]
        rows.append(ScheduledRow(i, tuple(range(100 * i, 100 * i + length)), start, tuple(table), draw(st.sampled_from([(), (GREEDY,)]))))
    return SchedulerOutput(0, tuple(rows), ()), block_size


def check(batch: InputBatch, rows: StepRows, output: SchedulerOutput, block_size: int) -> None:
    """Token by token and row by row."""
    tokens = [(row, i) for row in output.rows for i in range(len(row.token_ids))]
    assert batch.input_ids.tolist() == [row.token_ids[i] for row, i in tokens]
    assert batch.positions.tolist() == [row.start + i for row, i in tokens]
    assert batch.slot_blocks.tolist() == [row.block_table[(row.start + i) // block_size] for row, i in tokens]
    assert batch.slot_offsets.tolist() == [(row.start + i) % block_size for row, i in tokens]
    ends = [i for i, (row, place) in enumerate(tokens) if place == len(row.token_ids) - 1]
    assert batch.logits_rows.tolist() == [end for end, row in zip(ends, output.rows, strict=True) if row.samples]
    assert [(span.begin + span.length - 1, span.num_keys, span.block_table) for span in batch.spans] == [
        (end, row.end, row.block_table) for end, row in zip(ends, output.rows, strict=True)
    ]
    assert rows.cu_q.tolist() == [0, *(end + 1 for end in ends)]
    assert rows.seq_lens.tolist() == [row.end for row in output.rows]
    assert rows.slots.tolist() == (batch.slot_blocks * block_size + batch.slot_offsets).tolist()
    width = rows.block_table.shape[1]
    assert width.bit_count() == 1
    padded = [[*row.block_table, *(NULL_BLOCK,) * (width - len(row.block_table))] for row in output.rows]
    assert rows.block_table.tolist() == padded
    assert rows.only_single == all(len(row.token_ids) == 1 for row in output.rows)
    whole = (batch.input_ids, batch.positions, batch.slot_blocks, batch.slot_offsets, batch.logits_rows, rows.slots)
    assert {part.dtype for part in whole} == {torch.int64}
    assert {part.dtype for part in (rows.cu_q, rows.seq_lens, rows.block_table)} == {torch.int32}
    assert all(part.is_contiguous() for part in (*whole, rows.cu_q, rows.seq_lens, rows.block_table))


@given(steps())
def test_layout(step: tuple[SchedulerOutput, int]) -> None:
    output, block_size = step
    batch = InputBatch.build(output, block_size, CPU)
    check(batch, StepRows.build(batch, block_size), output, block_size)
    with device_like() as reads:
        there = InputBatch.build(output, block_size, CPU)
        rows = StepRows.build(there, block_size)
    assert not reads
    check(there, rows, output, block_size)


def test_one_transfer_for_tokens_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[int] = []

    plain = transfers.upload

    def upload(arrays: Any, device: torch.device) -> tuple[torch.Tensor, ...]:
        uploads.append(len(arrays))
        return plain(arrays, device)

    monkeypatch.setattr(transfers, "upload", upload)
    monkeypatch.setattr(transfers, "is_host", lambda _: False)
    output = SchedulerOutput(0, (ScheduledRow(0, (7, 8), 15, (3, 5), (GREEDY,)),), ())
    batch = InputBatch.build(output, 16, CPU)
    assert StepRows.build(batch, 16).slots.tolist() == [63, 80]
    assert uploads == [6]
