"""An executor without a model: it replays given token ids. For tests, and for trying the application without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from chatpaged.engine.executor import BlockExchange, ModelCode, StepResult
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind, SampleRow, ScheduledRow, SchedulerOutput

Script = Callable[[ScheduledRow, SampleRow], int]
"""Gives the next token of a sequence, from what the executor gets to see."""


class ScriptedExecutor:
    """Answers every request from a script. Satisfies `ModelExecutor`.

    Attributes:
        outputs: the steps carried out so far, for tests to look at.
    """

    def __init__(
        self,
        script: Script | Sequence[int],
        *,
        num_blocks: int = 257,
        num_host_blocks: int = 0,
        vocab_size: int = 2**31,
        max_model_len: int = 8192,
        max_num_batched_tokens: int = 256,
        stop_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Makes an executor.

        Args:
            script: gives each token; or the ids of an answer that every sequence gives, over and over.
            num_blocks: blocks of the pretended KV pool, the null block included.
            num_host_blocks: slots of the pretended host memory below it.
            vocab_size: token ids that are accepted in prompts.
            max_model_len: longest sequence.
            max_num_batched_tokens: tokens of one step.
            stop_token_ids: end tokens of the pretended model.
        """
        self._script = script
        self.code = ModelCode(name="scripted")
        self.num_blocks = num_blocks
        self.block_bytes = 1
        self.num_host_blocks = num_host_blocks
        self.host_is_file = False
        self.facts: Mapping[str, str] = {"model": "scripted"}
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.max_num_batched_tokens = max_num_batched_tokens
        self.fingerprint = b"scripted"
        self.stop_token_ids = stop_token_ids
        self.outputs: list[SchedulerOutput] = []
        self._exchange: BlockExchange | None = None

    def connect(self, exchange: BlockExchange) -> None:
        """See `ModelExecutor.connect`."""
        self._exchange = exchange

    def move(self, operations: Iterable[BlockOperation]) -> float:
        """Blocks hold nothing here; files get something of their size all the same."""
        for operation in operations:
            if self._exchange is not None and operation.kind is BlockOperationKind.SAVE:
                self._exchange.leave(operation.destination, bytearray(self.block_bytes))
            elif self._exchange is not None and operation.kind is BlockOperationKind.LOAD:
                self._exchange.fetch(operation.source)
        return 0.0

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Replays one token for each sample of each row."""
        self.outputs.append(output)
        self.move(output.operations)
        return StepResult(token_ids=tuple(tuple(self._draw(row, sample) for sample in row.samples) for row in output.rows))

    def _draw(self, row: ScheduledRow, sample: SampleRow) -> int:
        if callable(self._script):
            return self._script(row, sample)
        return self._script[sample.position % len(self._script)]

    def close(self) -> None:
        """Nothing to give back."""
