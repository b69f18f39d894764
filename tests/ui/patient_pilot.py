"""Textual's pilot, for slow machines, and for applications that end while it waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import ScreenStackError
from textual.pilot import Pilot

SECONDS = 120.0
"""How long anything is waited for: a test that takes so long has failed."""
_LOOK_SECONDS = 0.02


class PatientPilot(Pilot[Any]):
    """Waits until all that was posted has been dealt with, but not for an application that is ending: it drops what is posted then.

    Textual's own waits for that as for everything else, and gives up after 30 seconds.
    """

    @property
    def is_ending(self) -> bool:
        """Whether the application has been asked to end, or has failed."""
        return self.app._exit or self.app._exception is not None

    async def _wait_for_screen(self, timeout: float = SECONDS) -> bool:  # noqa: ASYNC109 - the signature is Textual's
        waiting = asyncio.create_task(super()._wait_for_screen(timeout))
        while not waiting.done() and not self.is_ending:
            await asyncio.wait([waiting], timeout=_LOOK_SECONDS)
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        await asyncio.wait([waiting])
        return False

    async def pause(self, delay: float | None = None) -> None:
        """As Textual's; an application that is ending may have no screen any more."""
        try:
            await super().pause(delay)
        except ScreenStackError:
            if not self.is_ending:
                raise
