"""Replayed steps give what eager ones give, whatever came before; and the tests see it where they do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.graphs.buckets import Bucket, decode_buckets, mixed_buckets
from chatpaged.engine.model_executor.graphs.step_buffers import StepBuffers
from chatpaged.engine.model_executor.graphs.step_graphs import StepGraphs
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.step_numbers import StepNumbers
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow
from tests.model_executor.graphs.recording import RecordedGraph, Recordings, StaticAttention
from tests.model_executor.harness import load
from tests.model_executor.logits import Model

CPU = torch.device("cpu")
BLOCK_SIZE = 4
MAX_SEQS = 6
MAX_LEN = 48
BLOCKS_EACH = MAX_LEN // BLOCK_SIZE
SAMPLE = (SampleRow(0, 0, 0.0, 0, 1.0, 0.0),)
BUCKETS = [*decode_buckets(MAX_SEQS), *mixed_buckets(MAX_SEQS, 80)]


@dataclass
class World:
    """Sequences that grow by random steps, computed twice: eagerly, and by graphs."""

    model: Model
    caches: tuple[KVCache, KVCache]
    maker: Recordings
    graphs: StepGraphs
    random: random.Random
    lengths: dict[int, int] = field(default_factory=dict)
    worst: float = 0.0
    padded: int = 0

    @classmethod
    def make(cls, model: Model, seed: int = 0, maker: Recordings | None = None) -> World:
        geometry = model.geometry()
        layout = KVLayout(
            num_layers=geometry.num_layers,
            block_size=BLOCK_SIZE,
            kv_heads=geometry.kv_heads,
            head_dim=geometry.head_dim,
            dtype=torch.float64,
        )
        caches = tuple(KVCache(layout, MAX_SEQS * BLOCKS_EACH + 1, CPU) for _ in range(2))
        for cache in caches:
            cache.pool[1:] = torch.nan
        maker = maker or Recordings()
        eager, replayed = caches

        def forward(rows: StepRows, ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor:
            with forward_context(StaticAttention(rows, replayed)):
                return model.forward(ids, positions, logits_rows)

        graphs = StepGraphs(forward, StepBuffers(80, MAX_SEQS + 1, BLOCKS_EACH, CPU), maker)
        return cls(model, (eager, replayed), maker, graphs, random.Random(seed))

    def step(self, *, only_single: bool) -> None:
        """A step of some sequences, each going on where it is; those at their end begin anew."""
        rows = []
        for seq in self.random.sample(range(MAX_SEQS), self.random.randint(1, MAX_SEQS)):
            start = self.lengths.get(seq, 0)
            start = 0 if start >= MAX_LEN - 1 else start
            count = 1 if only_single else self.random.randint(1, min(16, MAX_LEN - start))
            ids = tuple(self.random.randrange(3, 60) for _ in range(count))
            # Not in order: the table has to be looked at.
            table = [1 + ((seq + 3 * block) % BLOCKS_EACH) * MAX_SEQS + seq for block in range(-(-(start + count) // BLOCK_SIZE))]
            rows.append(ScheduledRow(seq, ids, start, tuple(table), SAMPLE if self.random.random() < 0.8 else ()))
            self.lengths[seq] = start + count
        self.compute(StepNumbers.lay_out(rows, BLOCK_SIZE))

    def compute(self, numbers: StepNumbers) -> None:
        eager, _ = self.caches
        batch = InputBatch.upload(numbers, CPU)
        with forward_context(TorchPagedAttention(batch, eager)):
            expected = self.model.forward(batch.input_ids, batch.positions, batch.logits_rows)
        bucket = self.graphs.bucket(numbers)
        assert bucket is not None
        self.padded += bucket.num_tokens - len(batch.input_ids)
        logits = self.graphs.replay(bucket, numbers)
        assert logits.shape == expected.shape
        if len(logits):
            self.worst = max(self.worst, float((logits - expected).abs().max().nan_to_num(torch.inf)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(only_single=self.random.random() < 0.5)


EXACT = 1e-9


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3_text"])
def test_replay_equals_eager(family: str, model_directory: Callable[[str], Path]) -> None:
    with torch.inference_mode():
        world = World.make(load(model_directory(family)))
        told: list[str] = []
        world.graphs.record(BUCKETS, told.append)
        assert told[-1] == f"recording graphs ({len(BUCKETS)} of {len(BUCKETS)})"
        world.run(40)
        assert world.worst < EXACT
        assert world.maker.replays == 40
        assert world.padded > 100
        # The null block is where padding would go if it went anywhere, and it goes nowhere else.
        one, other = (cache.pool[1:].nan_to_num(-7.0) for cache in world.caches)
        assert torch.allclose(one, other, atol=EXACT)


def test_largest_first(model_directory: Callable[[str], Path]) -> None:
    order = []

    class Watched(Recordings):
        def record(self, run: Callable[[], None]) -> RecordedGraph:
            graph = super().record(run)
            # The first tensor a step looks at is as long as the step.
            order.append(next(op.args[1].numel() for op in graph.operations if "embedding" in str(op.function)))
            return graph

    with torch.inference_mode():
        world = World.make(load(model_directory("llama")), maker=Watched())
        world.graphs.record(BUCKETS)
    assert order == sorted((bucket.num_tokens for bucket in BUCKETS), reverse=True)
    assert len(world.graphs) == len(BUCKETS)


def test_what_is_too_large_is_left_to_others(model_directory: Callable[[str], Path]) -> None:
    with torch.inference_mode():
        world = World.make(load(model_directory("llama")))
        world.graphs.record(decode_buckets(2))

        def bucket(count: int, length: int, blocks: int) -> Bucket | None:
            rows = tuple(ScheduledRow(seq, (5,) * length, 0, (1,) * blocks, SAMPLE) for seq in range(count))
            return world.graphs.bucket(StepNumbers.lay_out(rows, BLOCK_SIZE))

        assert bucket(2, 1, 1) == Bucket(2, 2, only_single=True)
        assert bucket(3, 1, 1) is None
        assert bucket(1, 2, 1) is None
        assert bucket(1, 1, BLOCKS_EACH + 1) is None


# --- tests of the tests: mistakes that have been made elsewhere -------------------------------------------------------------


@pytest.mark.parametrize("kept", ["slots", "cu_q"])
def test_tails_of_an_earlier_step_would_show(kept: str, model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    fill = StepBuffers.fill

    # Of each bucket, as each has a layout of its own.
    left: dict[Bucket, torch.Tensor] = {}

    def fill_without_tail(self: StepBuffers, bucket: Bucket, numbers: StepNumbers) -> None:
        fill(self, bucket, numbers)
        field = getattr(self.input(bucket).rows, kept)
        used = numbers.num_tokens if kept == "slots" else len(numbers.spans) + 1
        if bucket in left:
            field[used:] = left[bucket][used:]
        left[bucket] = field.clone()

    monkeypatch.setattr(StepBuffers, "fill", fill_without_tail)
    with torch.inference_mode():
        world = World.make(load(model_directory("llama")))
        world.graphs.record(BUCKETS)
        world.run(40)
        one, other = (cache.pool[1:].nan_to_num(-7.0) for cache in world.caches)
        assert world.worst > EXACT or not torch.allclose(one, other, atol=EXACT)


def test_numbers_of_a_batch_would_be_frozen(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[int] = []
    attend = StaticAttention.attend

    def bounded(self: StaticAttention, *args: object) -> torch.Tensor:
        """Looks at no more keys than the longest sequence has, as attention functions do that take it as a number."""
        longest.append(max(1, int(self._rows.seq_lens.max())))
        self._rows = StepRows(
            cu_q=self._rows.cu_q,
            seq_lens=self._rows.seq_lens.clamp(max=longest[-1]),
            block_table=self._rows.block_table,
            slots=self._rows.slots,
            only_single=self._rows.only_single,
        )
        return attend(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StaticAttention, "attend", bounded)
    with torch.inference_mode():
        world = World.make(load(model_directory("llama")))
        world.graphs.record(BUCKETS)
        assert set(longest) == {1}
        world.run(10)
        assert world.worst > EXACT


def test_what_waits_for_the_device_cannot_be_recorded(model_directory: Callable[[str], Path]) -> None:
    with torch.inference_mode():
        world = World.make(load(model_directory("gpt_oss")))  # which looks for the experts that tokens have chosen
        with pytest.raises(RuntimeError, match="nonzero: operation not permitted when stream is capturing"):
            world.graphs.record(BUCKETS)


def test_what_a_larger_step_has_left_is_padding_again() -> None:
    """Also in a step that fills its bucket, but asks for fewer logits: rows that are not there would be looked up."""
    buffers = StepBuffers(8, 3, 4, CPU)
    decodes, mixed = Bucket(3, 3, only_single=True), Bucket(8, 3, only_single=False)
    for length, seqs, sampling in ((1, 3, (0, 1)), (4, 2, (0, 1)), (1, 1, ()), (2, 3, (1,)), (1, 2, (0, 1))):
        rows = tuple(ScheduledRow(seq, (5,) * length, 6, (1, 2, 3), SAMPLE if seq in sampling else ()) for seq in range(seqs))
        bucket = decodes if length == 1 else mixed
        buffers.fill(bucket, StepNumbers.lay_out(rows, BLOCK_SIZE))
        given, tokens, spare = buffers.input(bucket), length * seqs, 3 - seqs
        room = bucket.num_tokens - tokens
        wanted = [length * (seq + 1) - 1 for seq in sampling]
        assert given.input_ids.tolist() == [5] * tokens + [0] * room
        assert given.positions.tolist() == [6 + i for i in range(length)] * seqs + [0] * room
        assert given.logits_rows.tolist() == wanted + [0] * (3 - len(wanted))
        assert (
            given.rows.slots.tolist()
            == [(2 + (6 + i) // BLOCK_SIZE - 1) * BLOCK_SIZE + (6 + i) % 4 for i in range(length)] * seqs + [-1] * room
        )
        assert given.rows.seq_lens.tolist() == [6 + length] * seqs + [0] * spare
        begins = list(range(0, tokens + 1, length))
        assert given.rows.cu_q.tolist() == begins + (list(range(seqs + 1, 4)) if length == 1 else [8] * spare)
        assert given.rows.block_table[:, :3].tolist() == [[1, 2, 3]] * seqs + [[0] * 3] * spare
        assert given.rows.only_single == (length == 1)


def test_a_cleared_bucket_is_padding_alone() -> None:
    buffers, bucket = StepBuffers(8, 3, 4, CPU), Bucket(4, 2, only_single=False)
    buffers.fill(bucket, StepNumbers.lay_out((ScheduledRow(0, (5, 6), 0, (1,), SAMPLE),), BLOCK_SIZE))
    buffers.clear(bucket)
    given = buffers.input(bucket)
    for found, padding in (
        (given.input_ids, [0] * 4),
        (given.positions, [0] * 4),
        (given.logits_rows, [0] * 2),
        (given.rows.slots, [-1] * 4),
        (given.rows.seq_lens, [0] * 2),
        (given.rows.cu_q, [0, 4, 4]),
        (given.rows.block_table, [[0] * 4] * 2),
    ):
        assert found.tolist() == padding


def test_filling_is_three_copies_and_none_of_a_single_number() -> None:
    """Each is work to queue; and a number that is put where there is but one is copied from the host, and waited for."""
    buffers = StepBuffers(8, 3, 4, CPU)
    numbers = StepNumbers.lay_out((ScheduledRow(0, (5, 6), 0, (1,), SAMPLE),), BLOCK_SIZE)
    with _Copies() as copies:
        buffers.fill(Bucket(8, 3, only_single=False), numbers)
    assert copies.dimensions == [1, 2]  # and the table's to the device, which is none on a CPU
    assert not copies.fills


class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dimensions of what is copied, and how often something is filled with one number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dimensions: list[int] = []
        self.fills = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if "copy_" in func._schema.name:
            self.dimensions.append(args[1].dim())
        self.fills += "fill" in func._schema.name
        return func(*args, **(kwargs or {}))
