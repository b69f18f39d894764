"""The user's editor, while the application steps aside."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from textual.app import App, SuspendNotSupported

from chatpaged.errors import ChatpagedError
from chatpaged.external_editor import Runner, edit_in_editor, run_in_terminal


async def edit_outside(app: App[Any], text: str, setting: str | None, run: Runner = run_in_terminal) -> str:
    """Lets the user change a text in an editor. The loop goes on, for the answers' sake, and paints nothing.

    Args:
        app: whose terminal it is.
        text: what the editor shows.
        setting: the editor; None is the user's.
        run: runs it.

    Raises:
        ChatpagedError: it cannot be run, or has failed; or the terminal cannot be left.
    """
    try:
        with app.batch_update(), app.suspend(), _interrupts_are_the_editors():
            return await asyncio.to_thread(edit_in_editor, text, setting, run)
    except SuspendNotSupported as error:
        raise ChatpagedError("no editor can be opened in this terminal") from error


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ctrl+C reaches all programs of the terminal; here it is meant for the editor."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not ignored: the editor would inherit that
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
