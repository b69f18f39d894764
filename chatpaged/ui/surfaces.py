"""What the parts of the application know of each other, so that none has to import who imports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from textual.theme import Theme

from chatpaged.backends import Backend
from chatpaged.chat import Chat
from chatpaged.engine_view import EngineView
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import Severity


class AppSurface(Protocol):
    """The application, as its screens see it."""

    theme: Any

    @property
    def directory(self) -> Path:
        """Where files and presets are looked for."""

    @property
    def model_name(self) -> str:
        """The model that is used."""

    @property
    def available_themes(self) -> Mapping[str, Theme]:
        """The themes there are."""

    def backend_for(self, name: str) -> Backend:
        """A model by its name.

        Raises:
            ModelError: there is none.
        """

    def say(self, text: str, *, severity: Severity = "information", title: str = "") -> None:
        """Shows a notice."""

    def copy(self, text: str) -> None:
        """Copies a text."""

    def push_screen(self, screen: Any, callback: Any = None) -> Any:
        """Shows a screen over this one."""

    def show_engine(self, view: EngineView) -> None:
        """The engine was looked at."""

    def show_engine_screen(self, view: EngineView | None) -> None:
        """Shows the engine on the whole screen."""

    def show_log(self) -> None:
        """Shows what libraries have printed."""

    def show_help(self) -> None:
        """Shows keys and commands."""

    async def action_quit(self) -> None:
        """Ends; everything is kept."""


class MainSurface(Protocol):
    """The main screen, as those see it who act on it."""

    workspace: Workspace
    view: EngineView | None

    @property
    def desk(self) -> AppSurface:
        """The application."""

    def pane_of(self, chat_id: str | None) -> ChatPane | None:
        """The pane with a chat."""

    def activate(self, pane: ChatPane, *, focus: bool = True) -> None:
        """Types into this pane from now on."""

    def show_chat(self, chat: Chat, *, beside: bool = False) -> None:
        """Looks at a chat."""

    async def open_chat(self, chat_id: str, *, beside: bool = False) -> ChatPane | None:
        """Opens a chat of the list."""

    def run_worker(self, work: Any, name: str | None = "", group: str = "default", *, exclusive: bool = False) -> Any:
        """Runs something on the event loop."""

    def action_new_chat(self) -> None:
        """Begins a chat."""

    async def action_split(self) -> None:
        """Shows another chat beside this one."""
