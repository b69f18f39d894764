"""What the runner needs of a model, and models of torch operations behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from chatpaged.engine.model_executor.attention.base import AttentionBackend, PagedAttention
from chatpaged.engine.model_executor.attention.native_paged import NativePagedAttention
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import TorchBackend
from chatpaged.engine.model_executor.attention.triton_paged import TritonBackend
from chatpaged.engine.model_executor.forward_context import Logits, forward_context
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.graphs.model_graphs import ModelGraphs
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.native.draws import draw_tokens
from chatpaged.engine.model_executor.native.library import Team
from chatpaged.engine.model_executor.sampler import queue_draws
from chatpaged.engine.model_executor.step_numbers import StepNumbers
from chatpaged.engine.scheduler_output import SampleRow


class StepModel(Protocol):
    """What the runner needs of a model."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """End tokens that the model's configurations name."""

    def forward(self, batch: InputBatch, kv_cache: Any) -> Logits:
        """Stores keys and values of the batch's tokens, and computes the logits that it asks for."""

    def replay(self, numbers: StepNumbers) -> Logits | None:
        """The same by a graph on the pool that it was recorded for; None if there is none for the step."""

    def record_graphs(self, kv_cache: Any, max_blocks: int, buckets: Sequence[Bucket], tell: Callable[[str], None]) -> int:
        """Records graphs of steps on a pool, in place of those there are; see `ModelGraphs.record`. Returns how many there are now."""

    def drop_graphs(self) -> None:
        """Forgets them, and the pool they work on."""

    @property
    def graphs(self) -> tuple[int, str]:
        """How many graphs there are, and why there are none; empty where nobody would expect any."""

    def draw(self, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> torch.Tensor:
        """Draws a token for each sample from its row of the logits, int64 `[S]`, without waiting. See `sampler.queue_draws`."""

    @property
    def weight_bytes(self) -> int:
        """Of the weights that a decode step reads: all but the embedding, unless it is the output layer as well."""

    @property
    def instruction_set(self) -> str:
        """What native kernels run on; empty without any."""

    def close(self) -> None:
        """Lets go of threads and memory."""


class _TorchModel(Protocol):
    vocab_size: int
    max_model_len: int
    stop_token_ids: frozenset[int]

    @property
    def weight_bytes(self) -> int: ...

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor: ...


class TorchStepModel:
    """A model of torch operations, with attention over the blocks of a `KVCache`. Satisfies `StepModel`."""

    def __init__(
        self,
        model: _TorchModel,
        team: Team | None = None,
        attention: AttentionBackend | None = None,
        graphs: ModelGraphs | None = None,
    ) -> None:
        """Wraps a model.

        Args:
            model: it.
            team: with one its attention is the native one, over a `NativeKVCache`.
            attention: makes its attention otherwise; None is torch's.
            graphs: records its steps, if that can be done.
        """
        self._model = model
        self._team = team
        self._backend = attention if attention is not None else TorchBackend()
        self._graphs = graphs if graphs is not None else ModelGraphs(None)
        self.vocab_size = model.vocab_size
        self.max_model_len = model.max_model_len
        self.stop_token_ids = model.stop_token_ids
        self.weight_bytes = model.weight_bytes
        self.instruction_set = team.instruction_set if team is not None else ""

    def forward(self, batch: InputBatch, kv_cache: Any) -> Logits:
        """See `StepModel.forward`."""
        with forward_context(self._attention(batch, kv_cache)):
            return Logits(self._model.forward(batch.input_ids, batch.positions, batch.logits_rows))

    def replay(self, numbers: StepNumbers) -> Logits | None:
        """See `StepModel.replay`."""
        return self._graphs.replay(numbers)

    def _attention(self, batch: InputBatch, kv_cache: Any) -> PagedAttention:
        if self._team is not None:
            return NativePagedAttention(batch, kv_cache, self._team)
        return self._backend.step(batch, kv_cache)

    def record_graphs(self, kv_cache: Any, max_blocks: int, buckets: Sequence[Bucket], tell: Callable[[str], None] = lambda _: None) -> int:
        """See `StepModel.record_graphs`."""

        def forward(rows: StepRows, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor:
            with forward_context(self._attention_of(rows, kv_cache)):
                return self._model.forward(input_ids, positions, logits_rows)

        return self._graphs.record(forward, max_blocks, buckets, kv_cache.pool.device, tell)

    def _attention_of(self, rows: StepRows, kv_cache: Any) -> PagedAttention:
        if not isinstance(self._backend, TritonBackend):
            raise TypeError("this attention looks at a batch on the host: no graph of it can be replayed")
        return self._backend.over_rows(rows, kv_cache)

    def drop_graphs(self) -> None:
        """See `StepModel.drop_graphs`."""
        self._graphs.drop()

    @property
    def graphs(self) -> tuple[int, str]:
        """See `StepModel.graphs`."""
        return len(self._graphs), self._graphs.reason

    def draw(self, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> torch.Tensor:
        """See `StepModel.draw`."""
        return queue_draws(logits, rows, samples) if self._team is None else draw_tokens(self._team, logits.contiguous(), rows, samples)

    def close(self) -> None:
        """See `StepModel.close`."""
        self._graphs.drop()
        del self._model
        if self._team is not None:
            self._team.close()
