"""The engine panel on the whole screen."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from chatpaged.engine_view import EngineView
from chatpaged.ui.screens.closes_once import ClosesOnce
from chatpaged.ui.widgets.chat_table import ChatTable
from chatpaged.ui.widgets.engine_panel import EnginePanel
from chatpaged.ui.widgets.key_line import KeyLine


class EngineScreen(ClosesOnce, Screen[str | None]):
    """Everything the side panel shows, in two columns where there is room. Its result is the chat that is to be opened, if any."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "Back")]
    DEFAULT_CSS = """
    EngineScreen > EnginePanel { width: 1fr; background: $background; padding: 0 2; }
    """

    def __init__(self, *, map_colors: str = "theme") -> None:
        super().__init__()
        self._panel = EnginePanel(map_colors=map_colors, id="engine-whole")

    def compose(self) -> ComposeResult:
        """The panel and the keys."""
        yield self._panel
        yield KeyLine()

    def on_mount(self) -> None:
        """Chats can be walked through at once."""
        self._panel.query_one(ChatTable).focus()

    def show(self, view: EngineView | None) -> None:
        """Shows the engine as it is now; None: there is none yet."""
        self._panel.show(view)

    def action_close(self) -> None:
        """Goes back."""
        self.dismiss(None)

    @on(EnginePanel.ChatSelected)
    def _open_chat(self, message: EnginePanel.ChatSelected) -> None:
        message.stop()
        self.dismiss(message.chat_id)
