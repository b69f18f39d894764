"""The messages of a conversation: what is told of them comes in here, and where the reader wants to be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Resize
from textual.widget import Widget
from textual.widgets import Static

from chatpaged.ui.background import beside
from chatpaged.ui.widgets.message import MessageView
from chatpaged.ui.widgets.message_item import MessageItem
from chatpaged.ui.widgets.message_scroll import MessageScroll
from chatpaged.ui.widgets.message_stack import MessageStack
from chatpaged.ui.widgets.message_window import Entry

FRAME = 1 / 15
"""Seconds between updates of what grows: more often the eye does not see, and the engine needs the processor."""
_SHARE = 4
"""An update is followed by a rest of that many times its own time."""


class NewMarker(Static):
    """Says that there is something new below."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    NewMarker {
        layer: above;
        width: auto;
        height: 1;
        margin: 0 3 0 0;
        padding: 0 1;
        background: $primary;
        color: $text;
        text-style: bold;
        display: none;
    }
    NewMarker:hover {
        background: $accent;
    }
    """


class MessageList(Widget):
    """Shows messages, old ones and one that grows."""

    DEFAULT_CSS = """
    MessageList {
        layers: below above;
        align: right bottom;
        height: 1fr;
        width: 1fr;
    }
    MessageList > MessageScroll {
        layer: below;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "go(-1)", "Message before", id="message_before", show=False),
        Binding("down,j", "go(1)", "Message after", id="message_after", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._stack = MessageStack()
        self._marker = NewMarker(Content("↓ new"))
        self._fed: set[str] = set()
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._width = 0
        self._wish = 0

    def compose(self) -> ComposeResult:
        """The messages, and the marker above them."""
        yield self._stack
        yield self._marker

    def on_mount(self) -> None:
        """Begins to look after what grows."""
        beside(self, "pump", self._pump)

    # --- what is shown --------------------------------------------------------------------------------------------------

    @property
    def following(self) -> bool:
        """Whether the end is in view and stays there."""
        return self._stack.following

    @property
    def items(self) -> list[MessageItem]:
        """All messages."""
        return [entry.item for entry in self._entries]

    @property
    def mounted(self) -> list[MessageView]:
        """The messages that are laid out, in their order."""
        return self._stack.laid_out

    @property
    def _entries(self) -> list[Entry]:
        return self._stack.window.entries

    async def show(self, items: Sequence[MessageItem], *, system: str | None = None, at: str | None = None) -> None:
        """Shows a whole way; only what is seen, and a bit more, is laid out.

        Args:
            items: the messages.
            system: the system prompt of the conversation.
            at: a message to go to; None goes to the end.
        """
        async with self._busy:
            self._fed.clear()
            await self._stack.fill(items, system)
        self._notice_news(new=False)
        if at is not None:
            self.go_to(at)

    async def append(self, item: MessageItem) -> None:
        """A new message at the end. What the user has sent is gone to."""
        await self._add(Entry(item))

    async def begin(self, item: MessageItem) -> None:
        """An answer that will grow; also one that is shown already and goes on."""
        entry = Entry(item, growing=True, text=item.node.content, reasoning=item.node.reasoning)
        index = self._stack.window.index(item.node.id)
        if index is None:
            await self._add(entry)
            return
        async with self._busy:
            await self._stack.replace(index, entry)

    def feed(self, node_id: str, text: str, reasoning: str = "") -> None:
        """More of a growing answer; it is shown within a frame or two."""
        index = self._stack.window.index(node_id)
        if index is None:
            return
        entry = self._entries[index]
        entry.text += text
        entry.reasoning += reasoning
        self._fed.add(node_id)
        self._wake.set()

    async def finish(self, item: MessageItem) -> None:
        """An answer is whole."""
        async with self._busy:
            index = self._stack.window.index(item.node.id)
            if index is None:
                return
            self._entries[index] = Entry(item)
            if (view := self._stack.view(item.node.id)) is not None:
                await view.finish(item)

    def set_notice(self, node_id: str, text: str) -> None:
        """Says something about a growing answer, such as that it repeats itself; empty takes it back."""
        if (view := self._stack.view(node_id)) is not None:
            view.set_notice(text)

    # --- where the reader is --------------------------------------------------------------------------------------------

    def go_to(self, node_id: str, *, focus: bool = False) -> None:
        """Scrolls to a message, wherever it is.

        Args:
            node_id: the message.
            focus: choose it as well.
        """
        beside(self, "go", self._go_to, node_id, self._new_wish(), focus=focus)

    def focus_last(self) -> None:
        """Chooses the last message; at once where it is laid out, since the next key is meant for it."""
        if self._entries:
            last = self._entries[-1].item.node.id
            if (view := self._stack.view(last)) is not None:
                view.focus(scroll_visible=False)
            self.go_to(last, focus=True)

    def scroll_to_end(self) -> None:
        """Goes to the end and stays there while something is added."""
        self._new_wish()
        self._stack.follow()
        self._notice_news(new=False)

    def scroll_to_beginning(self) -> None:
        """Goes to the very first message."""
        beside(self, "go", self._go_home, self._new_wish())

    async def action_go(self, step: int) -> None:
        """The message before or after the one that is chosen."""
        index = self._stack.chosen()
        target = len(self._entries) - 1 if index is None else index + step
        if 0 <= target < len(self._entries):
            await self._go_to(self._entries[target].item.node.id, self._new_wish(), focus=True)

    def _new_wish(self) -> int:
        """Whoever waits to go somewhere else need not go there any more."""
        self._wish += 1
        return self._wish

    async def _go_to(self, node_id: str, wish: int, *, focus: bool) -> None:
        async with self._busy:
            index = self._stack.window.index(node_id)
            if index is None or wish != self._wish:
                return
            view = await self._stack.lay_out(index)
            if focus:
                view.focus(scroll_visible=False)
            self._stack.bring_into_view(view)
        self._wake.set()

    async def _go_home(self, wish: int) -> None:
        async with self._busy:
            if wish != self._wish:
                return
            await self._stack.show_beginning()
        self._wake.set()

    def on_message_scroll_moved(self, event: MessageScroll.Moved) -> None:
        """Other messages may be wanted."""
        event.stop()
        if self.following:
            self._notice_news(new=False)
        self._wake.set()

    def on_message_scroll_wanted(self, event: MessageScroll.Wanted) -> None:
        """Home or End was pressed."""
        event.stop()
        if event.end:
            self.scroll_to_end()
        else:
            self.scroll_to_beginning()

    def on_click(self, event: Click) -> None:
        """A click on the marker."""
        if event.widget is self._marker:
            event.stop()
            self.scroll_to_end()

    def on_resize(self, event: Resize) -> None:
        """Widths decide heights."""
        if event.size.width != self._width:
            self._width = event.size.width
            self._stack.window.forget_heights()
        self._wake.set()

    def _notice_news(self, *, new: bool) -> None:
        self._marker.display = new and not self.following

    # --- what grows -----------------------------------------------------------------------------------------------------

    async def _add(self, entry: Entry) -> None:
        async with self._busy:
            is_mine = entry.item.node.role == "user"
            if is_mine:
                self._stack.following = True
            await self._stack.add(entry)
        if is_mine:
            self.scroll_to_end()
        else:
            self._notice_news(new=True)

    async def _pump(self) -> None:
        """Shows what was fed, and lays out what comes into view: one thing after the other, never more often than a frame."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            begin = time.perf_counter()
            async with self._busy:
                await self._grow()
                if await self._stack.follow_view():
                    self._wake.set()
            await asyncio.sleep(max(FRAME, _SHARE * (time.perf_counter() - begin)) if self._fed or self._is_growing else FRAME / 4)

    @property
    def _is_growing(self) -> bool:
        return any(entry.growing for entry in self._entries[-8:])

    async def _grow(self) -> None:
        fed, self._fed = self._fed, set()
        for node_id in fed:
            index, view = self._stack.window.index(node_id), self._stack.view(node_id)
            if index is not None and view is not None:
                entry = self._entries[index]
                await view.grow(entry.text[len(view.text) :], entry.reasoning[len(view.reasoning) :])
        if fed and not self.following:
            self._notice_news(new=True)
