"""A row for each chat: what it is doing, and which blocks it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.widget import Widget

from chatpaged.engine_rows import ChatRow, RowState
from chatpaged.engine_view import EngineView
from chatpaged.ui.short_texts import fitted, one_line, short_count, short_speed
from chatpaged.ui.widgets.lines import Line, Lines

_WIDE = 60
_MARKS = {RowState.IDLE: "·", RowState.WAITING: "○", RowState.READING: "◐", RowState.WRITING: "●", RowState.PREEMPTED: "‖"}
_STATE_WIDTH = 12
_EXTRA = 14
_ROOM_FOR_PIN = 20
_NO_CHAT, _UNCLAIMED, _REPEATED, _ALL = "Other requests", "No open chat", "Counted twice", "All"
_EXPLAINED = {
    _NO_CHAT: "Work that belongs to no chat.",
    _UNCLAIMED: "Cached blocks that no open chat begins with.\nThey are kept until room is needed.",
    _REPEATED: "Blocks that several chats have are counted in the row of each,\nbut are in memory once: the repeats are taken off here.",
    _ALL: "What the rows above add up to. With the free blocks\nand the null block this is the pool.",
}


class ChatTable(Lines, can_focus=True):
    """The chats and, below, what makes the columns add up to the pool.

    A row takes one line where there is room, otherwise two: the title, then the numbers under their heads.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Chat above", show=False),
        Binding("down,j", "move(1)", "Chat below", show=False),
        Binding("home", "move(-10000)", "First chat", show=False),
        Binding("end", "move(10000)", "Last chat", show=False),
        Binding("enter", "open", "Open the chat"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chat-table--head",
        "chat-table--title",
        "chat-table--in-view",
        "chat-table--number",
        "chat-table--quiet",
        "chat-table--sum",
        "chat-table--cursor",
        "chat-table--hover",
        *(f"chat-table--{state.value}" for state in RowState),
    }
    DEFAULT_CSS = """
    ChatTable > .chat-table--head { color: $text-primary; text-style: bold; }
    ChatTable > .chat-table--title { color: $foreground; }
    ChatTable > .chat-table--in-view { color: $text-accent; text-style: bold; }
    ChatTable > .chat-table--number { color: $foreground 90%; }
    ChatTable > .chat-table--quiet { color: $foreground 50%; }
    ChatTable > .chat-table--sum { color: $foreground; text-style: bold; }
    ChatTable > .chat-table--cursor { background: $primary 35%; }
    ChatTable > .chat-table--hover { background: $foreground 10%; }
    ChatTable > .chat-table--idle { color: $foreground 50%; }
    ChatTable > .chat-table--waiting { color: $foreground 75%; }
    ChatTable > .chat-table--reading { color: $text-warning; }
    ChatTable > .chat-table--writing { color: $text-success; }
    ChatTable > .chat-table--preempted { color: $text-error; }
    """

    class Lit(Message):
        """Somebody points at a chat, with the mouse or the keyboard; None: at no chat any more."""

        def __init__(self, chat_id: str | None) -> None:
            super().__init__()
            self.chat_id = chat_id

    class Selected(Message):
        """A chat is to be opened."""

        def __init__(self, chat_id: str) -> None:
            super().__init__()
            self.chat_id = chat_id

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._view: EngineView | None = None
        self._rows: tuple[ChatRow, ...] = ()
        self._cursor: str | None = None
        self._hovered: str | None = None
        self._lit: str | None = None

    # --- what is shown -------------------------------------------------------------------------------------------------

    def show(self, view: EngineView) -> None:
        """Shows the chats of a view."""
        self._view = view
        self._rows = view.rows
        ids = [row.id for row in self._rows]
        if self._cursor not in ids or not self.has_focus:  # as long as nobody moves it, the cursor is where the user is
            self._cursor = view.in_view if view.in_view in ids else next(iter(ids), None)
        self.renew()

    @property
    def cursor(self) -> str | None:
        """The chat that the keyboard points at."""
        return self._cursor

    def lines(self, width: int) -> Iterable[Line]:
        """The head, the chats, the sums."""
        if self._view is None:
            return
        yield self._line("Chats", ("own", "shared", "cached"), "tok/s", width, "head", state="state", found="found")
        if not self._rows:
            yield (Segment(fitted("No chat is open.", width), self.look("chat-table--quiet")),)
        for row in self._rows:
            yield from self._row_lines(row, width)
        yield from self._sum_lines(self._view, width)

    def _row_lines(self, row: ChatRow, width: int) -> Iterable[Line]:
        title = "chat-table--in-view" if self._view is not None and row.id == self._view.in_view else "chat-table--title"
        mark = Segment(f"{'▸' if self.has_focus and row.id == self._cursor else ' '}{_MARKS[row.state]} ", self._state_look(row))
        title_width = self._title_width(width)
        lines: tuple[Line, ...]
        if self._is_wide(width):
            text = self._named(row, title_width - 4, title)
            lines = ((mark, *text, Segment(" "), *self._numbers(row, width)),)
        else:
            state = Segment("   " + fitted(_state_text(row, title_width - 3), title_width - 3), self._state_look(row))
            speed = f" {short_speed(row.speed)} tok/s" if row.speed else ""
            text = self._named(row, width - 3 - len(speed), title)
            lines = ((mark, *text, Segment(speed, self.look("chat-table--number"))), (state, *self._numbers(row, width)))
        tint = self._tint(row)
        yield from ((tuple(Segment.apply_style(line, post_style=tint)) if tint is not None else line) for line in lines)

    def _named(self, row: ChatRow, width: int, look: str) -> Line:
        """The title; behind it, whether the chat is pinned."""
        pin = "" if not row.is_pinned else " pinned" if width >= _ROOM_FOR_PIN else " ▣"
        text = Segment(fitted(one_line(row.title), width - cell_len(pin)), self.look(look))
        return (text, Segment(pin, self.look("chat-table--quiet"))) if pin else (text,)

    def _numbers(self, row: ChatRow, width: int) -> Line:
        number = self.look("chat-table--number")
        line: list[Segment] = []
        if self._is_wide(width):
            line.append(Segment(fitted(_state_text(row, _STATE_WIDTH), _STATE_WIDTH), self._state_look(row)))
        line += (
            Segment(_blocks(count, size), number) for count, size in zip((row.own, row.shared, row.cached), _sizes(width), strict=True)
        )
        if self._is_wide(width):
            line.append(Segment(_found(row), number))
            line.append(Segment((short_speed(row.speed) if row.speed else "-").rjust(7), number))
        return tuple(line)

    def _sum_lines(self, view: EngineView, width: int) -> Iterable[Line]:
        sums = view.sums
        if view.others is not None:
            others = view.others
            speed = short_speed(others.speed) if others.speed else ""
            yield self._line(_NO_CHAT, (others.own, others.shared, others.cached), speed, width, "quiet")
        yield self._line(_UNCLAIMED, (0, 0, sums.unclaimed), "", width, "quiet")
        yield self._line(_REPEATED, (0, -sums.repeated_shared, -sums.repeated_cached), "", width, "quiet")
        yield self._line(_ALL, (sums.own, sums.shared, sums.cached), short_speed(view.speed), width, "sum")

    def _line(
        self, title: str, counts: Iterable[int | str], speed: str, width: int, name: str, *, state: str = "", found: str = ""
    ) -> Line:
        text = fitted(title, self._title_width(width))
        if self._is_wide(width):
            text += state.ljust(_STATE_WIDTH)
        text += "".join(_blocks(count, size) for count, size in zip(counts, _sizes(width), strict=True))
        if self._is_wide(width):
            text += found.rjust(7) + speed.rjust(7)
        return (Segment(text, self.look(f"chat-table--{name}")),)

    def _title_width(self, width: int) -> int:
        return width - sum(_sizes(width)) - (_STATE_WIDTH + _EXTRA if self._is_wide(width) else 0)

    def _is_wide(self, width: int) -> bool:
        return width >= _WIDE

    def _state_look(self, row: ChatRow) -> Style:
        return self.look(f"chat-table--{row.state.value}")

    def _tint(self, row: ChatRow) -> Style | None:
        """The background of the row that is pointed at."""
        if self.has_focus and row.id == self._cursor:
            name = "chat-table--cursor"
        elif row.id == self._hovered:
            name = "chat-table--hover"
        else:
            return None
        color = self.background_colors[1] + self.get_component_styles(name).background
        return Style(bgcolor=color.rich_color)

    # --- pointing and choosing -----------------------------------------------------------------------------------------

    def action_move(self, steps: int) -> None:
        """Points at another chat."""
        if self._rows:
            ids = [row.id for row in self._rows]
            now = ids.index(self._cursor) + steps if self._cursor in ids else 0
            self._cursor = ids[max(0, min(now, len(ids) - 1))]
            self._hovered = None
            self._pointing_changed()
            self._scroll_to_cursor(ids.index(self._cursor))

    def action_open(self) -> None:
        """Opens the chat that the keyboard points at."""
        if self._cursor is not None:
            self.post_message(self.Selected(self._cursor))

    def point_at(self, chat_id: str) -> None:
        """Points at a chat, as the keyboard does."""
        self._cursor = chat_id
        self._hovered = None
        self.focus()
        self._pointing_changed()

    def watch_has_focus(self, has_focus: bool) -> None:  # noqa: FBT001 - Textual's signature
        """The cursor comes and goes with the focus."""
        super().watch_has_focus(has_focus)
        self._pointing_changed()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Points at the chat below the mouse."""
        self._hover(self._chat_at(event.y))
        told = _EXPLAINED.get(self._sum_at(event.y), "")
        self.tooltip = Content(told) if told else None

    def on_leave(self, event: events.Leave) -> None:
        """Points at none."""
        if event.node is self:
            self._hover(None)

    def on_click(self, event: events.Click) -> None:
        """Opens the chat below the mouse."""
        chat = self._chat_at(event.y)
        if chat is not None:
            self._cursor = chat
            self.post_message(self.Selected(chat))

    def _hover(self, chat: str | None) -> None:
        if chat != self._hovered:
            self._hovered = chat
            self._pointing_changed()

    def _pointing_changed(self) -> None:
        lit = self._hovered if self._hovered is not None else self._cursor if self.has_focus else None
        if lit != self._lit:
            self._lit = lit
            self.post_message(self.Lit(lit))
        self.renew()

    def _chat_at(self, y: int) -> str | None:
        index = (y - 1) // self._row_height
        return self._rows[index].id if y >= 1 and index < len(self._rows) else None

    def _sum_at(self, y: int) -> str:
        titles = [_UNCLAIMED, _REPEATED, _ALL]
        if self._view is not None and self._view.others is not None:
            titles.insert(0, _NO_CHAT)
        index = y - 1 - (len(self._rows) * self._row_height or 1)
        return titles[index] if 0 <= index < len(titles) else ""

    @property
    def _row_height(self) -> int:
        return 1 if self._is_wide(self.size.width) else 2

    def _scroll_to_cursor(self, index: int) -> None:
        container = next((node for node in self.ancestors if isinstance(node, Widget) and node.allow_vertical_scroll), None)
        if container is not None:
            offset = self.region.offset - container.region.offset + container.scroll_offset
            region = Region(offset.x, offset.y + 1 + index * self._row_height, self.size.width, self._row_height)
            container.scroll_to_region(region, animate=False)


def _sizes(width: int) -> tuple[int, int, int]:
    return (6, 7, 7) if width >= _WIDE else (5, 7, 7) if width >= 32 else (4, 7, 7)


def _blocks(count: int | str, size: int) -> str:
    if isinstance(count, str):
        return count.rjust(size)
    return (f"{count:,}" if count else "-").rjust(size)


def _found(row: ChatRow) -> str:
    return (short_count(row.cached_tokens) if row.cached_tokens else "-").rjust(7)


def _state_text(row: ChatRow, width: int) -> str:
    """`reading 45%`, or `45%` where there is no room."""
    if row.state is RowState.READING:
        text, short = f"reading {row.percent}%", f"{row.percent}%"
    else:
        short = str(row.state.value)
        text = f"{short} x{row.samples}" if row.samples > 1 else short
    return text if len(text) <= width else short
