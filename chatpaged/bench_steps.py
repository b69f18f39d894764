"""Where the time of an engine's steps goes, and how much of what the machine can do they use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chatpaged.bench_replies import Figures
from chatpaged.engine.snapshot import StepTiming
from chatpaged.engine.weight_files import WeightFiles

PARTS = ("schedule", "operations", "prepare", "forward", "sample", "process")


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a step with a model reads and computes.

    Attributes:
        body: parameters that each token is multiplied with.
        head: parameters that turn the last state of a sequence into logits; only tokens that are drawn from meet them.
        weight_bytes: bytes of the weights that a decode step reads.
        kv_bytes: bytes of keys and values of a token.
    """

    body: int
    head: int
    weight_bytes: int
    kv_bytes: float

    @classmethod
    def of(cls, files: WeightFiles, config: Mapping[str, Any], *, weight_bytes: int, kv_bytes: float) -> ModelCost:
        """That of a dense decoder: all its weights but the embedding, which is looked up, unless it is the head as well.

        Args:
            files: its weights.
            config: its `config.json`.
            weight_bytes: see the attributes.
            kv_bytes: likewise.
        """
        text = config.get("text_config")
        vocab = (text if isinstance(text, dict) else config).get("vocab_size")
        tables = [math.prod(shape) for shape in files.shapes.values() if len(shape) == 2 and shape[0] == vocab]
        return cls(files.num_parameters - sum(tables), max(tables, default=0), weight_bytes, kv_bytes)

    def bytes_read(self, kv_tokens: int) -> float:
        """Bytes that a step has to read at least: each weight once, and keys and values of so many tokens."""
        return self.weight_bytes + kv_tokens * self.kv_bytes

    def operations(self, tokens: int, sampled: int) -> int:
        """Multiplications and additions with weights; those of attention are not counted."""
        return 2 * (self.body * tokens + self.head * sampled)


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of a pass. A step without prompt tokens is a decode step, any other one a prefill step."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    steps: int = 0
    decode_steps: int = 0
    decode_forward: float = 0.0
    decode_kv_tokens: int = 0
    prefill_forward: float = 0.0
    prefill_tokens: int = 0
    prefill_sampled: int = 0

    def add(self, step: StepTiming, *, sampled: int, kv_tokens: int) -> None:
        """Counts a step.

        Args:
            step: its parts and size.
            sampled: tokens that it has drawn.
            kv_tokens: tokens whose keys and values it has read, where it was a decode step.
        """
        self.steps += 1
        for part in PARTS:
            self.seconds[part] += getattr(step, part)
        if step.num_tokens == step.num_decode_tokens:
            self.decode_steps += 1
            self.decode_forward += step.forward
            self.decode_kv_tokens += kv_tokens
        else:
            self.prefill_forward += step.forward
            self.prefill_tokens += step.num_tokens
            self.prefill_sampled += sampled

    def figures(self, cost: ModelCost | None) -> Figures:
        """Milliseconds a step and percent of each part; GB/s of decode steps and GFLOP/s of prefill steps, in the model itself."""
        total = sum(self.seconds.values())
        values: Figures = {"steps": self.steps, "decode_steps": self.decode_steps, "step_ms": 1e3 * total / max(1, self.steps)}
        for part, seconds in self.seconds.items():
            values[f"{part}_ms"] = 1e3 * seconds / max(1, self.steps)
            values[f"{part}_percent"] = 100 * seconds / total if total > 0 else None
        read = done = None
        if cost is not None and self.decode_forward > 0:
            whole = self.decode_steps * cost.bytes_read(0) + self.decode_kv_tokens * cost.kv_bytes
            read = whole / self.decode_forward / 1e9
        if cost is not None and self.prefill_forward > 0:
            done = cost.operations(self.prefill_tokens, self.prefill_sampled) / self.prefill_forward / 1e9
        return values | {"decode_gb_per_second": read, "prefill_gflop_per_second": done}
