"""The main screen: chats on the left, one or more of them in the middle, the engine on the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer

from chatpaged.chat import Chat, ChatState
from chatpaged.engine_host import HostState
from chatpaged.engine_rows import RowState
from chatpaged.engine_view import EngineView
from chatpaged.errors import ChatpagedError
from chatpaged.prompt_draft import PromptDraft
from chatpaged.setting_groups import AppSettings
from chatpaged.shown_text import shown
from chatpaged.ui.chat_actions import ChatActions
from chatpaged.ui.collector import calm_collector
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
from chatpaged.ui.slash_actions import SlashActions
from chatpaged.ui.surfaces import AppSurface
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.ui.widgets.engine_panel import WITHOUT, EnginePanel
from chatpaged.ui.widgets.markdown import TextFlow
from chatpaged.ui.widgets.prompt import Prompt
from chatpaged.ui.widgets.sidebar import Sidebar
from chatpaged.ui.widgets.title_bar import TitleBar
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import (
    AnswerEnded,
    AnswerGrew,
    ChatChanged,
    EngineChanged,
    ListChanged,
    Notice,
    PathChanged,
    Returned,
    WorkspaceEvent,
)

_REFRESH_SECONDS = 0.5
_MOST_PANES = 4
_NO_ENGINE = "There is no engine.\nCtrl+O takes another model; every chat is kept."


class MainScreen(Screen[None]):
    """Everything at once.

    Attributes:
        workspace: the chats.
        actions: what is done with them.
        view: the engine as it was seen last.
    """

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as Textual declares it
        (0, "-narrow"),
        (80, "-medium"),
        (116, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-low"),
        (16, "-high"),
    ]
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
        """Makes the screen.

        Args:
            workspace: the chats.
            make_prompt: makes a prompt for each pane.
            settings: how it looks.
        """
        super().__init__()
        self.workspace = workspace
        self.actions = ChatActions(self)
        self._slash = SlashActions(self.actions)
        self.view: EngineView | None = None
        self._make_prompt = make_prompt
        self._filter = ""
        self._drafts: dict[str, tuple[str, PromptDraft]] = {}
        self._settings = settings
        self._list_is_old = True
        self._is_looking = False
        self._unsubscribe: Callable[[], None] | None = None

    def on_compose(self) -> None:
        """Its size decides how it looks; said before there is anything in it, it costs nothing."""
        for size, breakpoints in zip(self.app.size, (self.HORIZONTAL_BREAKPOINTS, self.VERTICAL_BREAKPOINTS), strict=True):
            self.add_class(max((least, name) for least, name in breakpoints if size >= least)[1])

    def compose(self) -> ComposeResult:
        """Three columns between two lines."""
        yield TitleBar()
        with Horizontal(id="body"):
            yield Sidebar(id="sidebar")
            with Horizontal(id="panes"):
                yield ChatPane(self.workspace, self.workspace.new_chat(), self._make_prompt())
            yield EnginePanel(map_colors=self._settings.map_colors, id="engine")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to listen."""
        self._unsubscribe = self.workspace.subscribe(self._hear)
        self.set_class(not self._settings.sidebar, "-no-sidebar")
        self.set_class(not self._settings.engine_panel, "-no-engine")
        self.set_interval(_REFRESH_SECONDS, self._tick)
        self.run_worker(self.workspace.shelf.refresh(), group="list")
        self._show_engine_state()
        self._looked_at()
        self.active.prompt.focus_input()
        self.call_after_refresh(calm_collector)

    def on_unmount(self) -> None:
        """Nobody is left to hear anything."""
        if self._unsubscribe is not None:
            self._unsubscribe()

    @property
    def desk(self) -> AppSurface:
        """The application."""
        return cast(AppSurface, self.app)

    # --- panes -----------------------------------------------------------------------------------------------------------

    @property
    def panes(self) -> list[ChatPane]:
        """The chats in view, from the left."""
        return [pane for pane in self.query(ChatPane) if pane.is_open]

    @property
    def active(self) -> ChatPane:
        """The pane that is typed into."""
        panes = self.panes
        return next((pane for pane in panes if pane.has_class("-active")), panes[0])

    def activate(self, pane: ChatPane, *, focus: bool = True) -> None:
        """Types into this pane from now on."""
        for other in self.panes:
            other.set_class(other is pane, "-active")
        if focus:
            pane.prompt.focus_input()
        self._looked_at()

    def pane_of(self, chat_id: str | None) -> ChatPane | None:
        """The pane with a chat."""
        return next((pane for pane in self.panes if pane.chat.id == chat_id), None)

    def _looked_at(self) -> None:
        """The chats in view are other ones."""
        panes = self.panes
        active = self.active
        for pane in panes:
            pane.set_class(len(panes) > 1, "-split")
            pane.set_class(pane is active, "-active")
        self.workspace.look_at([active.chat.id, *(pane.chat.id for pane in panes if pane is not active)])
        self.query_one(TitleBar).show_chat(active.chat.title)
        self._refresh_list()
        self.query_one(Sidebar).look_at(active.chat.id)
        self.refresh_bindings()

    def show_chat(self, chat: Chat, *, beside: bool = False) -> None:
        """Looks at a chat, in the active pane or in one of its own."""
        pane = self.pane_of(chat.id)
        if pane is None and beside and len(self.panes) < _MOST_PANES:
            self.run_worker(self._add_pane(chat), group="panes")
            return
        if pane is None:
            pane = self.active
            self._drop_if_empty(pane)
            pane.look_at(chat)
        self.activate(pane)
        self.remove_class("-sidebar-open")

    async def _add_pane(self, chat: Chat) -> None:
        pane = ChatPane(self.workspace, chat, self._make_prompt())
        await self.query_one("#panes").mount(pane)
        self.activate(pane)

    async def close_pane(self, pane: ChatPane) -> None:
        """Takes a pane out of view; its chat goes on."""
        if len(self.panes) > 1:
            pane.leave()
            pane.is_open = False
            self.activate(self.panes[0])
            await pane.remove()

    def _drop_if_empty(self, pane: ChatPane) -> None:
        """A chat in which nothing was said or typed is forgotten when another one is looked at."""
        pane.leave()
        if pane.chat.is_empty and not pane.chat.is_busy and pane.chat.prompt.is_blank:
            self.workspace.chats.pop(pane.chat.id, None)

    def on_descendant_focus(self) -> None:
        """Where the cursor is, there is typed."""
        pane = next((pane for pane in self.panes if self.focused is not None and pane in self.focused.ancestors), None)
        if pane is not None and not pane.has_class("-active"):
            self.activate(pane, focus=False)
        self.refresh_bindings()

    # --- what happens ----------------------------------------------------------------------------------------------------

    def _hear(self, event: WorkspaceEvent) -> None:
        if isinstance(event, PathChanged | AnswerGrew | AnswerEnded):
            pane = self.pane_of(event.chat_id)
            if pane is not None:
                pane.take(event)
            self._list_is_old = True
        elif isinstance(event, ChatChanged):
            self._chat_changed(event.chat_id)
        elif isinstance(event, Returned):
            self._give_back(event)
        elif isinstance(event, Notice):
            self._notice(event)
        elif isinstance(event, EngineChanged):
            self._show_engine_state()
        elif isinstance(event, ListChanged):
            self._refresh_list()

    def _chat_changed(self, chat_id: str) -> None:
        pane = self.pane_of(chat_id)
        if pane is not None:
            pane.show_activity()
            pane.show_title()
            if pane is self.active:
                self.query_one(TitleBar).show_chat(pane.chat.title)
        self._list_is_old = True
        self.refresh_bindings()

    def _give_back(self, event: Returned) -> None:
        pane, chat = self.pane_of(event.chat_id), self.workspace.chats.get(event.chat_id)
        text, typed = self._drafts.get(event.chat_id, ("", PromptDraft()))
        draft = typed if text == event.text else PromptDraft.of(event.text)
        if pane is not None:
            pane.prompt.load(draft.joined(pane.prompt.draft), chat=event.chat_id)
        elif chat is not None:
            chat.prompt = draft.joined(chat.prompt)

    def _notice(self, event: Notice) -> None:
        title = "" if event.chat_id is None or self.pane_of(event.chat_id) else shown(self.workspace.shelf.title(event.chat_id))
        self.desk.say(event.text, severity=event.severity, title=title)

    def show_unsaved(self, *, unsaved: bool) -> None:
        """Says for as long as it is so that what is said cannot be kept."""
        for bar in self.query(TitleBar):  # none any more, at the end
            bar.show_unsaved(unsaved=unsaved)

    def _show_engine_state(self) -> None:
        host = self.workspace.host
        self.query_one(TitleBar).show_engine(host.name, host.state, host.status)
        for pane in self.panes:
            pane.show_activity()
        if host.state is HostState.READY:
            self.call_after_refresh(calm_collector)
            for pane in self.panes:
                pane.count_soon()
        else:
            self.view = None
            self.query_one(EnginePanel).show(None, WITHOUT if host.state is HostState.LOADING else _NO_ENGINE)
        if host.state in (HostState.DEAD, HostState.FAILED):
            self.actions.tell_dead()

    # --- twice a second --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        busy = [chat for chat in self.workspace.chats.values() if chat.is_busy]
        if busy or self._list_is_old:
            self._refresh_list()
        if not self._is_looking:
            self.run_worker(self._look(), group="look")

    async def _look(self) -> None:
        """Looks at the engine: a picture at a time, never two at once."""
        self._is_looking = True
        try:
            view = await self.workspace.look()
        finally:
            self._is_looking = False
        if view is None:
            return
        self.view = view
        if self.query_one(EnginePanel).is_on_screen:
            self.query_one(EnginePanel).show(view)
        self.desk.show_engine(view)
        for pane in self.panes:
            if pane.chat.is_busy:
                pane.show_activity(self._reading(pane.chat, view))
                pane.count_soon()

    @staticmethod
    def _reading(chat: Chat, view: EngineView) -> str:
        row = view.row(chat.id)
        if chat.state is not ChatState.WAITING or row is None:
            return ""
        tokens = len(chat.reply.draft.prompt.token_ids) if chat.reply is not None else 0
        if row.state is RowState.PREEMPTED:
            return "moved aside for another chat; goes on by itself"
        return f"reading {tokens:,} tokens: {row.percent} %" if row.state is RowState.READING else ""

    def _refresh_list(self) -> None:
        self._list_is_old = False
        in_view = [pane.chat.id for pane in self.panes]
        entries = [
            entry
            for entry in self.workspace.shelf.entries(self._filter)
            if entry.num_messages or entry.id in in_view or entry.state is not ChatState.IDLE
        ]
        self.query_one(Sidebar).show(entries, in_view)
        for pane in self.panes:
            pane.show_recent(entries)

    # --- requests --------------------------------------------------------------------------------------------------------

    @on(OpenChat)
    async def _open(self, event: OpenChat) -> None:
        await self.open_chat(event.chat_id)

    @on(OpenBeside)
    async def _open_beside(self, event: OpenBeside) -> None:
        await self.open_chat(event.chat_id, beside=True)

    async def open_chat(self, chat_id: str, *, beside: bool = False) -> ChatPane | None:
        """Opens a chat of the list. Returns its pane, unless it could not be opened."""
        try:
            chat = await self.workspace.open_chat(chat_id)
        except ChatpagedError as error:
            self.desk.say(str(error), severity="error")
            return None
        self.show_chat(chat, beside=beside)
        return self.pane_of(chat_id)

    @on(NewChat)
    def _new(self) -> None:
        self.action_new_chat()

    @on(FilterChats)
    def _filter_list(self, event: FilterChats) -> None:
        self._filter = event.text
        self._refresh_list()

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
        pane = next((pane for pane in self.panes if pane.prompt is event.prompt), self.active)
        for note in event.notes:
            self.desk.say(note)
        if event.command is not None:
            if not self._slash.run(pane, event.command, event.text) and pane.prompt.draft.is_blank:
                pane.prompt.load(event.draft, chat=event.chat)  # to be put right
        elif pane.editing is not None:
            self._drafts[pane.chat.id] = (event.text, event.draft)
            node_id = pane.editing
            pane.stop_editing(keep_text=True)
            self.workspace.edit(pane.chat, node_id, event.text)
        else:
            self._drafts[pane.chat.id] = (event.text, event.draft)
            self.workspace.send(pane.chat, event.text)

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
            await self._add_pane(self.workspace.new_chat())

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
            self.call_after_refresh(self.query_one(Sidebar).options.focus)
        else:
            self.active.prompt.focus_input()

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

    def hint(self, text: str) -> None:
        """A word below the prompt."""
        self.active.show_hint(Content(shown(text)).plain)
