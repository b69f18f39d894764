"""The engine of a workspace from its loading to its end, and a new one after that."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from chatpaged.backends import Backend
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.engine_state import EngineFacts
from chatpaged.engine.limits import check_prompt_fits
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.errors import ChatpagedError, EngineDeadError
from chatpaged.messages import RenderedPrompt
from chatpaged.session_model import SessionModel
from chatpaged.task_set import TaskSet

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine

_CLOSE_SECONDS = 3.0
"""How long a step may take to come to its end."""
_LOADING_SECONDS = 0.2
"""The same of loading, of which nothing is lost."""


class HostState(enum.Enum):
    """What can be expected of the engine. `FAILED` could not be loaded, `DEAD` has worked before."""

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
        facts: what is known of it once it is loaded.
        defaults: what the model's makers recommend for sampling; empty until the model is opened.
    """

    def __init__(self, backend: Backend, on_change: Callable[[], None], *, hold: bool = False) -> None:
        """Prepares the first engine.

        Args:
            backend: the model.
            on_change: hears of other states.
            hold: whether loading waits for `begin`.
        """
        self.backend = backend
        self.state = HostState.LOADING
        self.status = ""
        self.error: Exception | None = None
        self.defaults: Mapping[str, Any] = {}
        self._on_change = on_change
        self._may_begin = threading.Event()
        if not hold:
            self._may_begin.set()
        self._tasks = TaskSet()
        self.facts: EngineFacts | None = None
        self.start()

    def start(self) -> None:
        """Begins to load a new engine; what is waiting for a model waits for this one."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[SessionModel] = loop.create_future()
        self._opened = opened
        backend = self.backend

        def make(progress: Callable[[str], None]) -> LLMEngine:
            self._may_begin.wait()
            model, defaults = backend.open(progress)
            _post(loop, self._know, opened, model, defaults)
            return backend.load(progress)

        self.engine = AsyncEngine(make, on_progress=lambda text: self._tell(opened, text))
        self.state, self.status, self.error, self.facts = HostState.LOADING, f"loading {backend.name}", None, None
        self.engine.start()
        self._tasks.start(self._watch(self.engine, opened))
        self._on_change()

    @property
    def model(self) -> SessionModel | None:
        """The text side of the model, once it is there."""
        return self._opened.result() if self._opened.done() and self._opened.exception() is None else None

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.model.name if self.model is not None else self.backend.name

    def begin(self) -> None:
        """Lets it load, if it was held: importing takes the interpreter's time from whoever builds a window."""
        self._may_begin.set()

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
        if self.facts is not None:
            facts = self.facts
            check_prompt_fits(len(prompt.token_ids), context=facts.max_model_len, num_blocks=facts.num_blocks, block_size=facts.block_size)

    @property
    def block_size(self) -> int:
        """Tokens of a block; 1 while that is not known."""
        return self.facts.block_size if self.facts is not None else 1

    async def snapshot(self) -> EngineSnapshot | None:
        """A picture of the engine; None while there is nothing to see."""
        if self.state is not HostState.READY:
            return None
        try:
            return await self.engine.snapshot()
        except EngineDeadError:
            return None

    async def switch(self, backend: Backend) -> None:
        """Takes another model. Whatever runs ends."""
        await self.close()
        self.backend = backend
        self.start()

    async def close(self) -> None:
        """Ends the engine after its current step."""
        seconds = _CLOSE_SECONDS if self.state is HostState.READY else _LOADING_SECONDS
        self.state = HostState.CLOSED
        self._on_change()
        self._may_begin.set()
        await self.engine.close(seconds)
        self._tasks.cancel()

    def _tell(self, opened: asyncio.Future[SessionModel], text: str) -> None:
        if opened is self._opened and self.state is HostState.LOADING:
            self.status = text
            self._on_change()

    def _know(self, opened: asyncio.Future[SessionModel], model: SessionModel, defaults: Mapping[str, Any]) -> None:
        if not opened.done():
            opened.set_result(model)
        if opened is self._opened:
            self.defaults = defaults
            self._on_change()

    async def _watch(self, engine: AsyncEngine, opened: asyncio.Future[SessionModel]) -> None:
        """Follows one engine from its loading to its end."""
        try:
            facts = await engine.wait_loaded()
        except ChatpagedError as error:
            if not opened.done():
                opened.set_exception(error)
                opened.exception()  # marks it as seen: nobody may be waiting
            self._change(engine, HostState.LOADING, HostState.FAILED, error)
            return
        self.facts = facts if engine is self.engine else self.facts
        self._change(engine, HostState.LOADING, HostState.READY)
        self._change(engine, HostState.READY, HostState.DEAD, await engine.wait_dead())

    def _change(self, engine: AsyncEngine, before: HostState, after: HostState, error: Exception | None = None) -> None:
        if engine is self.engine and self.state is before:
            self.state, self.status, self.error = after, "", error
            self._on_change()


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
