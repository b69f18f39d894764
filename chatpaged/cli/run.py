"""`chatpaged run`: many chats in the terminal, and what the engine does with its memory."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.presets import complete_presets
from chatpaged.cli.prompt_options import model_options
from chatpaged.cli.sampling_options import chat_sampling_options, given_sampling
from chatpaged.cli.session_options import SessionChoice, chat_session_options
from chatpaged.cli.setting_options import SettingsCommand, add_options, group_options, preset_of, settings_of, working_directory
from chatpaged.cli.signals import TERMINATED, leaving_at_once, statuses
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.gc_pause import collector_paused
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, StoreError
from chatpaged.presets import Preset, find_preset
from chatpaged.setting_groups import AppSettings

if TYPE_CHECKING:
    from chatpaged.backends import Backend
    from chatpaged.preset_prompts import PresetPrompt
    from chatpaged.store_background import BackgroundStore


F = TypeVar("F", bound=Callable[..., Any])


def app_options(function: F) -> F:
    """Adds an option for each of `AppSettings`."""
    return add_options(function, group_options("app"))


@click.command("run", cls=SettingsCommand, context_settings={"max_content_width": 100})
@model_options
@click.option("--demo", is_flag=True, help="No model: answers come from a script, and all else is real.")
@click.option(
    "--preload",
    multiple=True,
    metavar="PRESET",
    shell_complete=complete_presets,
    help="Read a preset's system prompt before anybody asks. May be given several times.",
)
@chat_session_options
@app_options
@chat_sampling_options
@engine_options
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Chat in the terminal: any number of chats at once, on one model.

    The window is there at once, and the model loads meanwhile. F1 shows the keys, Ctrl+Q quits; everything is saved.

    Exit codes: 0 ok, 1 failed while running, 2 usage, 3 model, 143 terminated.
    """
    preloaded = [find_preset(name, working_directory()) for name in dict.fromkeys(options.pop("preload"))]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequestError("chatpaged run needs a terminal; 'chatpaged ask' answers one prompt, 'chatpaged batch' reads a pipe")
    model, demo, system = options.pop("model"), options.pop("demo"), options.pop("system")
    options["reply_to"] = None  # messages are chosen in the application
    chosen = SessionChoice.take(options)
    app_settings = AppSettings(**{entry.name: options.pop(entry.name) for entry in fields(AppSettings)})
    given = given_sampling(options)
    SamplingParams(**given)
    config = engine_config(**options)
    if demo and model is not None and ctx.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE:
        raise InvalidRequestError("--demo runs without a model; give --demo or --model")
    backend_for = _backends(config, demo=demo)
    backend = backend_for(model)
    parts = {"system": system, "sampling": given, "settings": app_settings, "keys": settings_of(ctx).values.keys}
    status = _run(chosen, backend=backend, backend_for=backend_for, presets=_kept(preset_of(ctx), preloaded, system), **parts)
    if status:
        raise click.exceptions.Exit(status)


def _kept(used: Preset | None, preloaded: Sequence[Preset], system: str | None) -> tuple[PresetPrompt, ...]:
    """What the engine is to keep of system prompts: those of `--preload`, and that of `-p` where it says so."""
    from chatpaged.preset_prompts import PresetPrompt

    wishes = [PresetPrompt(preset.name, preset.system(system), preset.pin, preload=True, model=preset.model) for preset in preloaded]
    if used is not None and used.pin and used.name not in {preset.name for preset in preloaded}:
        wishes.append(PresetPrompt(used.name, system, pin=True))  # the command line may have given another system prompt
    return tuple(wishes)


def _backends(config: EngineConfig, *, demo: bool) -> Callable[[str | None], Backend]:
    """What gives a model by its name; a name that means nothing is refused before the window is there."""
    from chatpaged.backends import DemoBackend, ModelBackend
    from chatpaged.model_files import find_source

    def make(name: str | None) -> Backend:
        if demo and name in (None, DemoBackend.name):
            return DemoBackend(config)
        find_source(name)
        return ModelBackend(name, config)

    return make


def _run(chosen: SessionChoice, **parts: Any) -> int:
    """Runs the application. Returns its exit status."""
    with collector_paused():  # the window should be there at once
        from chatpaged.engine.async_engine import ENGINE_THREAD
        from chatpaged.prompt_history import PromptHistory, history_file
        from chatpaged.session_model import SessionOptions
        from chatpaged.store_background import BackgroundStore
        from chatpaged.ui.app import AppParts, ChatpagedApp
        from chatpaged.ui.log_capture import capture_output

    session = chosen.find_id()
    failures: SimpleQueue[StoreError] = SimpleQueue()
    with ExitStack() as stack:
        stack.enter_context(leaving_at_once())  # until the application takes such signals itself
        store = None
        if not chosen.no_save:
            store = BackgroundStore(on_error=failures.put)
            stack.callback(_close, store)
        log = stack.enter_context(capture_output())
        history = PromptHistory(None if chosen.no_save else history_file())
        app = ChatpagedApp(
            AppParts(
                store=store,
                failures=failures,
                session=session,
                directory=working_directory(),
                log=log,
                history=history,
                signals=statuses(),
                hung_up=TERMINATED,
                options=chosen.with_keeping(SessionOptions(leave_out=True)),
                **parts,
            )
        )
        try:
            app.run()
        except Exception as error:  # noqa: BLE001 - a widget that has failed and fails again while the application ends
            app.failure = app.failure or error
    if app.failure is not None:
        # On the normal screen, where it stays.
        sys.stderr.write("".join(traceback.format_exception(app.failure)))
        sys.stderr.write("chatpaged: the application has failed; what was said is kept: chatpaged run -c goes on\n")
    status = app.return_code or (1 if app.failure is not None else 0)
    if any(thread.name == ENGINE_THREAD and thread.is_alive() for thread in threading.enumerate()):
        # It is loading, or in a long step: torch aborts a process that comes to its end meanwhile. Everything is kept by now.
        sys.stderr.flush()
        os._exit(status)
    return status


def _close(store: BackgroundStore) -> None:
    if not store.close():
        sys.stderr.write("chatpaged: not everything that was said could be kept\n")
