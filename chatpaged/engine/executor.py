"""What the engine needs of a model: the seam between bookkeeping and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.scheduler_output import BlockOperation, SchedulerOutput

NO_TOKEN = -1
"""Stands where no token could be drawn, since the logits are not numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came out of one step.

    Attributes:
        token_ids: for each row of the step the tokens drawn, one for each of the row's samples; `NO_TOKEN` where
            the logits are not numbers.
        logprobs: likewise what was asked to be reported of each draw; empty where no row of the step asked.
        operations: seconds for block copies and moves.
        prepare: seconds for building the input tensors.
        forward: seconds in the model.
        sample: seconds for drawing tokens.
        padding: tokens that a replayed graph computed beside those of the step; None if it was launched operation by operation.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[TokenLogprobs | None, ...], ...] = ()
    operations: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    padding: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """What a model runs on, for people: figures mean nothing without it.

    Attributes:
        name: the code, such as "native AVX-512" or "transformers".
        weights: how weights are stored: "int4", "float32", ...; empty without any.
        kv: likewise keys and values.
        weight_bytes: of the weights that a decode step reads.
        reason: why this code, or weights like these.
    """

    name: str
    weights: str = ""
    kv: str = ""
    weight_bytes: int = 0
    reason: str = ""

    @property
    def with_reason(self) -> str:
        """The same with its reason."""
        return f"{self} ({self.reason})" if self.reason else str(self)

    def __str__(self) -> str:
        if self.weights == self.kv:
            return f"{self.name} · {self.weights}" if self.weights else self.name
        return f"{self.name} · {self.weights} weights · {self.kv} KV"


class BlockExchange(Protocol):
    """Where the contents of blocks are left on their way to a file, and found on their way back."""

    def leave(self, ticket: int, data: bytearray) -> None:
        """Takes what a `save` operation has copied."""

    def fetch(self, ticket: int) -> bytearray:
        """Gives what a `load` operation copies; of the size of a block."""


class ModelExecutor(Protocol):
    """A model with its KV pool."""

    @property
    def code(self) -> ModelCode:
        """What it runs on."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV pool, the null block included."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""

    @property
    def num_host_blocks(self) -> int:
        """Slots of host memory for blocks that make room."""

    @property
    def host_is_file(self) -> bool:
        """Whether that memory is a file of the system's."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What the fingerprint stands for, for people: the model, how it is stored."""

    @property
    def vocab_size(self) -> int:
        """Token ids the model knows: 0 up to this, exclusive."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens that the model can be given."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one step that suit the device, where the user has not said."""

    @property
    def fingerprint(self) -> bytes:
        """Stands for everything but tokens that decides what a block holds: weights, dtype, rope."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """End tokens that the model's configuration names."""

    def connect(self, exchange: BlockExchange) -> None:
        """Says where blocks go that are saved, and where those come from that are loaded."""

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Carries out one step: block operations in order, the forward pass, sampling."""

    def move(self, operations: Iterable[BlockOperation]) -> float:
        """Carries out block operations alone, in order. Returns the seconds it took."""

    def close(self) -> None:
        """Gives memory back."""
