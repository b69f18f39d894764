"""The messages of a conversation, from the first to the last. Only those near the view are laid out."""

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
from chatpaged.ui.widgets.folded import SystemPrompt
from chatpaged.ui.widgets.message import MessageView
from chatpaged.ui.widgets.message_item import MessageAction, MessageItem
from chatpaged.ui.widgets.message_scroll import MessageScroll
from chatpaged.ui.widgets.message_window import Entry, Window, message_at, wanted

__all__ = ["MessageAction", "MessageItem", "MessageList"]

FRAME = 1 / 15
"""Seconds between updates of what grows: more often the eye does not see, and the engine needs the processor."""
_SHARE = 4
"""An update is followed by a rest of that many times its own time."""
_HIGHEST = 4000
"""Rows of the space for messages that are not laid out."""
_BATCH = 2
"""Messages that are laid out between two looks at the keyboard."""


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


class _Space(Static):
    """Stands for messages that are not laid out."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    _Space {
        height: 0;
        width: 1fr;
    }
    """

    rows = 0

    def set_rows(self, rows: int) -> None:
        """Stands for so many rows. Textual's cost of placing a widget grows with its height, so a very high one is drawn in."""
        if rows != self.rows:
            self.rows = rows
            self.styles.height = min(rows, _HIGHEST)

    def row(self, offset: int) -> int:
        """The row that a place in it stands for."""
        return offset if self.rows <= _HIGHEST else offset * self.rows // _HIGHEST


