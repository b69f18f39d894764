"""The main screen as it is looked at: chats on the left, one or more of them in the middle, the engine on the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen

from chatpaged.chat import Chat, ChatState
from chatpaged.engine_host import HostState
from chatpaged.engine_rows import RowState
from chatpaged.engine_view import EngineView
from chatpaged.errors import ChatpagedError
from chatpaged.prompt_draft import PromptDraft
from chatpaged.setting_groups import AppSettings
from chatpaged.shown_text import shown
from chatpaged.ui.collector import calm_collector
from chatpaged.ui.surfaces import AppSurface
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.ui.widgets.engine_panel import WITHOUT, EnginePanel
from chatpaged.ui.widgets.key_line import KeyLine
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
_IDLE_TICKS = 4
"""So often an engine is looked at that nobody uses: it writes blocks to the disk and brings others up meanwhile."""
_MOST_PANES = 4
_NO_ENGINE = "There is no engine.\nCtrl+O takes another model; every chat is kept."


class ChatsScreen(Screen[None]):
    """Shows the workspace: its list, the chats in view, the engine. What is done with them is its subclass's.

    Attributes:
        workspace: the chats.
        view: the engine as it was seen last.
        filter_text: only titles with these words are listed.
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

    def __init__(self, workspace: Workspace, make_prompt: Callable[[], Prompt], settings: AppSettings) -> None:
        """Makes the screen.

        Args:
            workspace: the chats.
            make_prompt: makes a prompt for each pane.
            settings: how it looks.
        """
        super().__init__()
        self.workspace = workspace
        self.view: EngineView | None = None
        self.filter_text = ""
        self._make_prompt = make_prompt
        self._drafts: dict[str, tuple[str, PromptDraft]] = {}
        self._settings = settings
        self._list_is_old = True
        self._view_is_old = True
        self._is_looking = False
        self._idle_ticks = 0
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
        yield KeyLine()

    def on_mount(self) -> None:
        """Begins to listen."""
        self._unsubscribe = self.workspace.subscribe(self._hear)
        self.set_class(not self._settings.sidebar, "-no-sidebar")
        self.set_class(not self._settings.engine_panel, "-no-engine")
        self.query_one(TitleBar).show_private(private=bool(self.workspace.options.salt))
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
        self.refresh_list()
        self.query_one(Sidebar).look_at(active.chat.id)
        self.refresh_bindings()

    def show_chat(self, chat: Chat, *, beside: bool = False) -> None:
        """Looks at a chat, in the active pane or in one of its own."""
        pane = self.pane_of(chat.id)
        if pane is None and beside and len(self.panes) < _MOST_PANES:
            self.run_worker(self.add_pane(chat), group="panes")
            return
        if pane is None:
            pane = self.active
            self._drop_if_empty(pane)
            pane.look_at(chat)
        self.activate(pane)
        self.remove_class("-sidebar-open")

    async def add_pane(self, chat: Chat) -> None:
        """Looks at a chat in a pane of its own."""
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

    async def open_chat(self, chat_id: str, *, beside: bool = False) -> ChatPane | None:
        """Opens a chat of the list. Returns its pane, unless it could not be opened."""
        try:
            chat = await self.workspace.open_chat(chat_id)
        except ChatpagedError as error:
            self.desk.say(str(error), severity="error")
            return None
        self.show_chat(chat, beside=beside)
        return self.pane_of(chat_id)

    # --- what happens ----------------------------------------------------------------------------------------------------

    def _hear(self, event: WorkspaceEvent) -> None:
        self._view_is_old = True
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
            self.refresh_list()

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
            self.engine_gone()

    def engine_gone(self) -> None:
        """There is no engine any more, or none to begin with."""

    # --- twice a second --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        is_busy = any(chat.is_busy for chat in self.workspace.chats.values())
        if is_busy or self._list_is_old:
            self.refresh_list()
        self._idle_ticks += 1
        if (is_busy or self._view_is_old or self._idle_ticks >= _IDLE_TICKS) and not self._is_looking:
            self.run_worker(self._look(), group="look")

    async def _look(self) -> None:
        """Looks at the engine: a picture at a time, never two at once."""
        self._is_looking, self._view_is_old, self._idle_ticks = True, False, 0
        try:
            view = await self.workspace.look()
        finally:
            self._is_looking = False
        if view is None:
            return
        if view != self.view:
            self.view = view
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

    def _is_typed_in(self, chat_id: str) -> bool:
        """Whether something waits to be sent in a chat, which can be come back to then."""
        chat = self.workspace.chats.get(chat_id)
        return chat is not None and not chat.prompt.is_blank

    def refresh_list(self) -> None:
        """Lists the chats as they are now."""
        self._list_is_old = False
        in_view = [pane.chat.id for pane in self.panes]
        entries = [
            entry
            for entry in self.workspace.shelf.entries(self.filter_text)
            if entry.num_messages or entry.id in in_view or entry.state is not ChatState.IDLE or self._is_typed_in(entry.id)
        ]
        self.query_one(Sidebar).show(entries, in_view)
        for pane in self.panes:
            pane.show_recent(entries)
