"""A model's forward passes as graphs, one for each bucket of `buckets.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import torch

from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.graphs.buckets import Bucket, choose_bucket
from chatpaged.engine.model_executor.graphs.step_buffers import StepBuffers
from chatpaged.engine.model_executor.step_numbers import StepNumbers

Forward: TypeAlias = Callable[[StepRows, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A model: a step's sequences, `input_ids` and `positions` `[T]`, `logits_rows` `[N]` give logits `[N, vocabulary]`."""


class Graph(Protocol):
    """Recorded work on the device."""

    def replay(self) -> None:
        """Does the work again, on the memory that it was recorded with."""


class GraphMaker(Protocol):
    """Records work; see `cuda_graphs.py`."""

    def record(self, run: Callable[[], None]) -> Graph:
        """Runs work once, so that all it needs is compiled, and records it.

        Args:
            run: what is recorded. It reads and writes memory that stays where it is, and looks at no value of it.

        Raises:
            torch.OutOfMemoryError: there is no memory for its intermediate results.
            RuntimeError: it does something that cannot be recorded.
        """


class StepGraphs:
    """Records a model's forward pass for all buckets, then replays the one that fits."""

    def __init__(
        self,
        forward: Forward,
        buffers: StepBuffers,
        maker: GraphMaker,
    ) -> None:
        """Prepares.

        Args:
            forward: the model, on the pool that it will work on.
            buffers: of the largest bucket.
            maker: of graphs.
        """
        self._forward = forward
        self._buffers = buffers
        self._maker = maker
        self._graphs: dict[Bucket, Graph] = {}
        self._logits: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def record(self, buckets: Iterable[Bucket], tell: Callable[[str], None] = lambda _: None) -> None:
        """Records buckets, largest first: smaller ones find room in what those have left. Errors as for `GraphMaker.record`.

        Args:
            buckets: in any order.
            tell: is told how far it has come.
        """
        ordered = sorted(buckets, key=lambda bucket: (bucket.num_tokens, bucket.num_seqs), reverse=True)
        for number, bucket in enumerate(ordered, 1):
            tell(f"recording graphs ({number} of {len(ordered)})")
            self._buffers.clear(bucket)
            self._graphs[bucket] = self._maker.record(self._run(bucket))

    def _run(self, bucket: Bucket) -> Callable[[], None]:
        """The forward pass of a bucket. What it is given never changes from here on, only what lies there.

        Logits are copied to the same place by all graphs: kept by each, those of a large vocabulary would take gigabytes.
        """
        given = self._buffers.input(bucket)

        def run() -> None:
            logits = self._forward(given.rows, given.input_ids, given.positions, given.logits_rows)
            if self._logits is None:
                self._logits = logits.new_empty(self._buffers.max_seqs, logits.shape[1])
            self._logits[: len(logits)] = logits

        return run

    def bucket(self, numbers: StepNumbers) -> Bucket | None:
        """The bucket that a step would be padded to; None if it is too large for all."""
        spans = numbers.spans
        if any(len(span.block_table) > self._buffers.max_blocks for span in spans):
            return None
        only_single = all(span.length == 1 for span in spans)
        return choose_bucket(tuple(self._graphs), numbers.num_tokens, len(spans), only_single=only_single)

    def replay(self, bucket: Bucket, numbers: StepNumbers) -> torch.Tensor:
        """Computes a step.

        Args:
            bucket: that of the step.
            numbers: the step.

        Returns:
            Logits `[R, vocabulary]`, until the next replay.
        """
        self._buffers.fill(bucket, numbers)
        self._graphs[bucket].replay()
        if self._logits is None:
            raise RuntimeError("no graph was recorded")
        return self._logits[: len(numbers.tokens.logits_rows)]
