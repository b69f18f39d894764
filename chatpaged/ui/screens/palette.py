"""Textual's command palette, made to stand keys that repeat."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from textual.command import CommandPalette
from textual.message import Message
from textual.widgets import Button, Input, OptionList

from chatpaged.ui.screens.closes_once import ClosesOnce


class Palette(ClosesOnce, CommandPalette):
    """All commands. One is chosen once."""

    async def _dispatch_message(self, message: Message) -> None:
        """A second Enter that came before the first one was followed would run the command again."""
        if not (self._is_closing and isinstance(message, Input.Submitted | OptionList.OptionSelected | Button.Pressed)):
            await super()._dispatch_message(message)

    def _action_command_list(self, action: str) -> None:
        """Pages are turned in a list that is not laid out yet as well, by a key that came with the one that opened it."""
        with suppress(KeyError):
            super()._action_command_list(action)

    def run_worker(self, *args: Any, **kwargs: Any) -> Any:
        """Looking for commands goes on for a moment when the palette is closed, and finds nothing of it any more: no reason to end."""
        return super().run_worker(*args, **{**kwargs, "exit_on_error": False})
