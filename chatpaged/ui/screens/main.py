"""The main screen as it is used: what keys, clicks and widgets ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from chatpaged.setting_groups import AppSettings
from chatpaged.ui.chat_actions import ChatActions
from chatpaged.ui.requests import (
    DeleteChat,
    FilterChats,
    FindText,
    NewChat,
    OpenBeside,
    OpenChat,
    PinChat,
    RenameChat,
    UndeleteChat,
)
from chatpaged.ui.screens.chats import ChatsScreen
from chatpaged.ui.slash_actions import SlashActions
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.ui.widgets.engine_panel import EnginePanel
from chatpaged.ui.widgets.markdown import TextFlow
from chatpaged.ui.widgets.prompt import Prompt
from chatpaged.ui.widgets.sidebar import Sidebar
from chatpaged.ui.widgets.title_bar import TitleBar
from chatpaged.workspace import Workspace


class MainScreen(ChatsScreen):
    """The main screen.

    Attributes:
        actions: what is done with chats.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="stop"),
        Binding("ctrl+n", "new_chat", "New", id="new_chat", priority=True),
        # What a newcomer needs most comes first: a narrow window shows no more.
        Binding("ctrl+q", "app.quit", "Quit", id="quit", priority=True),
        Binding("ctrl+p", "app.command_palette", "Commands", id="palette", priority=True),
        Binding("f1", "app.show_keys", "Help", id="help", priority=True),
        Binding("ctrl+f", "find", "Find", id="find", priority=True),
        Binding("ctrl+t", "tree", "Branches", id="tree", priority=True),
        Binding("ctrl+up,f7", "messages", "Messages", id="messages", priority=True),
        Binding("f2", "toggle_engine", "Engine", id="toggle_engine", priority=True),
        Binding("ctrl+b", "toggle_sidebar", "Chats", id="toggle_sidebar", priority=True),
        Binding("f4", "split", "Side by side", id="split", priority=True, show=False),
        Binding("f3", "engine_screen", "Engine, large", id="engine_screen", priority=True, show=False),
        Binding("f6", "next_pane", "Next pane", id="next_pane", priority=True, show=False),
        Binding("ctrl+o", "choose_model", "Model", id="choose_model", priority=True, show=False),
        Binding("ctrl+pagedown,alt+down", "next_chat(1)", "Next chat", id="next_chat", priority=True, show=False),
        Binding("ctrl+pageup,alt+up", "next_chat(-1)", "Previous chat", id="previous_chat", priority=True, show=False),
        Binding("f12", "log", "Log", id="log", priority=True, show=False),
    ]

    def __init__(self, workspace: Workspace, make_prompt: Callable[[], Prompt], settings: AppSettings) -> None:
        """Makes the screen; see `ChatsScreen`."""
        super().__init__(workspace, make_prompt, settings)
        self.actions = ChatActions(self)
        self._slash = SlashActions(self.actions)

    def engine_gone(self) -> None:
        """Offers another one."""
        self.actions.tell_dead()

    # --- requests --------------------------------------------------------------------------------------------------------

    @on(OpenChat)
    async def _open(self, event: OpenChat) -> None:
        await self.open_chat(event.chat_id)

    @on(OpenBeside)
    async def _open_beside(self, event: OpenBeside) -> None:
        await self.open_chat(event.chat_id, beside=True)

    @on(NewChat)
    def _new(self) -> None:
        self.action_new_chat()

    @on(FilterChats)
    def _filter_list(self, event: FilterChats) -> None:
        self.filter_text = event.text
        self.refresh_list()

    @on(FindText)
    def _find(self, event: FindText) -> None:
        self.actions.find(event.text)

    @on(RenameChat)
    def _rename(self, event: RenameChat) -> None:
        self.actions.rename(event.chat_id)

    @on(PinChat)
    def _pin(self, event: PinChat) -> None:
        self.workspace.shelf.pin(event.chat_id)

    @on(DeleteChat)
    def _delete(self, event: DeleteChat) -> None:
        self.actions.delete(event.chat_id)

    @on(UndeleteChat)
    async def _undelete(self) -> None:
        await self.actions.take_back()

    @on(TitleBar.ModelClicked)
    def _model_clicked(self) -> None:
        self.action_choose_model()

    @on(EnginePanel.ChatSelected)
    async def _engine_chat(self, event: EnginePanel.ChatSelected) -> None:
        await self.open_chat(event.chat_id)

    @on(TextFlow.LinkClicked)
    def _link(self, event: TextFlow.LinkClicked) -> None:
        self.desk.copy(event.address)
        self.desk.say(f"{event.address} was copied; links are not opened from here")

    @on(ChatPane.Clicked)
    def _pane_clicked(self, event: ChatPane.Clicked) -> None:
        if not event.pane.has_class("-active"):
            self.activate(event.pane)

    @on(ChatPane.Action)
    def _message_action(self, event: ChatPane.Action) -> None:
        self.actions.on_message(event.pane, event.wanted)

    @on(Prompt.Sent)
    def _sent(self, event: Prompt.Sent) -> None:
        # Files take time to be read: another chat may be in view by now.
        chat = self.workspace.chats.get(event.chat, self.active.chat)
        pane = self.pane_of(chat.id) or self.active
        for note in event.notes:
            self.desk.say(note)
        if event.command is not None:
            if not self._slash.run(pane, event.command, event.text) and pane.prompt.draft.is_blank:
                pane.prompt.load(event.draft, chat=event.chat)  # to be put right
            return
        self._drafts[chat.id] = (event.text, event.draft)
        node_id = pane.editing if pane.chat is chat else None
        if node_id is not None:
            pane.stop_editing(keep_text=True)
            self.workspace.edit(chat, node_id, event.text)
        else:
            self.workspace.send(chat, event.text)

    @on(Prompt.Returned)
    def _returned(self, event: Prompt.Returned) -> None:
        chat = self.workspace.chats.get(event.chat)
        if chat is not None:
            chat.prompt = event.draft.joined(chat.prompt)

    # --- keys ------------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Stop is offered while there is something to stop."""
        del parameters
        if action == "stop" and self.is_mounted and self.query(ChatPane):
            pane = self.active
            lies_over = self.has_class("-sidebar-open") or self.has_class("-engine-open")
            return pane.chat.is_busy or pane.editing is not None or lies_over or not pane.prompt.has_focus_within
        return True

    def action_stop(self) -> None:
        """Stops the answer; else gives up what is being done, and goes back to the prompt."""
        pane = self.active
        if not pane.stop_editing(keep_text=False):
            self.workspace.stop(pane.chat)
        self.remove_class("-sidebar-open", "-engine-open")
        pane.prompt.focus_input()

    def action_new_chat(self) -> None:
        """Begins a chat; an empty one that is in view will do."""
        pane = self.active
        if pane.chat.is_empty and not pane.chat.is_busy:
            pane.prompt.focus_input()
            self.remove_class("-sidebar-open")
        else:
            self.show_chat(self.workspace.new_chat())

    async def action_next_chat(self, step: int) -> None:
        """Looks at the chat below in the list, or above."""
        order = self.query_one(Sidebar).order
        if order:
            here = self.active.chat.id
            at = order.index(here) + step if here in order else (0 if step > 0 else -1)
            await self.open_chat(order[at % len(order)])

    def action_find(self) -> None:
        """Finds a chat or a message."""
        self.actions.find("")

    def action_tree(self) -> None:
        """Shows the branches."""
        self.actions.show_tree(self.active)

    def action_messages(self) -> None:
        """Puts the cursor on the last message."""
        if self.active.chat.is_empty:
            self.desk.say("there is no message yet")
        else:
            self.active.messages.focus_last()

    def action_choose_model(self) -> None:
        """Chooses another model."""
        self.actions.choose_model()

    async def action_split(self) -> None:
        """Shows another chat beside this one; with several in view, takes this one out of view."""
        if len(self.panes) > 1:
            await self.close_pane(self.active)
        else:
            await self.add_pane(self.workspace.new_chat())

    def action_next_pane(self) -> None:
        """Goes on to the next part of the screen: panes, then the list."""
        panes = self.panes
        at = panes.index(self.active)
        on_list = self.query_one(Sidebar).has_focus_within
        if on_list or (at + 1 < len(panes)):
            self.activate(panes[0 if on_list else at + 1])
        elif self.query_one(Sidebar).is_on_screen:
            self.query_one(Sidebar).options.focus()
        else:
            self.activate(panes[0])

    def action_toggle_sidebar(self) -> None:
        """Goes to the list of chats, from there hides it, and shows it again; over the chat where there is no room beside it."""
        narrow = self.has_class("-narrow")
        sidebar = self.query_one(Sidebar)
        if sidebar.display and not sidebar.has_focus_within:
            sidebar.options.focus()
            return
        self.toggle_class("-sidebar-open" if narrow else "-no-sidebar")
        self.remove_class("-engine-open")
        if self.has_class("-sidebar-open") if narrow else not self.has_class("-no-sidebar"):
            self.call_after_refresh(self._focus_list)
        else:
            self.active.prompt.focus_input()

    def _focus_list(self) -> None:
        """It may have been hidden again meanwhile."""
        if self.query_one(Sidebar).display:
            self.query_one(Sidebar).options.focus()

    def action_toggle_engine(self) -> None:
        """Shows or hides the engine panel, likewise."""
        wide = self.has_class("-wide")
        self.toggle_class("-no-engine" if wide else "-engine-open")
        self.remove_class("-sidebar-open")
        self.refresh_bindings()

    def action_engine_screen(self) -> None:
        """Shows the engine on the whole screen."""
        self.actions.show_engine()

    def action_log(self) -> None:
        """Shows what libraries have printed."""
        self.actions.show_log()
