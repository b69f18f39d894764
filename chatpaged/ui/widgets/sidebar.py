"""The list of chats beside the conversation: found, opened, named, put on top and deleted here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from chatpaged.chat import ChatState
from chatpaged.session_list import ListEntry
from chatpaged.shown_text import shown
from chatpaged.ui.marked_text import MUTED
from chatpaged.ui.requests import (
    ChatRequest,
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

_AROUND = 7
"""Columns of a row that are no title: its mark, what is left free beside the rows, and the scrollbar."""
_BUSY = {ChatState.DRAFTING: "◌", ChatState.WAITING: "◌", ChatState.GENERATING: "●"}


@dataclass(frozen=True, slots=True)
class _Look:
    """What a chat's two rows are made of: they are made again only when it differs, since there may be thousands of chats."""

    entry: ListEntry
    note: str
    in_view: bool
    width: int

    def line(self) -> Content:
        """The title; what it is doing or how old it is."""
        entry = self.entry
        mark = _BUSY.get(entry.state, "•" if entry.unread else "▸" if self.in_view else " ")
        style = "$text-success" if entry.state is ChatState.GENERATING else "$text-warning" if mark == "◌" else "$text-accent"
        strong = "bold" if entry.unread or self.in_view else ""
        first = Content.assemble((f"{mark} ", style), (shown(entry.title), strong)).truncate(self.width + 2, ellipsis=True)
        top = "on top · " if entry.pinned else ""
        kept = "in memory · " if entry.in_memory else ""
        unread = " · unread" if entry.unread else ""
        return first + Content.styled(f"\n  {top}{kept}{self.note}{unread}".rstrip(" ·"), MUTED)


class ChatOptions(OptionList):
    """The list itself."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "rename", "Rename"),
        Binding("t,p", "pin", "On top"),
        Binding("delete,d", "delete", "Delete", key_display="del"),
        Binding("u", "undelete", "Undo delete"),
        Binding("s", "beside", "Beside"),
    ]

    @property
    def highlighted_id(self) -> str | None:
        """The chat that the cursor is on."""
        return self.get_option_at_index(self.highlighted).id if self.highlighted is not None and self.option_count else None

    def action_rename(self) -> None:
        """Asks for another name."""
        self._ask(RenameChat)

    def action_pin(self) -> None:
        """Keeps the chat at the top, or lets it go."""
        self._ask(PinChat)

    def action_delete(self) -> None:
        """Deletes the chat."""
        self._ask(DeleteChat)

    def action_beside(self) -> None:
        """Opens the chat beside the one in view."""
        self._ask(OpenBeside)

    def action_undelete(self) -> None:
        """Brings back what was deleted last."""
        self.post_message(UndeleteChat())

    def _ask(self, request: type[ChatRequest]) -> None:
        if self.highlighted_id is not None:
            self.post_message(request(self.highlighted_id))


class Sidebar(Vertical):
    """Chats, those that stay on top first, then the newest."""

    DEFAULT_CSS = """
    Sidebar {
        width: 30;
        background: $surface;
        & #new-chat { width: 1fr; margin: 1 1 0 1; height: 1; border: none; min-width: 10; background: $primary 30%; color: $text; }
        & #new-chat:focus { background: $primary; text-style: bold; }
        & Input { margin: 1 1 0 1; height: 1; border: none; padding: 0 1; background: $panel; }
        & Input:focus { background: $panel-lighten-1; border: none; }
        & ChatOptions { height: 1fr; margin: 1 0 0 0; padding: 0; border: none; background: transparent; }
        & ChatOptions:focus { border: none; }
        & ChatOptions > .option-list--option { padding: 0 1; }
        & ChatOptions > .option-list--option-highlighted { background: $foreground 8%; color: $text; }
        & ChatOptions:focus > .option-list--option-highlighted { background: $primary; color: $text; }
        & #nothing { padding: 1; color: $text-muted; display: none; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._entries: dict[str, ListEntry] = {}
        self._looks: dict[str, _Look] = {}

    def compose(self) -> ComposeResult:
        """The list, and what is above it."""
        yield Button("+ New chat", id="new-chat")
        yield Input(placeholder="Filter chats", id="filter", select_on_focus=True)
        yield ChatOptions(id="chats")
        yield Static("No chat has such a title. Enter looks in all messages.", id="nothing")

    @property
    def options(self) -> ChatOptions:
        """The list itself."""
        return self.query_one("#chats", ChatOptions)

    @property
    def order(self) -> list[str]:
        """The ids of the chats that are listed, from the top."""
        return list(self._entries)

    def show(self, entries: Sequence[ListEntry], in_view: Sequence[str]) -> None:
        """Shows these chats. Only what is different is drawn anew."""
        now = time.time()
        width = max(8, (self.size.width or 30) - _AROUND)
        self._entries = {entry.id: entry for entry in entries}
        looks = {entry.id: _Look(entry, entry.note(now), entry.id in in_view, width) for entry in entries}
        options = self.options
        if list(looks) != list(self._looks):
            highlighted = options.highlighted_id
            options.set_options([Option(look.line(), id=chat_id) for chat_id, look in looks.items()])
            self._highlight(highlighted if highlighted in looks else next(iter(in_view), None))
        else:
            for chat_id, look in looks.items():
                if look != self._looks[chat_id]:
                    options.replace_option_prompt(chat_id, look.line())
        self._looks = looks
        self.query_one("#nothing").display = not entries and bool(self.query_one("#filter", Input).value)

    def _highlight(self, chat_id: str | None) -> None:
        if chat_id in self._entries:
            self.options.highlighted = self.options.get_option_index(chat_id)

    def look_at(self, chat_id: str) -> None:
        """Puts the cursor on the chat in view."""
        self._highlight(chat_id)

    # --- what is done with it --------------------------------------------------------------------------------------------

    def focus_filter(self) -> None:
        """Lets titles be typed."""
        self.query_one("#filter", Input).focus()

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(OpenChat(event.option_id))

    @on(Button.Pressed, "#new-chat")
    def _new(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(NewChat())

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(FilterChats(event.value))

    @on(Input.Submitted, "#filter")
    def _find(self, event: Input.Submitted) -> None:
        event.stop()
        if self._entries and event.value:
            self.post_message(OpenChat(next(iter(self._entries))))
        elif event.value.strip():
            self.post_message(FindText(event.value))
