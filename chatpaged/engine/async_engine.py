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
import itertools
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, Self, TypeVar

from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import RequestOutput, merge_outputs
from chatpaged.engine.prompts import Prompt
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.errors import ChatpagedError, EngineDeadError

_log = logging.getLogger(__name__)
T = TypeVar("T")
Command = Callable[[LLMEngine], object]


class _Slot:
    """The hand-off to one reader. Lives on the event loop."""

    def __init__(self) -> None:
        self._is_open = False
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None
        self._ready = asyncio.Event()

    def open(self) -> None:
        """The engine knows the request: from now on, news under its name are meant for this reader."""
        self._is_open = True

    def put(self, output: RequestOutput) -> None:
        """Adds news; merged with what has not been fetched. What comes too early was for an earlier user of the name."""
        if self._is_open:
            self._output = output if self._output is None else merge_outputs(self._output, output)
            self._ready.set()

    def fail(self, error: BaseException) -> None:
        """Ends the stream with an error, after what is still to be fetched."""
        self._error = error
        self._ready.set()

    async def get(self) -> RequestOutput:
        """Waits for news."""
        await self._ready.wait()
        if self._output is not None:
            output, self._output = self._output, None
            if self._error is None:
                self._ready.clear()
            return output
        if self._error is None:
            raise RuntimeError("an empty slot was marked ready")
        raise self._error


class AsyncEngine:
    """One engine thread, used from one event loop.

    ```python
    async with AsyncEngine(lambda: LLMEngine.from_pretrained(directory)) as engine:
        async for output in engine.generate([ChatMessage("user", "Hello!")]):
            ...
    ```

    Requests that come before the engine has been loaded wait for it.
    """

    def __init__(self, factory: Callable[[], LLMEngine]) -> None:
        """Prepares an engine.

        Args:
            factory: makes the engine; called on the engine thread.
        """
        self._factory = factory
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._slots: dict[str, _Slot] = {}
        self._futures: set[asyncio.Future[Any]] = set()
        self._names = (f"async-{number}" for number in itertools.count())
        self._thread = threading.Thread(target=self._run, name="chatpaged-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._death: Exception | None = None

    # --- from the event loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread, which begins to load. Returns at once."""
        if self._loop is not None:
            raise RuntimeError("the engine has been started before")
        self._loop = asyncio.get_running_loop()
        self._loaded = self._loop.create_future()
        self._thread.start()

    async def wait_loaded(self) -> None:
        """Waits until the engine can work.

        Raises:
            ChatpagedError: loading failed.
        """
        if self._loaded is None:
            raise RuntimeError("the engine has not been started")
        await asyncio.shield(self._loaded)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        interactive: bool = True,
        salt: bytes = b"",
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
        slot = self._slots[name] = _Slot()

        def add(engine: LLMEngine) -> None:
            self._post(slot.open)
            try:
                engine.add_request(prompt, params, request_id=name, priority=priority, interactive=interactive, salt=salt)
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

    async def close(self) -> None:
        """Stops the thread after its current step and gives memory back. Streams still open end with `EngineDeadError`."""
        if self._loop is None:
            return
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._die(EngineDeadError("the engine has been closed"))

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death.with_traceback(None)
        if self._loop is None:
            raise RuntimeError("the engine has not been started")

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            slot = self._slots.get(output.request_id)
            if slot is not None:
                slot.put(output)

    def _mark_loaded(self) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)

    def _die(self, error: Exception) -> None:
        """Every stream and every later call raises from now on."""
        if self._death is None:
            self._death = error
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
            with self._factory() as engine:
                self._post(self._mark_loaded)
                self._serve(engine)
        except ChatpagedError as error:
            self._post(self._die, error)
        except Exception as error:  # noqa: BLE001 - the top of the engine thread: everybody is told
            _log.exception("the engine thread has failed")
            dead = EngineDeadError(f"the engine has stopped: {type(error).__name__}: {error}")
            dead.__cause__ = error
            self._post(self._die, dead)

    def _serve(self, engine: LLMEngine) -> None:
        while True:
            while not (self._commands.empty() and engine.has_unfinished):
                command = self._commands.get()
                if command is None:
                    return
                command(engine)
            outputs = engine.step()
            if outputs:
                self._post(self._deliver, outputs)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
