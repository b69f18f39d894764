"""The Textual application: `chatpaged run`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.events import Event, Key
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES

from chatpaged.backends import Backend
from chatpaged.choices import model_choices, preset_choices
from chatpaged.engine_view import EngineView
from chatpaged.errors import StoreError
from chatpaged.key_names import key_clashes
from chatpaged.preset_prompts import PresetPrompt
from chatpaged.prompt_history import PromptHistory
from chatpaged.session import SessionOptions
from chatpaged.setting_groups import AppSettings, KeySettings
from chatpaged.shown_text import shown
from chatpaged.slash_commands import COMMANDS
from chatpaged.store_background import BackgroundStore
from chatpaged.ui.clipboard import copied_note, copy_text
from chatpaged.ui.collector import calm_collector
from chatpaged.ui.log_capture import OutputCapture
from chatpaged.ui.log_lines import LogLines
from chatpaged.ui.screens.engine import EngineScreen
from chatpaged.ui.screens.help import HelpScreen
from chatpaged.ui.screens.log import LogScreen
from chatpaged.ui.screens.main import MainScreen
from chatpaged.ui.screens.palette import Palette
from chatpaged.ui.terminal_input import TerminalDriver
from chatpaged.ui.widgets.prompt import Prompt
from chatpaged.ui.widgets.prompt_area import PromptArea
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import Severity

_TWICE_SECONDS = 2.0
_FAILURE_SECONDS = 0.5
_TYPED_SECONDS = 0.3
_NOTICE_SECONDS = {"information": 4.0, "warning": 8.0, "error": 15.0}


@dataclass(frozen=True, kw_only=True)
class AppParts:
    """What the application is put together from, by the command line or by a test.

    Attributes:
        backend: the model.
        backend_for: gives another one by its name.
        store: where chats are kept; None keeps nothing.
        system: the system prompt of new chats.
        sampling: values of the command line and the settings, by their names in `SamplingParams`.
        options: what holds for every prompt.
        settings: how it looks and behaves.
        keys: its keys.
        directory: where files and presets are looked for.
        session: the chat to begin with; None begins a new one.
        presets: system prompts that the engine is to keep.
        log: what libraries print.
        history: what was typed before.
        signals: those that end it, and with which exit status.
        failures: what the store could not keep, from its own thread.
        hung_up: the status with which it ends when the terminal is gone.
    """

    backend: Backend
    backend_for: Callable[[str], Backend]
    store: BackgroundStore | None = None
    system: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    options: SessionOptions | None = None
    settings: AppSettings = field(default_factory=AppSettings)
    keys: KeySettings = field(default_factory=KeySettings)
    directory: Path = field(default_factory=Path)
    session: str | None = None
    presets: tuple[PresetPrompt, ...] = ()
    log: OutputCapture | None = None
    history: PromptHistory = field(default_factory=PromptHistory)
    signals: Mapping[int, int] = field(default_factory=dict)
    hung_up: int = 1
    failures: SimpleQueue[StoreError] = field(default_factory=SimpleQueue)


class _Choices:
    """Names for completion and for lists."""

    def __init__(self, app: ChatpagedApp) -> None:
        self._app = app

    def presets(self) -> Sequence[tuple[str, str]]:
        """The presets there are."""
        return [(choice.id, choice.note) for choice in preset_choices(self._app.directory)]

    def models(self) -> Sequence[tuple[str, str]]:
        """The models on this machine."""
        return [(choice.id, choice.note) for choice in model_choices()]

    def themes(self) -> Sequence[tuple[str, str]]:
        """The themes of the application."""
        return [(name, "dark" if theme.dark else "light") for name, theme in self._app.available_themes.items()]


class _LogText:
    """The log as a screen shows it."""

    def __init__(self, log: LogLines | None) -> None:
        self._log = log

    @property
    def lines(self) -> Sequence[str]:
        """All lines that are kept."""
        return [str(line) for line in self._log.lines] if self._log is not None else []

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called after each change."""
        return self._log.subscribe(lambda _: listener()) if self._log is not None else lambda: None


