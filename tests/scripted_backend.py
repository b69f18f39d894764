"""A backend for tests of the workspace and of the app: bytes as tokens, answers from a script, steps when a test lets them happen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.errors import ModelError
from chatpaged.session_model import SessionModel
from tests.byte_tokenizer import END, byte_template, byte_tokenizer

CONTEXT = 8192
Answer = str | Callable[[int], str]
"""The answer to every question; or a function that gives it, by which of the samples it is."""


class Pace:
    """Lets the engine's steps happen: all of them, or so many."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self._free = threading.Event()
        self._free.set()
        self.crash: Exception | None = None
        self.begun = 0
        """Steps that have begun; the last one may be waiting to be let."""

    def hold(self) -> None:
        """No step from now on."""
        self._free.clear()

    def let(self, steps: int) -> None:
        """So many more steps."""
        for _ in range(steps):
            self._steps.release()

    def free(self) -> None:
        """All steps."""
        self._free.set()
        self._steps.release()

    def wait(self) -> None:
        """Called by the engine before each step."""
        self.begun += 1
        while not self._free.is_set() and not self._steps.acquire(timeout=0.02):
            pass
        if self.crash is not None:
            raise self.crash


class ScriptedBackend:
    """A model that says what a test wants.

    Attributes:
        pace: lets its steps happen.
        loads: how often it has been loaded.
        fail: raised in place of loading.
        loaded: what loading waits for.
        answer: what it says from now on.
    """

    def __init__(
        self,
        answer: Answer = "Hello.",
        *,
        name: str = "scripted",
        num_blocks: int = 257,
        max_num_seqs: int = 8,
        step_tokens: int = 256,
        num_host_blocks: int = 0,
        config: EngineConfig | None = None,
    ) -> None:
        self.name = name
        self.pace = Pace()
        self.loads = 0
        self.fail: Exception | None = None
        self.loaded = threading.Event()
        self.loaded.set()
        self.llm: LLMEngine | None = None
        self.answer = answer
        self._num_blocks = num_blocks
        self._step_tokens = step_tokens
        self._num_host_blocks = num_host_blocks
        self._config = config if config is not None else EngineConfig(block_size=16, max_num_seqs=max_num_seqs)
        tokenizer = byte_tokenizer()
        self._model = SessionModel(name, tokenizer, byte_template(tokenizer), CONTEXT)

    def open(self, tell: Callable[[str], None]) -> tuple[SessionModel, Mapping[str, Any]]:
        tell(f"looking for {self.name}")
        if isinstance(self.fail, ModelError):
            raise self.fail
        # A new one each time, as reading a model's files gives.
        self._model = SessionModel(self.name, self._model.tokenizer, self._model.template, CONTEXT)
        return self._model, {"temperature": 0.0}

    def load(self, tell: Callable[[str], None]) -> LLMEngine:
        tell(f"loading {self.name}")
        self.loaded.wait(120)
        if self.fail is not None:
            raise self.fail
        self.loads += 1
        executor = _PacedScript(self._draw, self.pace, self._num_blocks, self._step_tokens, self._num_host_blocks)
        self.llm = LLMEngine(executor, self._model.tokenizer, self._config, chat_template=self._model.template)
        return self.llm

    def _draw(self, row: ScheduledRow, sample: SampleRow) -> int:
        text = self.answer if isinstance(self.answer, str) else self.answer(sample.index)
        answer: tuple[int, ...] = (*text.encode(), END)
        return answer[min(sample.position, len(answer) - 1)]


class _PacedScript(ScriptedExecutor):
    def __init__(
        self, script: Callable[[ScheduledRow, SampleRow], int], pace: Pace, num_blocks: int, step_tokens: int, num_host_blocks: int
    ) -> None:
        super().__init__(
            script,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            vocab_size=258,
            max_model_len=CONTEXT,
            max_num_batched_tokens=step_tokens,
        )
        self._pace = pace
        self.block_bytes = 720 * 1024

    def execute(self, output: SchedulerOutput) -> StepResult:
        self._pace.wait()
        result = super().execute(output)
        self.outputs.clear()
        return result
