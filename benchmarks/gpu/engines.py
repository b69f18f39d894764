"""Our engine on a model of random weights: answers to many requests at once, and single decode steps of any size."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chatpaged.bench_replies import Figures
from chatpaged.bench_run import OurEngine
from chatpaged.bench_workloads import Chat, Workload
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.engine.tokenizer import Tokenizer

_STEPS = 20
_FIRST_ID = 2  # no end token


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine and what it runs on.

    Attributes:
        engine: it.
        runner: its model and pool.
        seconds: that loading took.
    """

    engine: LLMEngine
    runner: ModelRunner
    seconds: float

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        return self.engine.config.block_size

    @property
    def token_bytes(self) -> float:
        """Bytes of keys and values of a token."""
        return self.runner.block_bytes / self.block_size

    def answer(self, workload: Workload, tell: Callable[[int], None] = lambda _: None) -> Figures:
        """One pass, after a short one that compiles and reserves what it takes; see `OurEngine.run`."""
        run = OurEngine(self.engine)
        run.run(Workload("warm-up", "", tuple(Chat(chat.turns, min(4, chat.new_tokens)) for chat in workload.chats)))
        return run.run(workload, tell)

    def room(self, context: int) -> int:
        """Sequences of so many tokens that the pool holds."""
        return (self.runner.num_blocks - 1) // -(-context // self.block_size)

    def decode_seconds(self, batch: int, context: int, steps: int = _STEPS) -> float:
        """The median time of a whole step of the model: tensors, layers, drawing tokens; without scheduling and text.

        Args:
            batch: sequences that decode.
            context: tokens of each, the one that decodes included. The pool has to hold all of them; it is made full of noise.
            steps: how many are measured.
        """
        blocks = -(-context // self.block_size)
        ids = list(range(1, batch * blocks + 1))
        random.Random(0).shuffle(ids)
        rows = tuple(
            ScheduledRow(i, (_FIRST_ID + i,), context - 1, tuple(ids[i * blocks : (i + 1) * blocks]), (SampleRow(0, 1, 0.0, 0, 1.0, 0.0),))
            for i in range(batch)
        )
        measured = []
        for number in range(steps + 3):
            begin = time.perf_counter()
            self.runner.execute(SchedulerOutput(number, rows, ()))
            measured.append(time.perf_counter() - begin)
        return statistics.median(measured[3:])

    def decode_bytes(self, batch: int, context: int) -> float:
        """What such a step has to read at least: each weight once, and all keys and values."""
        return self.runner.code.weight_bytes + batch * context * self.token_bytes

    def fill_pool(self) -> None:
        """Gives each slot a number: what was never written may be none."""
        with torch.inference_mode():
            self.runner._kv_cache.pool.normal_()  # noqa: SLF001 - nobody else has to reach it


@contextmanager
def loaded(directory: Path, device: str, **options: Any) -> Iterator[Loaded]:
    """An engine, closed afterwards, its memory given back."""
    begin = time.perf_counter()
    if device == "cpu":  # the code that would run on a GPU, as far as it runs here
        options = options | {"code_path": "universal", "attention": "torch", "kv_blocks": 600, "threads": 1}
    config = EngineConfig(device=device, **options)
    runner = ModelRunner.load(directory, config)
    engine = LLMEngine(runner, Tokenizer.from_directory(directory), config)
    try:
        yield Loaded(engine, runner, time.perf_counter() - begin)
    finally:
        engine.close()
        release()


def release() -> None:
    """Gives memory back that nobody uses any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def random_requests(count: int, prompt: tuple[int, int], new: tuple[int, int], vocab_size: int) -> Workload:
    """Requests that are all there from the start.

    Args:
        count: how many.
        prompt: fewest and most tokens of a prompt.
        new: of an answer.
        vocab_size: token ids are below.
    """
    rng = random.Random(0)
    chats = tuple(
        Chat((tuple(rng.randrange(_FIRST_ID, vocab_size) for _ in range(rng.randint(*prompt))),), rng.randint(*new)) for _ in range(count)
    )
    return Workload("random", f"{count} requests", chats)