class MessageList(Widget):
    """Shows messages, old ones and one that grows.

    Attributes:
        window: all messages, and which are laid out.
    """

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
        self.window = Window()
        self._scroll = MessageScroll()
        self._marker = NewMarker(Content("↓ new"))
        self._above = _Space()
        self._below = _Space()
        self._system: SystemPrompt | None = None
        self._views: dict[str, MessageView] = {}
        self._fed: set[str] = set()
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._width = 0
        self._wish = 0

    def compose(self) -> ComposeResult:
        """The scrolling part, and the marker above it."""
        with self._scroll:
            yield self._above
            yield self._below
        yield self._marker

    def on_mount(self) -> None:
        """Begins to look after what grows."""
        beside(self, "pump", self._pump)

    # --- what is shown --------------------------------------------------------------------------------------------------

    @property
    def following(self) -> bool:
        """Whether the end is in view and stays there."""
        return self._scroll.following

    @property
    def items(self) -> list[MessageItem]:
        """All messages."""
        return [entry.item for entry in self.window.entries]

    @property
    def mounted(self) -> list[MessageView]:
        """The messages that are laid out, in their order."""
        entries = self.window.entries[self.window.first : self.window.last]
        return [self._views[entry.item.node.id] for entry in entries]

    async def show(self, items: Sequence[MessageItem], *, system: str | None = None, at: str | None = None) -> None:
        """Shows a whole way; only what is seen, and a bit more, is laid out.

        Args:
            items: the messages.
            system: the system prompt of the conversation.
            at: a message to go to; None goes to the end.
        """
        async with self._busy:
            self._fed.clear()
            with self.app.batch_update():
                await self._scroll.remove_children(MessageView)
                await self._show_system(system)
                self._views.clear()
                self.window = Window([Entry(item) for item in items])
                self._scroll.following = True
                self._scroll.hold(self._above)
                heights = self.window.heights(self._columns)
                await self._set_window(*wanted(heights, sum(heights) - self._rows, self._rows, 0, 0))
        self._notice_news(new=False)
        if at is not None:
            self.go_to(at)

    async def append(self, item: MessageItem) -> None:
        """A new message at the end. What the user has sent is gone to."""
        await self._add(Entry(item))

    async def begin(self, item: MessageItem) -> None:
        """An answer that will grow; also one that is shown already and goes on."""
        entry = Entry(item, growing=True, text=item.node.content, reasoning=item.node.reasoning)
        index = self.window.index(item.node.id)
        if index is None:
            await self._add(entry)
            return
        async with self._busy:
            self.window.entries[index] = entry
            old = self._views.get(item.node.id)
            if old is not None:
                await self._replace(old, MessageView(item, growing=True))

    async def _replace(self, old: MessageView, new: MessageView) -> None:
        """Puts a view of a message in the place of another view of it."""
        had_focus = old.has_focus
        if self._scroll.held is not None and self._scroll.held[0] is old:
            self._scroll.hold(new, self._scroll.held[1])
        with self.app.batch_update():
            await self._scroll.mount(new, after=old)
            self._views[new.node_id] = new
            if had_focus:
                new.focus(scroll_visible=False)
            await old.remove()

    def feed(self, node_id: str, text: str, reasoning: str = "") -> None:
        """More of a growing answer; it is shown within a frame or two."""
        index = self.window.index(node_id)
        if index is None:
            return
        entry = self.window.entries[index]
        entry.text += text
        entry.reasoning += reasoning
        self._fed.add(node_id)
        self._wake.set()

    async def finish(self, item: MessageItem) -> None:
        """An answer is whole."""
        async with self._busy:
            index = self.window.index(item.node.id)
            if index is None:
                return
            self.window.entries[index] = Entry(item)
            if (view := self._views.get(item.node.id)) is not None:
                await view.finish(item)

    def set_notice(self, node_id: str, text: str) -> None:
        """Says something about a growing answer, such as that it repeats itself; empty takes it back."""
        if (view := self._views.get(node_id)) is not None:
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
        if self.window.entries:
            last = self.window.entries[-1].item.node.id
            if (view := self._views.get(last)) is not None:
                view.focus(scroll_visible=False)
            self.go_to(last, focus=True)

    def scroll_to_end(self) -> None:
        """Goes to the end and stays there while something is added."""
        self._new_wish()
        self._scroll.follow()
        self._notice_news(new=False)

    def scroll_to_beginning(self) -> None:
        """Goes to the very first message."""
        beside(self, "go", self._go_home, self._new_wish())

    async def action_go(self, step: int) -> None:
        """The message before or after the one that is chosen."""
        index = self._chosen()
        target = len(self.window.entries) - 1 if index is None else index + step
        if 0 <= target < len(self.window.entries):
            await self._go_to(self.window.entries[target].item.node.id, self._new_wish(), focus=True)

    def _chosen(self) -> int | None:
        """The message that has the focus, or something in it."""
        focused = self.screen.focused
        if focused is None or self not in focused.ancestors:
            return None
        view = next((node for node in focused.ancestors_with_self if isinstance(node, MessageView)), None)
        return self.window.index(view.node_id) if view is not None else None

    def _new_wish(self) -> int:
        """Whoever waits to go somewhere else need not go there any more."""
        self._wish += 1
        return self._wish

    async def _go_to(self, node_id: str, wish: int, *, focus: bool) -> None:
        async with self._busy:
            index = self.window.index(node_id)
            if index is None or wish != self._wish:
                return
            if not self.window.first <= index < self.window.last:
                await self._jump(index)
            view = self._views[node_id]
            if focus:
                view.focus(scroll_visible=False)
            self._bring_into_view(view, is_last=index == len(self.window.entries) - 1)
        self._wake.set()

    def _bring_into_view(self, view: MessageView, *, is_last: bool) -> None:
        place = self._scroll.place(view)
        top, room = int(self._scroll.scroll_y), self._rows
        if place is not None and place.y >= top and place.bottom <= top + room:
            return
        if is_last and (place is None or place.height < room):
            self.scroll_to_end()
        elif place is not None and place.height < room and place.bottom > top + room and place.y < top + room:
            self._scroll.show_at_top(view, place.height - room)
        else:
            self._scroll.show_at_top(view, -1)

    async def _go_home(self, wish: int) -> None:
        async with self._busy:
            if wish != self._wish:
                return
            if self.window.first:
                await self._jump(0)
            first: Widget = self._system if self._system is not None else self._above
            self._scroll.show_at_top(first, -1)
        self._wake.set()

    async def _jump(self, index: int) -> None:
        """Lays out another part of the messages."""
        heights = self.window.heights(self._columns)
        await self._set_window(*wanted(heights, sum(heights[:index]), self._rows, 0, 0))

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
            self.window.forget_heights()
        self._wake.set()

    def _notice_news(self, *, new: bool) -> None:
        self._marker.display = new and not self.following

    # --- what is laid out -----------------------------------------------------------------------------------------------

    @property
    def _columns(self) -> int:
        return self.size.width or self.app.size.width

    @property
    def _rows(self) -> int:
        return self.size.height or self.app.size.height

    async def _show_system(self, system: str | None) -> None:
        if self._system is not None:
            await self._system.remove()
            self._system = None
        if system:
            self._system = SystemPrompt(system)
            await self._scroll.mount(self._system, before=self._above)

    async def _add(self, entry: Entry) -> None:
        async with self._busy:
            entries = self.window.entries
            entries.append(entry)
            is_mine = entry.item.node.role == "user"
            if is_mine:
                self._scroll.following = True
            if self.window.last == len(entries) - 1:
                await self._set_window(self.window.first, len(entries))
            elif self.following:
                await self._jump(len(entries) - 1)
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
                await self._follow_view()
            await asyncio.sleep(max(FRAME, _SHARE * (time.perf_counter() - begin)) if self._fed or self._is_growing else FRAME / 4)

    @property
    def _is_growing(self) -> bool:
        return any(entry.growing for entry in self.window.entries[-8:])

    async def _grow(self) -> None:
        fed, self._fed = self._fed, set()
        for node_id in fed:
            index, view = self.window.index(node_id), self._views.get(node_id)
            if index is not None and view is not None:
                entry = self.window.entries[index]
                await view.grow(entry.text[len(view.text) :], entry.reasoning[len(view.reasoning) :])
        if fed and not self.following:
            self._notice_news(new=True)

    async def _follow_view(self) -> None:
        """Lays out what the view has come near to."""
        self._measure()
        heights = self.window.heights(self._columns)
        if not heights:
            return
        top = sum(heights) - self._rows if self.following else self._top_row(heights)
        first, last = wanted(heights, top, self._rows, self.window.first, self.window.last)
        chosen = self._chosen()
        if chosen is not None and last > self.window.first and first < self.window.last:
            first, last = min(first, chosen), max(last, chosen + 1)
        if (first, last) == (self.window.first, self.window.last):
            return
        if first >= self.window.last or last <= self.window.first:
            index, offset = message_at(heights, top)
            await self._set_window(first, last)
            view = self._views[self.window.entries[index].item.node.id]
            if not self.following:
                self._scroll.show_at_top(view, offset)
            if chosen is not None:
                view.focus(scroll_visible=False)
        else:
            # The end of a conversation is gone to at once; the rest comes a few at a time.
            further = last if self.following else min(last, self.window.last + _BATCH)
            await self._set_window(max(first, self.window.first - _BATCH), further)
        self._wake.set()

    def _measure(self) -> None:
        """Remembers how high messages are."""
        for i in range(self.window.first, self.window.last):
            entry = self.window.entries[i]
            place = self._scroll.place(self._views[entry.item.node.id])
            if place is not None and place.height:
                entry.measured = place.height + 1

    def _top_row(self, heights: Sequence[int]) -> int:
        """The first row in view, counted in messages alone. What is held says so also before it was laid out."""
        held, offset = self._scroll.held or (self._above, 0)
        if isinstance(held, MessageView) and (index := self.window.index(held.node_id)) is not None:
            return sum(heights[:index]) + offset
        if held is self._below:
            return sum(heights[: self.window.last]) + self._below.row(offset)
        return self._above.row(max(offset, 0)) if held is self._above else 0

    async def _set_window(self, first: int, last: int) -> None:
        """Lays out these messages and no others."""
        window = self.window
        chosen = self._chosen()
        if chosen is not None and not first <= chosen < last:
            # Textual would choose another widget itself, and scroll to it.
            self.screen.set_focus(None)
        for i in range(window.first, window.last):
            if not first <= i < last:
                view = self._views.pop(window.entries[i].item.node.id, None)
                if view is not None:
                    await view.remove()
        overlap = (max(first, window.first), min(last, window.last))
        with self.app.batch_update():
            if overlap[0] >= overlap[1]:
                await self._mount(range(first, last), self._above)
            else:
                await self._mount(range(first, overlap[0]), self._above)
                await self._mount(range(overlap[1], last), self._views[window.entries[overlap[1] - 1].item.node.id])
            window.first, window.last = first, last
            heights = window.heights(self._columns)
            self._above.set_rows(sum(heights[:first]))
            self._below.set_rows(sum(heights[last:]))

    async def _mount(self, indices: range, after: Widget) -> None:
        views: list[MessageView] = []
        for i in indices:
            entry = self.window.entries[i]
            if entry.growing:
                view = MessageView(entry.item, growing=True, text=entry.text, reasoning=entry.reasoning)
            else:
                view = MessageView(entry.item)
            self._views[entry.item.node.id] = view
            views.append(view)
        if views:
            await self._scroll.mount_all(views, after=after)
