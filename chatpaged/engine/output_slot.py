"""The hand-off of a request's news to whoever reads them."""

from __future__ import annotations

import asyncio

from chatpaged.engine.outputs import RequestOutput, merge_outputs


class OutputSlot:
    """Holds what one reader has not fetched. Lives on the event loop."""

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
