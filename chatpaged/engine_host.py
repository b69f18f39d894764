"""The engine of a workspace from its loading to its end, and a new one after that."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import Any

from chatpaged.backends import Backend
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.limits import check_prompt_fits
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.errors import ChatpagedError, EngineDeadError
from chatpaged.messages import RenderedPrompt
from chatpaged.session_model import SessionModel


class EngineState(enum.Enum):
    """What can be expected of the engine."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DEAD = "dead"
    CLOSED = "closed"


class EngineHost:
    """One engine after the other. Lives on the event loop.

    Attributes:
        backend: the model.
        engine: the engine of now; requests wait while it loads.
        state: what can be expected of it.
        status: what it is doing while it loads.
        error: why it is failed or dead.
        defaults: what the model's makers recommend for sampling; empty until the model is opened.
    """

    def __init__(self, backend: Backend, on_change: Callable[[], None]) -> None:
        """Prepares the first engine.

        Args:
            backend: the model.
            on_change: hears of other states.
        """
        self.backend = backend
        self.state = EngineState.LOADING
        self.status = ""
        self.error: Exception | None = None
        self.defaults: Mapping[str, Any] = {}
        self._on_change = on_change
        self._tasks: set[asyncio.Task[None]] = set()
        self._limits: tuple[int, int, int] | None = None
        self.start()

    def start(self) -> None:
        """Begins to load a new engine; what is waiting for a model waits for this one."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[SessionModel] = loop.create_future()
        self._opened = opened
        backend = self.backend

        def tell(text: str) -> None:
            _post(loop, self._tell, opened, text)

        def make() -> LLMEngine:
            model, defaults = backend.open(tell)
            _post(loop, self._know, opened, model, defaults)
            return backend.load(tell)

        self.engine = AsyncEngine(make)
        self.state, self.status, self.error, self._limits = EngineState.LOADING, f"loading {backend.name}", None, None
        self.engine.start()
        task = asyncio.create_task(self._watch(self.engine, opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._on_change()

    @property
    def model(self) -> SessionModel | None:
        """The text side of the model, once it is there."""
        return self._opened.result() if self._opened.done() and self._opened.exception() is None else None

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.model.name if self.model is not None else self.backend.name

    async def wait_model(self) -> SessionModel:
        """The text side of the model; waits for it.

        Raises:
            ChatpagedError: it cannot be opened.
        """
        return await asyncio.shield(self._opened)

    def check_fits(self, prompt: RenderedPrompt) -> None:
        """Refuses a prompt that the engine would refuse; says nothing while that is not known.

        Raises:
            PromptTooLongError: it fits neither the context nor the pool.
        """
        if self._limits is not None:
            context, blocks, block_size = self._limits
            check_prompt_fits(len(prompt.token_ids), context=context, num_blocks=blocks, block_size=block_size)

    @property
    def block_size(self) -> int:
        """Tokens of a block; 1 while that is not known."""
        return self._limits[2] if self._limits is not None else 1

    async def snapshot(self) -> EngineSnapshot | None:
        """A picture of the engine; None while there is nothing to see."""
        if self.state is not EngineState.READY:
            return None
        try:
            return await self.engine.snapshot()
        except EngineDeadError as error:
            self.died(error)
            return None

    def died(self, error: Exception) -> None:
        """Somebody has found out that the engine is dead."""
        if self.state is EngineState.READY:
            self.state, self.error = EngineState.DEAD, error
            self._on_change()

    async def switch(self, backend: Backend) -> None:
        """Takes another model. Whatever runs ends."""
        await self.close()
        self.backend = backend
        self.start()

    async def close(self) -> None:
        """Ends the engine after its current step."""
        self.state = EngineState.CLOSED
        await self.engine.close()
        for task in self._tasks:
            task.cancel()

    def _tell(self, opened: asyncio.Future[SessionModel], text: str) -> None:
        if opened is self._opened and self.state is EngineState.LOADING:
            self.status = text
            self._on_change()

    def _know(self, opened: asyncio.Future[SessionModel], model: SessionModel, defaults: Mapping[str, Any]) -> None:
        if not opened.done():
            opened.set_result(model)
        if opened is self._opened:
            self.defaults = defaults
            self._on_change()

    async def _watch(self, engine: AsyncEngine, opened: asyncio.Future[SessionModel]) -> None:
        try:
            await engine.wait_loaded()
            limits = await engine.call(_limits)
        except ChatpagedError as error:
            if not opened.done():
                opened.set_exception(error)
                opened.exception()  # marks it as seen: nobody may be waiting
            if engine is self.engine and self.state is EngineState.LOADING:
                self.state, self.error = EngineState.FAILED, error
                self._on_change()
            return
        if engine is self.engine and self.state is EngineState.LOADING:
            self.state, self.status, self._limits = EngineState.READY, "", limits
            self._on_change()


def _limits(llm: LLMEngine) -> tuple[int, int, int]:
    blocks = llm.scheduler.blocks
    return llm.scheduler.config.max_model_len, blocks.pool.num_usable, blocks.block_size


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
