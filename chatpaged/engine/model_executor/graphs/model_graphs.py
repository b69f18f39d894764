"""The graphs of one model: whether it has any and why not, for which pool, and how many steps they have computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.graphs.cuda_graphs import CudaGraphMaker
from chatpaged.engine.model_executor.graphs.step_buffers import StepBuffers
from chatpaged.engine.model_executor.graphs.step_graphs import Forward, GraphMaker, StepGraphs
from chatpaged.engine.model_executor.memory import first_error, is_out_of_memory
from chatpaged.engine.model_executor.step_numbers import StepNumbers


class ModelGraphs:
    """See above.

    Attributes:
        reason: why there are none; empty where there are, or where nobody would expect any.
    """

    def __init__(self, make_maker: Callable[[], GraphMaker] | None, reason: str = "") -> None:
        """Records nothing yet.

        Args:
            make_maker: gives the maker of the graphs of one recording: a pool of memory that all graphs of have gone cannot be had again.
                None makes none.
            reason: why not.
        """
        self._make_maker = make_maker
        self._graphs: StepGraphs | None = None
        self.reason = reason

    @classmethod
    def choose(cls, options: EngineConfig, device: torch.device, *, capturable: bool) -> ModelGraphs:
        """Decides whether a model gets graphs.

        Args:
            options: what the user asked for.
            device: where it runs.
            capturable: whether its attention sees a batch through tensors alone. All but Triton's look at numbers of it on the host,
                which a graph would keep for ever.
        """
        if device.type != "cuda":
            return cls(None)
        if options.enforce_eager:
            return cls(None, "no CUDA graphs: --enforce-eager was asked for")
        if not capturable:
            return cls(None, "no CUDA graphs: they need Triton's attention")
        return cls(lambda: CudaGraphMaker(device))

    def __len__(self) -> int:
        return 0 if self._graphs is None else len(self._graphs)

    def record(
        self,
        forward: Forward,
        max_blocks: int,
        buckets: Iterable[Bucket],
        device: torch.device,
        tell: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Records graphs in place of those there are. A model that cannot be recorded goes on without, and `reason` says so.

        Args:
            forward: the model on its pool; see `StepGraphs`.
            max_blocks: of the longest sequence.
            buckets: what to record for.
            device: where the model runs.
            tell: is told how far it has come.

        Returns:
            How many there are.

        Raises:
            RuntimeError: there is not enough memory for them; see `is_out_of_memory`.
        """
        self.drop()
        if self._make_maker is None:
            return 0
        wanted = list(buckets)
        most_tokens, most_seqs = max(bucket.num_tokens for bucket in wanted), max(bucket.num_seqs for bucket in wanted)
        graphs = StepGraphs(forward, StepBuffers(most_tokens, most_seqs, max_blocks, device), self._make_maker())
        try:
            graphs.record(wanted, tell)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self._make_maker = None
            first = first_error(error)
            self.reason = f"no CUDA graphs: {(str(first).strip() or type(first).__name__).splitlines()[0]}"
            return 0
        self._graphs = graphs
        return len(graphs)

    def drop(self) -> None:
        """Forgets all graphs, and gives their memory back."""
        self._graphs = None

    def replay(self, numbers: StepNumbers) -> Logits | None:
        """Computes a step, if there is a graph for it."""
        bucket = self._graphs.bucket(numbers) if self._graphs is not None else None
        if self._graphs is None or bucket is None:
            return None
        return Logits(self._graphs.replay(bucket, numbers), padding=bucket.num_tokens - numbers.num_tokens)
