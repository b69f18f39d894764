"""Copying: by the terminal, which works over SSH too, and by the desktop's own tool where there is one."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyperclip

if TYPE_CHECKING:
    from textual.app import App


async def copy_text(app: App[Any], text: str) -> None:
    """Copies a text exactly as it is. That nothing can be copied is never an error: the text stays where it is.

    The terminal is asked in any case (OSC 52). A terminal that does not know how to copy says nothing, so the desktop's tool is
    called too, unless the desktop is that of another machine.
    """
    app.copy_to_clipboard(text)
    if not (os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY")):
        await asyncio.to_thread(_by_tool, text)


def _by_tool(text: str) -> None:
    with suppress(pyperclip.PyperclipException, OSError, ValueError):  # no such tool, or it does not work here
        pyperclip.copy(text)


def copied_note(text: str) -> str:
    """What the user is told."""
    lines = text.count("\n") + 1
    return f"copied {len(text):,} character{'' if len(text) == 1 else 's'}" + (f", {lines:,} lines" if lines > 1 else "")
