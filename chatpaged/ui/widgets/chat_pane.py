"""One chat in view: its messages, what it is doing, the prompt, and how full the context is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static

from chatpaged.chat import Chat, ChatState
from chatpaged.conversation import Node
from chatpaged.engine_host import HostState
from chatpaged.prompt_draft import PromptDraft
from chatpaged.session_list import ListEntry
from chatpaged.shown_text import shown
from chatpaged.ui.background import beside
from chatpaged.ui.widgets.context_meter import ContextMeter
from chatpaged.ui.widgets.message_item import MessageAction, MessageItem
from chatpaged.ui.widgets.message_list import MessageList
from chatpaged.ui.widgets.prompt import Prompt
from chatpaged.ui.widgets.welcome import Welcome
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import AnswerEnded, AnswerGrew, PathChanged

_COUNT_SECONDS = 0.2
_REPEATS = "the answer repeats itself; Esc stops it"
PaneEvent = PathChanged | AnswerGrew | AnswerEnded


class ChatPane(Vertical):
    """A chat and all that belongs to it.

    Attributes:
        chat: the chat in view.
        editing: the message that what is typed will take the place of.
        is_open: all of it is there, and it is not being taken away.
    """

    DEFAULT_CSS = """
    ChatPane {
        width: 1fr;
        height: 1fr;
        & #pane-title { height: 1; padding: 0 1; background: $surface; color: $text-muted; display: none; }
        & #pane-title { text-wrap: nowrap; text-overflow: ellipsis; }
        &.-split #pane-title { display: block; }
        &.-split.-active #pane-title { background: $primary 30%; color: $text; text-style: bold; }
        &.-split { border-left: solid $surface; }
        & #activity { height: 1; padding: 0 2; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        & #pane-foot { height: 1; padding: 0 2; align-horizontal: right; }
    }
    """

    class Action(Message):
        """Something is wanted of a message of this pane."""

        def __init__(self, pane: ChatPane, wanted: MessageAction) -> None:
            super().__init__()
            self.pane = pane
            self.wanted = wanted

    class Clicked(Message):
        """The mouse was pressed in this pane."""

        def __init__(self, pane: ChatPane) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, workspace: Workspace, chat: Chat, prompt: Prompt) -> None:
        super().__init__()
        self.workspace = workspace
        self.chat = chat
        self.editing: str | None = None
        self.is_open = False
        self._prompt = prompt
        self._events: asyncio.Queue[PaneEvent | None] = asyncio.Queue()
        self._growing: set[str] = set()
        self._count_timer: Timer | None = None
        self._target: str | None = None

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static("", id="pane-title", markup=False)
        yield Welcome()
        yield MessageList()
        yield Static("", id="activity", markup=False)
        yield self._prompt
        with Horizontal(id="pane-foot"):
            yield ContextMeter()

    @property
    def messages(self) -> MessageList:
        """The conversation."""
        return self.query_one(MessageList)

    @property
    def prompt(self) -> Prompt:
        """Where the user types."""
        return self._prompt

    def on_mount(self) -> None:
        """Shows the chat."""
        self.is_open = True
        beside(self, "messages", self._work)
        self._show()

    # --- which chat ------------------------------------------------------------------------------------------------------

    def look_at(self, chat: Chat) -> None:
        """Shows another chat. What is typed stays with its own."""
        if chat is self.chat:
            return
        self.leave()
        self.chat = chat
        self._show()

    def leave(self) -> None:
        """Keeps what is typed with its chat."""
        self.stop_editing(keep_text=False)
        self.chat.prompt = self._prompt.draft
        self.workspace.shelf.keep_marks(self.chat)

    def _show(self) -> None:
        self._prompt.load(self.chat.prompt, chat=self.chat.id)
        self._events.put_nowait(None)
        self.show_title()
        self.show_activity()
        self.count_soon()

    def take(self, event: PaneEvent) -> None:
        """Hears what has happened to the chat."""
        self._events.put_nowait(event)
        if isinstance(event, AnswerEnded | PathChanged):
            self.count_soon()

    # --- messages --------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Shows what happens in its order: mounting takes time, and events come meanwhile."""
        while self.is_open:
            event = await self._events.get()
            if event is None or isinstance(event, PathChanged):
                await self._show_path()
            elif event.chat_id != self.chat.id:
                continue
            elif isinstance(event, AnswerGrew):
                await self._grow(event)
            else:
                await self._end(event)

    async def _show_path(self) -> None:
        """Shows the messages as they are now: what is waiting to be told is in them already."""
        while not self._events.empty():
            self._events.get_nowait()
        chat = self.chat  # another one may come into view while this one is being shown
        path = chat.conversation.path()
        self._growing.clear()
        self.query_one(Welcome).display = not path
        self.messages.display = bool(path)
        live = _live_node(chat)
        whole = path[:-1] if live is not None and path and path[-1].id == live.id else path
        target, self._target = self._target, None
        was_focused = self.messages.has_focus_within
        await self.messages.show([item_of(chat, node) for node in whole], system=chat.conversation.system, at=target)
        if live is not None and whole is not path:
            # What has come while the others were laid out is in it.
            live = _live_node(chat) or chat.conversation.node(live.id)
            self._growing.add(live.id)
            await self.messages.begin(item_of(chat, live))
        if was_focused and not self.messages.has_focus_within:
            self._prompt.focus_input()  # the message is another one now; else the focus would go to the list of chats
        self.show_title()

    async def _grow(self, event: AnswerGrew) -> None:
        chat = self.chat
        leaf = chat.conversation.leaf
        if leaf is None or leaf.id != event.node_id:
            return  # an alternative that is not in view
        if event.node_id not in self._growing:
            path = chat.conversation.path()
            if [item.node.id for item in self.messages.items] != [node.id for node in path[:-1]]:
                await self._show_path()  # with all there is of the answer, this piece as well
                return
            self._growing.add(event.node_id)
            await self.messages.begin(item_of(chat, replace(leaf, content="", reasoning="")))
        self.messages.feed(event.node_id, event.text, event.reasoning)
        if event.repeats:
            self.messages.set_notice(event.node_id, _REPEATS)

    async def _end(self, event: AnswerEnded) -> None:
        leaf = self.chat.conversation.leaf
        if leaf is not None and leaf.id in event.node_ids:
            self._growing.discard(leaf.id)
            await self.messages.finish(item_of(self.chat, leaf))

    async def go_to(self, message_id: str) -> None:
        """Shows a message, also one of another branch."""
        if message_id not in {node.id for node in self.chat.conversation.path()}:
            self.workspace.switch(self.chat, message_id)
        self._target = message_id
        self._events.put_nowait(None)

    def toggle_thinking(self) -> None:
        """Folds or unfolds what the model has thought before its last answer."""
        views = [view for view in self.messages.mounted if view.item.node.reasoning]
        if views:
            views[-1].action_toggle_fold()
        else:
            self.app.notify("no answer here has shown its thinking", markup=False)

    def show_recent(self, entries: Sequence[ListEntry]) -> None:
        """The chats that an empty one offers."""
        self.query_one(Welcome).show_recent([entry for entry in entries if entry.id != self.chat.id and entry.num_messages])

    # --- lines -----------------------------------------------------------------------------------------------------------

    def show_title(self) -> None:
        """Names the chat, where several are in view."""
        if self.is_open:
            self.query_one("#pane-title", Static).update(Content(shown(self.chat.title)))

    def show_activity(self, reading: str = "") -> None:
        """Says what the chat is doing.

        Args:
            reading: how far its prompt has been read.
        """
        if not self.is_open:
            return
        host = self.workspace.host
        self.query_one("#activity", Static).update(Content(shown(self._activity(reading))))
        says = host.status if host.state is HostState.LOADING else f"{host.name} is ready."
        self.query_one(Welcome).show_model(f"{says} …" if host.state is HostState.LOADING else says)

    def _activity(self, reading: str) -> str:
        chat, host = self.chat, self.workspace.host
        follows = f" · {len(chat.queue)} more to send" if chat.queue else ""
        if self.editing is not None:
            return "Editing · Esc gives up · the old message stays beside the new one"
        if chat.stopping:
            return f"stopping …{follows}"
        if chat.state is ChatState.GENERATING:
            speed = f" · {chat.speed:.0f} tok/s" if chat.speed else ""
            return f"writing{speed} · Esc stops{follows}"
        if chat.is_busy and host.state is HostState.LOADING:
            return f"waits for the model: {host.status}{follows}"
        if chat.state is ChatState.WAITING:
            return f"{reading or 'waiting for its turn'} · Esc stops{follows}"
        return f"preparing{follows}" if chat.is_busy else ""

    # --- editing ---------------------------------------------------------------------------------------------------------

    def start_editing(self, node: Node) -> None:
        """Takes a message into the prompt; what is sent becomes another version of it."""
        self.chat.prompt = self._prompt.draft
        self.editing = node.id
        self._prompt.load(PromptDraft.of(node.content), chat=self.chat.id)
        self._prompt.focus_input()
        self.show_activity()

    def stop_editing(self, *, keep_text: bool) -> bool:
        """Gives up editing. What was typed before comes back. Returns whether a message was being edited."""
        if self.editing is None:
            return False
        self.editing = None
        if not keep_text:
            self._prompt.load(self.chat.prompt, chat=self.chat.id)
        self.show_activity()
        return True

    # --- how full --------------------------------------------------------------------------------------------------------

    @on(Prompt.Edited)
    def _edited(self, event: Prompt.Edited) -> None:
        event.stop()
        self.count_soon()

    def on_resize(self, event: Resize) -> None:
        """What does not fit below the prompt is left out."""
        self.query_one(ContextMeter).set_room(event.size.width)

    def on_click(self) -> None:
        """Whoever clicks anywhere in it means this chat."""
        self.post_message(self.Clicked(self))

    @on(MessageAction)
    def _wanted(self, event: MessageAction) -> None:
        event.stop()
        self.post_message(self.Action(self, event))

    def count_soon(self) -> None:
        """Counts tokens a moment later, in a thread: never while a key is handled."""
        if self._count_timer is not None:
            self._count_timer.stop()
        self._count_timer = self.set_timer(_COUNT_SECONDS, self._start_counting)

    def _start_counting(self) -> None:
        self._count_timer = None
        self.run_worker(self._count, name="count", group="count", exclusive=True)  # type: ignore[arg-type]  # of a callable mypy cannot tell the result

    async def _count(self) -> None:
        chat, model = self.chat, self.workspace.host.model
        if model is None:
            return
        text = self._prompt.full_text()
        used = await self.workspace.context_use(chat, text)
        if chat is self.chat:
            left_out = chat.reply.draft.left_out if chat.reply is not None else 0
            for meter in self.query(ContextMeter):  # none when the app ends meanwhile
                meter.show(used, model.context, left_out=left_out)


def item_of(chat: Chat, node: Node) -> MessageItem:
    """A message of a chat as the list takes it."""
    siblings = [sibling.id for sibling in chat.conversation.siblings(node.id)]
    return MessageItem(node, siblings.index(node.id) + 1, len(siblings))


def _live_node(chat: Chat) -> Node | None:
    """The answer in view that is being generated, with all there is of it."""
    reply, leaf = chat.reply, chat.conversation.leaf
    if reply is None or not chat.is_busy or leaf is None:
        return None
    current = [reply.current(index) for index in range(reply.params.n)]
    return next((node for node in current if node is not None and node.id == leaf.id), None)
