"""The messages that are laid out, one below the other, between two spaces that stand for all the others."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Static

from chatpaged.ui.widgets.folded import SystemPrompt
from chatpaged.ui.widgets.message import MessageView
from chatpaged.ui.widgets.message_item import MessageItem
from chatpaged.ui.widgets.message_scroll import MessageScroll
from chatpaged.ui.widgets.message_window import Entry, Window, message_at, wanted

_HIGHEST = 4000
"""Rows of the space for messages that are not laid out."""
_BATCH = 2
"""Messages that are laid out between two looks at the keyboard."""


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


class MessageStack(MessageScroll):
    """Lays out the messages near the view. Whoever calls sees to it that one thing is done after the other.

    Attributes:
        window: all messages, and which are laid out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window = Window()
        self._above = _Space()
        self._below = _Space()
        self._system: SystemPrompt | None = None
        self._views: dict[str, MessageView] = {}

    def compose(self) -> ComposeResult:
        """The spaces; messages come between them."""
        yield self._above
        yield self._below

    @property
    def laid_out(self) -> list[MessageView]:
        """The messages that are laid out, in their order."""
        return [self._views[entry.item.node.id] for entry in self.window.entries[self.window.first : self.window.last]]

    def view(self, node_id: str) -> MessageView | None:
        """A message, where it is laid out."""
        return self._views.get(node_id)

    def chosen(self) -> int | None:
        """The message that has the focus, or something in it."""
        focused = self.screen.focused
        if focused is None or self not in focused.ancestors:
            return None
        view = next((node for node in focused.ancestors_with_self if isinstance(node, MessageView)), None)
        return self.window.index(view.node_id) if view is not None else None

    # --- other messages -------------------------------------------------------------------------------------------------

    async def fill(self, items: Sequence[MessageItem], system: str | None) -> None:
        """Shows the end of a whole way.

        Args:
            items: the messages.
            system: the system prompt above them.
        """
        with self.app.batch_update():
            await self.remove_children(MessageView)
            await self._show_system(system)
            self._views.clear()
            self.window = Window([Entry(item) for item in items])
            self.following = True
            self.hold(self._above)
            heights = self.window.heights(self._columns_of_text)
            await self._set_window(*wanted(heights, sum(heights) - self._rows, self._rows, 0, 0))

    async def _show_system(self, system: str | None) -> None:
        if self._system is not None:
            await self._system.remove()
            self._system = None
        if system:
            self._system = SystemPrompt(system)
            await self.mount(self._system, before=self._above)

    async def add(self, entry: Entry) -> None:
        """A new message at the end; laid out where the end is, or is looked at."""
        window = self.window
        window.entries.append(entry)
        if window.last == len(window.entries) - 1:
            await self._set_window(window.first, len(window.entries))
        elif self.following:
            await self.lay_out(len(window.entries) - 1)

    async def replace(self, index: int, entry: Entry) -> None:
        """Shows a message in another way than before."""
        self.window.entries[index] = entry
        old = self._views.get(entry.item.node.id)
        if old is None:
            return
        new = _view_of(entry)
        had_focus = old.has_focus
        if self.held is not None and self.held[0] is old:
            self.hold(new, self.held[1])
        with self.app.batch_update():
            await self.mount(new, after=old)
            self._views[new.node_id] = new
            if had_focus:
                new.focus(scroll_visible=False)
            await old.remove()

    # --- what is seen ---------------------------------------------------------------------------------------------------

    @property
    def _columns_of_text(self) -> int:
        return self.outer_size.width or self.app.size.width

    @property
    def _rows(self) -> int:
        return self.outer_size.height or self.app.size.height

    async def lay_out(self, index: int) -> MessageView:
        """Lays out the part around a message, unless that one is."""
        if not self.window.first <= index < self.window.last:
            heights = self.window.heights(self._columns_of_text)
            await self._set_window(*wanted(heights, sum(heights[:index]), self._rows, 0, 0))
        return self._views[self.window.entries[index].item.node.id]

    async def show_beginning(self) -> None:
        """Scrolls to what is above the first message."""
        if self.window.first:
            await self.lay_out(0)
        self.show_at_top(self._system if self._system is not None else self._above, -1)

    def bring_into_view(self, view: MessageView) -> None:
        """Scrolls to a message as far as it has to be."""
        place = self.place(view)
        top, room = int(self.scroll_y), self._rows
        if place is not None and place.y >= top and place.bottom <= top + room:
            return
        if view.node_id == self.window.entries[-1].item.node.id and (place is None or place.height < room):
            self.follow()
        elif place is not None and place.height < room and place.bottom > top + room and place.y < top + room:
            self.show_at_top(view, place.height - room)
        else:
            self.show_at_top(view, -1)

    async def follow_view(self) -> bool:
        """Lays out what the view has come near to; whether there was something, and may be more."""
        window = self.window
        self._measure()
        heights = window.heights(self._columns_of_text)
        if not heights:
            return False
        top = sum(heights) - self._rows if self.following else self._top_row(heights)
        first, last = wanted(heights, top, self._rows, window.first, window.last)
        chosen = self.chosen()
        if chosen is not None and last > window.first and first < window.last:
            first, last = min(first, chosen), max(last, chosen + 1)
        if (first, last) == (window.first, window.last):
            return False
        if first >= window.last or last <= window.first:
            index, offset = message_at(heights, top)
            await self._set_window(first, last)
            view = self._views[window.entries[index].item.node.id]
            if not self.following:
                self.show_at_top(view, offset)
            if chosen is not None:
                view.focus(scroll_visible=False)
        else:
            # The end of a conversation is gone to at once; the rest comes a few at a time.
            further = last if self.following else min(last, window.last + _BATCH)
            await self._set_window(max(first, window.first - _BATCH), further)
        return True

    def _measure(self) -> None:
        """Remembers how high messages are."""
        for entry in self.window.entries[self.window.first : self.window.last]:
            place = self.place(self._views[entry.item.node.id])
            if place is not None and place.height:
                entry.measured = place.height + 1

    def _top_row(self, heights: Sequence[int]) -> int:
        """The first row in view, counted in messages alone. What is held says so also before it was laid out."""
        held, offset = self.held or (self._above, 0)
        if isinstance(held, MessageView) and (index := self.window.index(held.node_id)) is not None:
            return sum(heights[:index]) + offset
        if held is self._below:
            return sum(heights[: self.window.last]) + self._below.row(offset)
        return self._above.row(max(offset, 0)) if held is self._above else 0

    async def _set_window(self, first: int, last: int) -> None:
        """Lays out these messages and no others."""
        window = self.window
        chosen = self.chosen()
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
            heights = window.heights(self._columns_of_text)
            self._above.set_rows(sum(heights[:first]))
            self._below.set_rows(sum(heights[last:]))

    async def _mount(self, indices: range, after: Widget) -> None:
        views = [_view_of(self.window.entries[i]) for i in indices]
        self._views.update((view.node_id, view) for view in views)
        if views:
            await self.mount_all(views, after=after)


def _view_of(entry: Entry) -> MessageView:
    if entry.growing:
        return MessageView(entry.item, growing=True, text=entry.text, reasoning=entry.reasoning)
    return MessageView(entry.item)
