"""What is done with chats and their messages, whichever key, click or command has asked for it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from chatpaged.chat import Chat
from chatpaged.choices import model_choices, named_choices, preset_choices
from chatpaged.conversation import Node
from chatpaged.engine_host import HostState
from chatpaged.errors import ChatpagedError, EngineDeadError
from chatpaged.preset_prompts import PresetPrompt
from chatpaged.presets import find_preset
from chatpaged.shown_text import shown
from chatpaged.ui.screens.alternatives import AlternativesScreen
from chatpaged.ui.screens.ask_text import AskTextScreen
from chatpaged.ui.screens.choose import ChooseScreen
from chatpaged.ui.screens.engine_dead import EngineDeadScreen
from chatpaged.ui.screens.find import FindScreen
from chatpaged.ui.screens.tree import TreeScreen
from chatpaged.ui.surfaces import MainSurface
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.ui.widgets.message_item import MessageAction
from chatpaged.workspace import Workspace

ALTERNATIVES = 3


class ChatActions:
    """Acts on the main screen and its workspace."""

    def __init__(self, screen: MainSurface) -> None:
        self.screen = screen
        self._tells_dead = False

    @property
    def workspace(self) -> Workspace:
        """The chats."""
        return self.screen.workspace

    def say(self, text: str, *, wrong: bool = False) -> None:
        """Shows a notice."""
        self.screen.desk.say(text, severity="warning" if wrong else "information")

    # --- messages --------------------------------------------------------------------------------------------------------

    def on_message(self, pane: ChatPane, event: MessageAction) -> None:
        """Something is wanted of a message."""
        chat, node = pane.chat, pane.chat.conversation.node(event.node_id)
        match event.action:
            case "copy" | "copy_code":
                self.copy(event.text)
            case "edit":
                self.edit(pane, node)
            case "regenerate":
                self.workspace.regenerate(chat, node.id)
            case "continue":
                self.workspace.continue_answer(chat, node.id)
            case "branch":
                self.branch(pane, node)
            case "alternatives":
                self.alternatives(chat, node)
            case "previous" | "next":
                self._sibling(chat, node, -1 if event.action == "previous" else 1)

    def copy(self, text: str) -> None:
        """Copies a text."""
        self.screen.desk.copy(text)

    def edit(self, pane: ChatPane, node: Node) -> None:
        """Takes a message of the user's into the prompt. An answer is nobody's to rewrite: its question is taken."""
        if not self.workspace.is_free(pane.chat):
            return
        question = node if node.role == "user" else pane.chat.conversation.question_of(node.id)
        pane.start_editing(question)

    def branch(self, pane: ChatPane, node: Node) -> None:
        """Goes back to a message. To one of the user's means to say something else in its place."""
        if node.role == "user":
            self.edit(pane, node)
            return
        self.workspace.branch(pane.chat, node.id)
        pane.prompt.focus_input()
        if not pane.chat.is_busy:
            self.say("Your next message begins a branch here. Ctrl+T shows all branches.")

    def _sibling(self, chat: Chat, node: Node, step: int) -> None:
        siblings = chat.conversation.siblings(node.id)
        at = next(i for i, sibling in enumerate(siblings) if sibling.id == node.id) + step
        if 0 <= at < len(siblings):
            self.workspace.switch(chat, siblings[at].id)

    def alternatives(self, chat: Chat, node: Node | None, *, n: int = ALTERNATIVES, text: str = "") -> None:
        """Several answers to one question, side by side: to a new one, or to one that is there."""
        if not self.workspace.is_free(chat):
            return
        self.screen.run_worker(partial(self._alternatives, chat, node, n, text), group="alternatives", exclusive=True)

    async def _alternatives(self, chat: Chat, node: Node | None, n: int, text: str) -> None:
        if text:
            self.workspace.send(chat, text, n=n)
        else:
            self.workspace.regenerate(chat, node.id if node is not None else None, n=n)
        question = await self.workspace.begun(chat)
        if question is not None:
            await self.screen.desk.push_screen(AlternativesScreen(self.workspace, chat, question))

    # --- chats -----------------------------------------------------------------------------------------------------------

    def rename(self, chat_id: str) -> None:
        """Asks for another name."""

        def take(name: str | None) -> None:
            if name is not None:
                self.workspace.shelf.rename(chat_id, name)

        self.screen.desk.push_screen(AskTextScreen("Rename chat", self.workspace.shelf.title(chat_id)), take)

    def delete(self, chat_id: str) -> None:
        """Takes a chat away; it can be brought back until the application ends."""
        title = self.workspace.shelf.title(chat_id)
        chat = self.workspace.chats.get(chat_id)
        if chat is not None:
            self.workspace.stop(chat)
        pane = self.screen.pane_of(chat_id)
        if pane is not None:
            pane.leave()
        self.workspace.shelf.throw_away(chat_id)
        if pane is not None:
            pane.look_at(self.workspace.new_chat())
            self.screen.activate(pane, focus=False)
        self.say(f"Deleted “{shown(title)}”. Until you quit, u in the list of chats (Ctrl+B) brings it back.")

    async def take_back(self) -> None:
        """Brings back what was deleted last."""
        chat_id = self.workspace.shelf.take_back()
        if chat_id is None:
            self.say("nothing was deleted")
        else:
            await self.screen.open_chat(chat_id)

    def pin(self, chat: Chat) -> None:
        """Keeps in memory what is computed of a chat; says what that takes."""

        async def pin() -> None:
            try:
                self.say(await self.workspace.memory.pin(chat))
            except ChatpagedError as error:
                self.say(str(error), wrong=True)

        self.screen.run_worker(pin(), group="pins")

    def unpin(self, chat: Chat) -> None:
        """Lets go of what is kept of a chat in memory."""

        async def unpin() -> None:
            with suppress(EngineDeadError):  # with the engine, everything it has kept is gone
                was_pinned = await self.workspace.memory.unpin(chat)
                self.say("not pinned any more" if was_pinned else "this chat is not pinned", wrong=not was_pinned)

        self.screen.run_worker(unpin(), group="pins")

    def new_from_preset(self, name: str) -> None:
        """Begins a chat with the settings of a preset.

        Raises:
            SettingsError: there is none of this name.
        """
        preset = find_preset(name, self.screen.desk.directory)
        sampling = {key.partition(".")[2]: value for key, value in preset.values.items() if key.startswith("sampling.")}
        chat = self.workspace.new_chat(system=preset.system(None), sampling=sampling, preset=name)
        if preset.pin:
            self.workspace.presets.keep(PresetPrompt(name, chat.conversation.system, pin=True))
        self.screen.show_chat(chat)
        model = preset.model
        if model is not None and model != self.screen.desk.model_name:
            self.say(f"The preset is made for the model {model}: /model {model} changes to it.")

    # --- screens ---------------------------------------------------------------------------------------------------------

    def find(self, text: str) -> None:
        """Finds a chat or a message."""

        def go(found: tuple[str, str | None] | None) -> None:
            if found is not None:
                self.screen.run_worker(self._go_to(*found), group="find")

        chats = [entry for entry in self.workspace.shelf.entries() if entry.num_messages]
        self.screen.desk.push_screen(FindScreen(self.workspace.shelf.search, chats, text), go)

    async def _go_to(self, chat_id: str, message_id: str | None) -> None:
        pane = await self.screen.open_chat(chat_id)
        if pane is not None and message_id:
            await pane.go_to(message_id)

    def show_tree(self, pane: ChatPane) -> None:
        """Shows the branches of a chat."""

        def go(message_id: str | None) -> None:
            if message_id is not None:
                self.screen.run_worker(pane.go_to(message_id), group="find")

        if pane.chat.is_empty:
            self.say("there is no message yet")
        else:
            self.screen.desk.push_screen(TreeScreen(self.workspace, pane.chat), go)

    def choose_model(self) -> None:
        """Chooses another model for all chats."""

        def take(name: str | None) -> None:
            if not name:
                return
            try:
                self.use_model(name)
            except ChatpagedError as error:
                self.say(str(error), wrong=True)

        app, host = self.screen.desk, self.workspace.host
        app.push_screen(
            ChooseScreen("Model", model_choices, current=host.name, free_text="a directory, a .gguf file or an id of the hub"), take
        )

    def use_model(self, name: str) -> None:
        """Takes another model. What is being answered ends, and is kept."""
        backend = self.screen.desk.backend_for(name)
        self.say(f"Loading {name}. Chats stay as they are; their next message is read by the new model.")
        self.screen.run_worker(self.workspace.use_model(backend), group="model", exclusive=True)

    def choose_preset(self) -> None:
        """Chooses a preset for a new chat."""

        def take(name: str | None) -> None:
            try:
                if name:
                    self.new_from_preset(name)
            except ChatpagedError as error:
                self.say(str(error), wrong=True)

        directory = self.screen.desk.directory
        self.screen.desk.push_screen(ChooseScreen("New chat from a preset", lambda: preset_choices(directory)), take)

    def choose_theme(self) -> None:
        """Chooses colours."""
        desk = self.screen.desk
        before = desk.theme

        def take(name: str | None) -> None:
            desk.theme = name if name is not None else before
            if name is not None and name != before:
                self.say(f"{name} until you quit; chatpaged config set app.theme {name} keeps it")

        def preview(name: str) -> None:
            desk.theme = name

        desk.push_screen(ChooseScreen("Theme", named_choices(desk.available_themes), current=before, preview=preview), take)

    def show_engine(self) -> None:
        """Shows the engine on the whole screen."""
        self.screen.desk.show_engine_screen(self.screen.view)

    def show_log(self) -> None:
        """Shows the log."""
        self.screen.desk.show_log()

    def tell_dead(self) -> None:
        """Says that there is no engine any more, and offers one. Nothing is lost."""
        host = self.workspace.host
        if self._tells_dead:
            return
        self._tells_dead = True

        def take(choice: str | None) -> None:
            self._tells_dead = False
            if choice == "reload":
                self.screen.run_worker(self.workspace.reload(), group="model", exclusive=True)
            elif choice == "model":
                self.choose_model()

        self.screen.desk.push_screen(
            EngineDeadScreen(str(host.error), kept=self.workspace.cut_off, was_loaded=host.state is HostState.DEAD), take
        )
