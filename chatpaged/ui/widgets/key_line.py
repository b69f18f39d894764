"""The keys of the moment, at the bottom."""

from __future__ import annotations

from textual.binding import Binding
from textual.widgets import Footer


class KeyLine(Footer):
    """Textual's footer, made anew only where its keys are others: it is told of every focus, every step of a chat and more."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False)
        self._shown: list[tuple[Binding, bool, str]] | None = None

    async def recompose(self) -> None:
        """Shows the keys there are now."""
        if not self.is_attached:
            return  # its screen was closed meanwhile
        keys = [(key.binding, key.enabled, key.tooltip) for key in self.screen.active_bindings.values() if key.binding.show]
        if keys != self._shown:
            self._shown = keys
            await super().recompose()
