"""What somebody who does not own an engine may know of it at any time."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine


class EngineState(enum.Enum):
    """What can be expected of an engine."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What is known of an engine once it has been loaded, and never changes.

    Attributes:
        block_size: tokens a KV block holds.
        num_blocks: usable KV blocks, the null block not among them.
        block_bytes: bytes of a block.
        max_model_len: longest sequence in tokens, prompt and answer.
        max_num_seqs: sequences that may run in one step.
    """

    block_size: int
    num_blocks: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int

    @classmethod
    def of(cls, engine: LLMEngine) -> Self:
        """Those of an engine."""
        pool = engine.scheduler.blocks.pool
        return cls(
            block_size=engine.config.block_size,
            num_blocks=pool.num_blocks - 1,
            block_bytes=engine.block_bytes,
            max_model_len=engine.scheduler.config.max_model_len,
            max_num_seqs=engine.config.max_num_seqs,
        )
