"""An executor without a model: it replays given token ids. For tests, and for trying the application without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chatpaged.engine.executor import ModelCode, StepResult
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput

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
        vocab_size: int = 2**31,
        max_model_len: int = 8192,
        max_num_batched_tokens: int = 256,
        stop_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Makes an executor.

        Args:
            script: gives each token; or the ids of an answer that every sequence gives, over and over.
            num_blocks: blocks of the pretended KV pool, the null block included.
            vocab_size: token ids that are accepted in prompts.
            max_model_len: longest sequence.
            max_num_batched_tokens: tokens of one step.
            stop_token_ids: end tokens of the pretended model.
        """
        self._script = script
        self.code = ModelCode(name="scripted")
        self.num_blocks = num_blocks
        self.block_bytes = 1
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.max_num_batched_tokens = max_num_batched_tokens
        self.fingerprint = b"scripted"
        self.stop_token_ids = stop_token_ids
        self.outputs: list[SchedulerOutput] = []

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Replays one token for each sample of each row."""
        self.outputs.append(output)
        return StepResult(token_ids=tuple(tuple(self._draw(row, sample) for sample in row.samples) for row in output.rows))

    def _draw(self, row: ScheduledRow, sample: SampleRow) -> int:
        if callable(self._script):
            return self._script(row, sample)
        return self._script[sample.position % len(self._script)]

    def close(self) -> None:
        """Nothing to give back."""
