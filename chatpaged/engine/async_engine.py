"""The engine on a thread of its own, for an asyncio program.

```text
event loop ── commands (SimpleQueue) ──>  engine thread: apply commands, step, apply commands, step, ...
           <── one call_soon_threadsafe a step ──┘
```

No locks: the engine is touched by its thread only, the slots by the event loop only. A slot holds one output for each request;
if the reader has not fetched it, the next one is merged into it, so a slow reader never holds the engine up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import traceback
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from chatpaged.engine.engine_state import EngineFacts, EngineState
from chatpaged.engine.output_slot import OutputSlot
from chatpaged.engine.outputs import RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.sequence import Keep
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.errors import ChatpagedError, EngineDeadError

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.engine.prompts import Prompt

_log = logging.getLogger(__name__)
T = TypeVar("T")
Command: TypeAlias = "Callable[[LLMEngine], object]"
ENGINE_THREAD = "chatpaged-engine"
_DISK_SECONDS = 0.05
"""How long the disk is given to catch up."""
Progress = Callable[[str], None]
"""Is told, in a few words, what is being done."""


class _LoadingStoppedError(ChatpagedError):
    """Whoever waited for the engine has gone."""


class AsyncEngine:
    """One engine thread, used from one event loop.

    ```python
    async with AsyncEngine(lambda progress: LLMEngine.from_pretrained(directory, progress=progress)) as engine:
        async for output in engine.generate([ChatMessage("user", "Hello!")]):
            ...
    ```

    Requests that come before the engine has been loaded wait for it.
    """

    def __init__(self, factory: Callable[[Progress], LLMEngine], *, on_progress: Progress | None = None) -> None:
        """Prepares an engine.

        Args:
            factory: makes the engine; called on the engine thread. What it tells its argument reaches `on_progress`; telling it
                something is also where loading ends early when the engine is closed meanwhile.
            on_progress: called on the event loop while the engine is being loaded.
        """
        self._factory = factory
        self._on_progress = on_progress
        self._is_closing = threading.Event()
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._slots: dict[str, OutputSlot] = {}
        self._futures: set[asyncio.Future[Any]] = set()
        self._names = (f"async-{number}" for number in itertools.count())
        self._thread = threading.Thread(target=self._run, name=ENGINE_THREAD, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loaded: asyncio.Future[EngineFacts] | None = None
        self._dead: asyncio.Future[Exception] | None = None

    # --- from the event loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread, which begins to load. Returns at once."""
        if self._loop is not None:
            raise RuntimeError("the engine has been started before")
        self._loop = asyncio.get_running_loop()
        self._loaded = self._loop.create_future()
        self._dead = self._loop.create_future()
        self._thread.start()

    @property
    def state(self) -> EngineState:
        """What can be expected of it."""
        if self.death is not None:
            return EngineState.DEAD
        return EngineState.READY if self.has_loaded else EngineState.LOADING

    @property
    def has_loaded(self) -> bool:
        """Whether it could ever work; a dead engine that has not was not there to begin with, and loading it again may not help."""
        return self._loaded is not None and self._loaded.done() and self._loaded.exception() is None

    @property
    def death(self) -> Exception | None:
        """Why it has stopped, if it has."""
        return self._dead.result() if self._dead is not None and self._dead.done() else None

    async def wait_loaded(self) -> EngineFacts:
        """Waits until the engine can work.

        Raises:
            ChatpagedError: loading failed.
        """
        if self._loaded is None:
            raise RuntimeError("the engine has not been started")
        return await asyncio.shield(self._loaded)

    async def wait_dead(self) -> Exception:
        """Waits until the engine has stopped, and returns why. Streams have heard of it by then."""
        if self._dead is None:
            raise RuntimeError("the engine has not been started")
        return await asyncio.shield(self._dead)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        interactive: bool = True,
        salt: bytes = b"",
        keep: Keep = Keep.FILE,
        split_reasoning: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request and yields its outputs. Leaving the loop, or cancelling the task, cancels the request.

        Arguments are those of `LLMEngine.add_request`.

        Raises:
            ChatpagedError: the request was refused; others go on, whatever was wrong with it.
            EngineDeadError: the engine has stopped.
        """
        self._check_alive()
        name = request_id if request_id is not None else next(self._names)
        if name in self._slots:
            raise RuntimeError(f"request id {name!r} is in use")
        slot = self._slots[name] = OutputSlot()

        def add(engine: LLMEngine) -> None:
            self._post(slot.open)
            try:
                engine.add_request(
                    prompt,
                    params,
                    request_id=name,
                    priority=priority,
                    interactive=interactive,
                    salt=salt,
                    keep=keep,
                    split_reasoning=split_reasoning,
                )
            except Exception as error:  # noqa: BLE001 - on the engine thread: whoever asked is told, nobody else
                self._post(self._deliver, [RequestOutput(request_id=name, finished=True, error=error)])

        self._commands.put(add)
        finished = False
        try:
            while not finished:
                output = await slot.get()
                finished = output.finished
                if output.error is not None:
                    raise output.error
                yield output
        finally:
            self._slots.pop(name, None)
            if not finished:
                self._commands.put(lambda engine: engine.abort(name))

    def stop(self, request_id: str) -> None:
        """Cancels a request; its reader gets a last output whose answers have finish reason `cancelled`."""

        def abort(engine: LLMEngine) -> None:
            output = engine.abort(request_id)
            if output is not None:
                self._post(self._deliver, [output])

        self._commands.put(abort)

    def set_priority(self, request_id: str, priority: int, *, interactive: bool) -> None:
        """Changes how urgent a request is."""
        self._commands.put(lambda engine: engine.set_priority(request_id, priority, interactive=interactive))

    async def call(self, function: Callable[[LLMEngine], T]) -> T:
        """Runs a function on the engine thread, between two steps, and returns its result.

        Raises:
            EngineDeadError: the engine has stopped.
            Exception: what the function raised; the engine goes on.
        """
        self._check_alive()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)

        def run(engine: LLMEngine) -> None:
            try:
                result = function(engine)
            except Exception as error:  # noqa: BLE001 - likewise
                self._post(_set_exception, future, error)
            else:
                self._post(_set_result, future, result)

        self._commands.put(run)
        return await future

    async def snapshot(self) -> EngineSnapshot:
        """A picture of the engine between two steps."""
        return await self.call(lambda engine: engine.snapshot())

    async def close(self, seconds: float | None = None) -> None:
        """Stops the thread after its current step and gives memory back. Streams still open end with `EngineDeadError`.

        Args:
            seconds: how long to wait for a step, or for loading, to come to its end; None waits for as long as it takes. The thread
                never keeps a process from ending.
        """
        if self._loop is None:
            return
        self._is_closing.set()
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, seconds)
        self._die(EngineDeadError("the engine has been closed"))

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_alive(self) -> None:
        if self.death is not None:
            raise self.death.with_traceback(None)
        if self._loop is None:
            raise RuntimeError("the engine has not been started")

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            slot = self._slots.get(output.request_id)
            if slot is not None:
                slot.put(output)

    def _mark_loaded(self, facts: EngineFacts) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(facts)

    def _show_progress(self, text: str) -> None:
        if self._on_progress is not None and self.state is EngineState.LOADING:
            self._on_progress(text)

    def _die(self, error: Exception) -> None:
        """Every stream and every later call raises from now on."""
        if self._dead is None or self._dead.done():
            return
        self._dead.set_result(error)
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(error)
            self._loaded.exception()  # marks it as seen: nobody may be waiting
        for slot in self._slots.values():
            slot.fail(error)
        for future in list(self._futures):
            _set_exception(future, error)

    # --- on the engine thread ------------------------------------------------------------------------------------------

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                _log.debug("the event loop has ended before the engine thread")

    def _run(self) -> None:
        try:
            engine = self._factory(self._progress)
        except ChatpagedError as error:
            _forget_locals(error)
            self._post(self._die, error)
            return
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the top of the engine thread, as below
            self._fail("the model could not be loaded", error)
            return
        try:
            with engine:
                self._post(self._mark_loaded, EngineFacts.of(engine))
                self._serve(engine)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - everybody is told
            self._fail("the engine has stopped", error)

    def _progress(self, text: str) -> None:
        if self._is_closing.is_set():
            raise _LoadingStoppedError("the engine has been closed")
        self._post(self._show_progress, text)

    def _fail(self, what: str, error: BaseException) -> None:
        """Tells everybody. SystemExit comes from code of models that means to end its own program."""
        _log.error(what, exc_info=error)
        _forget_locals(error)
        dead = EngineDeadError(f"{what}: {type(error).__name__}: {error}")
        dead.__cause__ = error
        self._post(self._die, dead)

    def _serve(self, engine: LLMEngine) -> None:
        while True:
            while not (self._commands.empty() and engine.has_unfinished):
                command = self._next_command(engine)
                if command is None:
                    return
                command(engine)
            outputs = engine.step()
            if outputs:
                self._post(self._deliver, outputs)

    def _next_command(self, engine: LLMEngine) -> Command | None:
        """Waits for a command; while there is none, blocks are written to files, a few at a time."""
        while self._commands.empty() and not engine.has_unfinished and engine.work_ahead():
            if not engine.can_save:
                with contextlib.suppress(queue.Empty):
                    return self._commands.get(timeout=_DISK_SECONDS)
        return self._commands.get()


def _forget_locals(error: BaseException | None) -> None:
    """Lets go of what was being done when an error came: whoever keeps the error would keep a model's weights in memory."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
