"""What the commands do that are typed into the prompt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from chatpaged.engine.sampling_params import MAX_SEED, SamplingParams
from chatpaged.errors import ChatpagedError, InvalidRequestError
from chatpaged.paths import write_text
from chatpaged.session_formats import to_json, to_markdown
from chatpaged.settings import parse_value, setting
from chatpaged.slash_commands import SlashCommand, find_command
from chatpaged.ui.chat_actions import ChatActions
from chatpaged.ui.screens.ask_text import AskTextScreen
from chatpaged.ui.widgets.chat_pane import ChatPane

Handler = Callable[[ChatPane, str], None]
_MOST_ALTERNATIVES = 9
_EXPORTS = (".md", ".markdown", ".txt", ".json")
_SAMPLING = {"temp": "temperature", "top-p": "top_p", "top-k": "top_k", "max-tokens": "max_tokens"}


class SlashActions:
    """Runs commands."""

    def __init__(self, actions: ChatActions) -> None:
        self._actions = actions

    def run(self, pane: ChatPane, command: SlashCommand, argument: str) -> bool:
        """Runs a command in a pane. What it cannot do is a notice. Returns whether it could."""
        try:
            if command.name in _SAMPLING:
                self._sampling(pane, _SAMPLING[command.name], argument)
            else:
                handler: Handler = getattr(self, "_do_" + command.name.replace("-", "_"))
                handler(pane, argument)
        except ChatpagedError as error:
            self._actions.say(str(error), wrong=True)
            return False
        return True

    # --- chats -----------------------------------------------------------------------------------------------------------

    def _do_new(self, pane: ChatPane, argument: str) -> None:
        del pane
        if argument:
            self._actions.new_from_preset(argument)
        else:
            self._actions.screen.action_new_chat()

    def _do_preset(self, pane: ChatPane, argument: str) -> None:
        del pane
        if argument:
            self._actions.new_from_preset(argument)
        else:
            self._actions.choose_preset()

    def _do_rename(self, pane: ChatPane, argument: str) -> None:
        self._actions.workspace.shelf.rename(pane.chat.id, argument)

    def _do_top(self, pane: ChatPane, argument: str) -> None:
        del argument
        on_top = self._actions.workspace.shelf.pin(pane.chat.id)
        self._actions.say("stays at the top of the list" if on_top else "is not kept at the top of the list any more")

    def _do_pin(self, pane: ChatPane, argument: str) -> None:
        del argument
        self._actions.pin(pane.chat)

    def _do_unpin(self, pane: ChatPane, argument: str) -> None:
        del argument
        self._actions.unpin(pane.chat)

    def _do_delete(self, pane: ChatPane, argument: str) -> None:
        del argument
        self._actions.delete(pane.chat.id)

    def _do_find(self, pane: ChatPane, argument: str) -> None:
        del pane
        self._actions.find(argument)

    def _do_split(self, pane: ChatPane, argument: str) -> None:
        del pane, argument
        self._actions.screen.run_worker(self._actions.screen.action_split(), group="panes")

    def _do_export(self, pane: ChatPane, argument: str) -> None:
        conversation = pane.chat.conversation
        if not conversation.nodes:
            raise InvalidRequestError("there is nothing to export yet")
        path = Path(argument).expanduser() if argument else self._actions.screen.desk.directory / f"{_slug(pane.chat.title)}.md"
        if path.exists() and not path.is_dir() and argument:
            raise InvalidRequestError(f"{path} is there already; give another name")
        if path.suffix.lower() not in _EXPORTS:
            raise InvalidRequestError(
                f"{path.name} would be no {path.suffix or 'file of a known kind'}; an export is {', '.join(_EXPORTS)}"
            )
        text = to_json(conversation) if path.suffix.lower() == ".json" else to_markdown(conversation)
        self._actions.screen.run_worker(self._write(path, text, replaces=bool(argument)), group="export")

    async def _write(self, path: Path, text: str, *, replaces: bool) -> None:
        try:
            target = path if replaces else await asyncio.to_thread(_free_name, path)
            await asyncio.to_thread(write_text, target, text)
        except OSError as error:
            self._actions.say(f"cannot write {path}: {error.strerror or error}", wrong=True)
        else:
            self._actions.say(f"written to {target}")

    # --- messages --------------------------------------------------------------------------------------------------------

    def _do_alternatives(self, pane: ChatPane, argument: str) -> None:
        match = re.match(r"(\d+)(?:\s+|$)", argument)
        n = int(match[1]) if match else 3
        text = argument[match.end() :] if match else argument
        if not 2 <= n <= _MOST_ALTERNATIVES:
            raise InvalidRequestError(f"alternatives are 2 to {_MOST_ALTERNATIVES}, not {n}")
        if not text and pane.chat.is_empty:
            raise InvalidRequestError("there is no question yet: /alternatives 3 What is …?")
        self._actions.alternatives(pane.chat, None, n=n, text=text)

    def _do_regenerate(self, pane: ChatPane, argument: str) -> None:
        del argument
        self._actions.workspace.regenerate(pane.chat)

    def _do_continue(self, pane: ChatPane, argument: str) -> None:
        del argument
        self._actions.workspace.continue_answer(pane.chat)

    def _do_edit(self, pane: ChatPane, argument: str) -> None:
        del argument
        asked = [node for node in pane.chat.conversation.path() if node.role == "user"]
        if not asked:
            raise InvalidRequestError("there is no message yet")
        self._actions.edit(pane, asked[-1])

    _do_branch = _do_edit

    def _do_tree(self, pane: ChatPane, argument: str) -> None:
        del argument
        self._actions.show_tree(pane)

    def _do_copy(self, pane: ChatPane, argument: str) -> None:
        del argument
        answers = [node for node in pane.chat.conversation.path() if node.role == "assistant"]
        if not answers:
            raise InvalidRequestError("there is no answer yet")
        self._actions.copy(answers[-1].content)

    def _do_think(self, pane: ChatPane, argument: str) -> None:
        del argument
        pane.toggle_thinking()

    # --- how it answers --------------------------------------------------------------------------------------------------

    def _do_system(self, pane: ChatPane, argument: str) -> None:
        if argument:
            self._set_system(pane, argument)
            return

        def take(text: str | None) -> None:
            if text is not None:
                self._set_system(pane, text)

        before = pane.chat.conversation.system or ""
        self._actions.screen.desk.push_screen(AskTextScreen("System prompt of this chat", before, multi_line=True), take)

    def _set_system(self, pane: ChatPane, text: str) -> None:
        self._actions.workspace.set_system(pane.chat, text)
        self._actions.say("The system prompt is set. Everything after it will be read again with the next message.")

    def _sampling(self, pane: ChatPane, name: str, argument: str) -> None:
        if not argument:
            values = pane.chat.effective_sampling(self._actions.workspace.host.defaults, self._actions.workspace.sampling)
            self._actions.say(f"{name} is {values.get(name, 'not set')}")
            return
        value = parse_value(setting(f"sampling.{name}"), argument, name=name)
        self._set_sampling(pane, name, value)

    def _do_set(self, pane: ChatPane, argument: str) -> None:
        name, _, value = argument.partition(" ")
        self._sampling(pane, name.replace("-", "_"), value.strip())

    def _do_seed(self, pane: ChatPane, argument: str) -> None:
        if not argument:
            pane.chat.sampling.pop("seed", None)
            self._actions.say("answers differ again")
        elif not argument.isdecimal() or int(argument) > MAX_SEED:
            raise InvalidRequestError(f"a seed is a whole number from 0 to {MAX_SEED}, not {argument!r}")
        else:
            self._set_sampling(pane, "seed", int(argument))

    def _set_sampling(self, pane: ChatPane, name: str, value: object) -> None:
        values = pane.chat.effective_sampling(self._actions.workspace.host.defaults, self._actions.workspace.sampling)
        SamplingParams(**values | {name: value})  # refuses what is out of range
        pane.chat.sampling[name] = value
        self._actions.say(f"{name} is {value} in this chat from now on")

    def _do_model(self, pane: ChatPane, argument: str) -> None:
        del pane
        if argument:
            self._actions.use_model(argument)
        else:
            self._actions.choose_model()

    # --- the application -------------------------------------------------------------------------------------------------

    def _do_stats(self, pane: ChatPane, argument: str) -> None:
        del pane, argument
        self._actions.show_engine()

    def _do_theme(self, pane: ChatPane, argument: str) -> None:
        del pane
        app = self._actions.screen.desk
        if not argument:
            self._actions.choose_theme()
        elif argument in app.available_themes:
            app.theme = argument
        else:
            raise InvalidRequestError(f"no theme {argument!r}; /theme shows all")

    def _do_log(self, pane: ChatPane, argument: str) -> None:
        del pane, argument
        self._actions.show_log()

    def _do_keys(self, pane: ChatPane, argument: str) -> None:
        del pane, argument
        self._actions.screen.desk.show_help()

    def _do_help(self, pane: ChatPane, argument: str) -> None:
        del pane
        command = find_command(argument.lstrip("/")) if argument else None
        if command is not None:
            self._actions.say(f"{command.line}: {command.help}")
        else:
            self._actions.screen.desk.show_help()

    def _do_quit(self, pane: ChatPane, argument: str) -> None:
        del pane, argument
        self._actions.screen.run_worker(self._actions.screen.desk.action_quit(), group="quit")


def _slug(title: str) -> str:
    words = re.findall(r"\w+", title.lower())
    return "-".join(words)[:40].rstrip("-") or "chat"


def _free_name(path: Path) -> Path:
    """A name that is not taken: nothing is written over that nobody has named."""
    names = (path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, 1000)))
    return next(name for name in names if not name.exists())