class ChatpagedApp(App[None]):
    """Many chats on one model, and what the engine does with its memory."""

    TITLE = "chatpaged"
    CSS_PATH = "chatpaged.tcss"
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "copy_stop_or_hint", "Copy", show=False, priority=True),
        Binding("ctrl+p", "command_palette", "Commands", id="palette", priority=True),
        Binding("f1", "show_keys", "Help", id="help", priority=True),
        Binding("ctrl+q", "quit", "Quit", id="quit", priority=True),
    ]
    workspace: Workspace

    def __init__(self, parts: AppParts) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color=True if "NO_COLOR" in os.environ else None)
        self.parts = parts
        self.choices = _Choices(self)
        self.animation_level = "none"  # what moves costs the engine its time
        self._keys = asdict(parts.keys)
        self.failure: Exception | None = None
        self.is_unsaved = False
        self._hinted_at = -_TWICE_SECONDS
        self._engine_screen: EngineScreen | None = None
        self.set_keymap({name: keys for name, keys in self._keys.items() if name not in ("send", "newline")})
        self.theme = parts.settings.theme if parts.settings.theme in BUILTIN_THEMES else "textual-dark"

    @property
    def main(self) -> MainScreen | None:
        """The main screen, whatever lies over it; None before it is there."""
        return next((screen for screen in self.screen_stack if isinstance(screen, MainScreen)), None)

    @property
    def directory(self) -> Path:
        """Where files and presets are looked for."""
        return self.parts.directory

    @property
    def model_name(self) -> str:
        """The model that is used."""
        return self.workspace.host.name

    def backend_for(self, name: str) -> Backend:
        """A model by its name."""
        return self.parts.backend_for(name)

    def on_mount(self) -> None:
        """Begins to load the engine; the window is there meanwhile."""
        parts = self.parts
        if parts.log is not None:
            parts.log.take_prints()
        self._handle_signals()
        self.set_interval(_FAILURE_SECONDS, self._tell_failures)
        self.workspace = Workspace(
            parts.backend, parts.store, system=parts.system, sampling=parts.sampling, options=parts.options, hold=True
        )
        for prompt in parts.presets:
            self.workspace.presets.keep(prompt)
        screen = MainScreen(self.workspace, self._make_prompt, parts.settings)
        self.push_screen(screen)
        self.call_after_refresh(self._first_frame)
        if parts.session is not None:
            self.call_after_refresh(self.run_worker, screen.open_chat(parts.session), group="open")
        for clash in key_clashes(parts.keys):
            self.say(f"{clash}; chatpaged config set keys.… changes one of them", severity="warning")
        if parts.settings.theme != self.theme:
            self.say(f"there is no theme {parts.settings.theme!r}; /theme shows all", severity="warning")

    def _first_frame(self) -> None:
        """The window is there."""
        self.workspace.host.begin()
        calm_collector()

    def _handle_signals(self) -> None:
        """A request to end is heard by the loop, so that the terminal is left as it was and everything is kept."""
        loop = asyncio.get_running_loop()
        for number, status in self.parts.signals.items():
            loop.add_signal_handler(number, self._end, status)

    def action_hang_up(self) -> None:
        """Ends: the terminal is gone, and nobody has sent a signal, or it was ignored."""
        self._end(self.parts.hung_up)

    def _end(self, status: int) -> None:
        async def end() -> None:
            await self.wind_up()
            self.exit(return_code=status)

        self.run_worker(end, group="quit", exclusive=True)  # type: ignore[arg-type]  # of a callable mypy cannot tell the result

    def _handle_exception(self, error: Exception) -> None:
        """Something of ours has failed: it is told on the normal screen, after this one."""
        self.failure = self.failure if self.failure is not None else error
        super()._handle_exception(error)

    def _make_prompt(self) -> Prompt:
        return Prompt(
            keys=self.parts.keys,
            choices=self.choices,
            history=self.parts.history,
            count_tokens=self._count_tokens,
            directory=self.directory,
            editor=self.parts.settings.editor,
        )

    def _count_tokens(self, text: str) -> int:
        """On a thread of the prompt's."""
        model = self.workspace.host.model
        return len(model.tokenizer.encode(text)) if model is not None else 0

    async def on_event(self, event: Event) -> None:
        """Lets the focused widget take what was typed before a command's key: keys that come at once are taken in their order.

        Textual acts upon a key bound with priority at once, while the letters before it still wait in the queue of the widget.
        """
        if isinstance(event, Key) and not event.is_forwarded and not event.is_printable and self.focused is not None:
            taken = asyncio.Event()
            if self.focused.call_later(taken.set):
                with suppress(TimeoutError):  # a widget that is busy keeps nobody from a command for long
                    await asyncio.wait_for(taken.wait(), _TYPED_SECONDS)
        await super().on_event(event)

    # --- notices ---------------------------------------------------------------------------------------------------------

    def say(self, text: str, *, severity: Severity = "information", title: str = "") -> None:
        """Shows a notice. What it is made of is never markup."""
        self.notify(shown(" ".join(text.split())), title=title, severity=severity, timeout=_NOTICE_SECONDS[severity], markup=False)

    def notify(self, message: str, **options: Any) -> None:
        """Shows a notice, unless the same is on the screen."""
        if not any(notice.message == message and not notice.has_expired for notice in self._notifications):
            super().notify(message, **options)

    async def _tell_failures(self) -> None:
        """Says what could not be kept, and goes on saying so until it is."""
        store = self.parts.store
        while not self.parts.failures.empty():
            self.say(f"not kept: {self.parts.failures.get()}", severity="error")
            self.is_unsaved = True
        if self.is_unsaved and store is not None and await asyncio.to_thread(store.flush, 0.0):
            self.is_unsaved = False
        if self.main is not None:
            self.main.show_unsaved(unsaved=self.is_unsaved)

    # --- screens ---------------------------------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[Any]) -> list[SystemCommand]:
        """What the command palette offers: every key's action, and Textual's own."""
        commands = [
            SystemCommand(binding.description, f"key: {self.get_key_display(binding)}", self._runner(active.node, binding.action))
            for active in screen.active_bindings.values()
            for binding in (active.binding,)
            if binding.description and not binding.system and active.enabled
        ]
        commands += [SystemCommand(f"/{command.name}", command.help, self._typer(command.line)) for command in COMMANDS]
        return commands

    def _runner(self, node: Any, action: str) -> Callable[[], None]:
        def run() -> None:
            self.run_worker(self.run_action(action, node), group="palette")

        return run

    def _typer(self, line: str) -> Callable[[], None]:
        def run() -> None:
            if isinstance(self.screen, MainScreen):
                self.screen.active.prompt.set_text(line.split(" ", maxsplit=1)[0] + (" " if " " in line else ""))

        return run

    def show_engine_screen(self, view: EngineView | None) -> None:
        """Shows the engine on the whole screen."""
        screen = EngineScreen(map_colors=self.parts.settings.map_colors)
        self._engine_screen = screen

        def close(chat_id: str | None) -> None:
            self._engine_screen = None
            main = self.screen
            if chat_id is not None and isinstance(main, MainScreen):
                main.run_worker(main.open_chat(chat_id), group="open")

        screen.show(view)  # kept until there is room: what is seen by then may be newer
        self.push_screen(screen, close)

    def show_engine(self, view: EngineView) -> None:
        """The engine was looked at: its own screen shows it, if it is open."""
        if self._engine_screen is not None:
            self._engine_screen.show(view)

    def show_log(self) -> None:
        """Shows what libraries have printed."""
        self.push_screen(LogScreen(_LogText(self.parts.log.lines if self.parts.log is not None else None)))

    def show_help(self) -> None:
        """Shows keys and commands."""
        self.push_screen(HelpScreen(self._keys, [(command.line, command.help) for command in COMMANDS]))

    def action_show_keys(self) -> None:
        """Shows keys and commands; closes them where they are shown."""
        if isinstance(self.screen, HelpScreen):
            self.screen.action_close()
        elif not any(isinstance(screen, HelpScreen) for screen in self.screen_stack):
            self.show_help()

    def action_command_palette(self) -> None:
        """Shows all commands; they are shown once, also where something else was opened over them."""
        if not any(isinstance(screen, CommandPalette) for screen in self.screen_stack):
            self.push_screen(Palette())

    # --- copying and the end ---------------------------------------------------------------------------------------------

    def action_copy_stop_or_hint(self) -> None:
        """Ctrl+C: copies what is selected, else stops the answer in view, else says how to quit. Never loses anything."""
        selected = self._selected()
        if selected:
            self.copy(selected)
            return
        if self.main is not None and self.workspace.stop(self.main.active.chat):
            return
        now = time.monotonic()
        if self.parts.settings.ctrl_c == "quit" or now - self._hinted_at < _TWICE_SECONDS:
            self.run_worker(self.action_quit(), group="quit")
            return
        self._hinted_at = now
        self.say("Nothing to copy or stop. Ctrl+C again quits; everything is saved.")

    def copy(self, text: str) -> None:
        """Copies a text exactly as it is."""
        self.run_worker(copy_text(self, text), group="copy", exit_on_error=False)
        self.say(copied_note(text))

    def _selected(self) -> str:
        focused = self.focused
        if isinstance(focused, PromptArea) and focused.selected_text:
            return str(focused.selected_text)
        return self.screen.get_selected_text() or ""

    async def action_quit(self) -> None:
        """Ends; what is being answered is kept as far as it has come."""
        await self.wind_up()
        self.exit()

    async def wind_up(self) -> None:
        """Keeps everything. What is typed into a chat that has never been sent anything is found again with Up."""
        for pane in self.main.panes if self.main is not None else ():
            pane.leave()
        for chat in self.workspace.chats.values():
            if not chat.stored and not chat.prompt.is_blank:
                self.parts.history.add(chat.prompt)
        await asyncio.to_thread(self.parts.history.save)
        await self.workspace.close()
