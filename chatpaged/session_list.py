"""The list of conversations: those that are open and those of the store, pinned ones first, then the newest."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chatpaged.chat import UNTITLED, Chat, ChatState
from chatpaged.store import SessionInfo

_DAY = 86_400
_UNITS = ((_DAY * 365, "y"), (_DAY * 30, "mo"), (_DAY * 7, "w"), (_DAY, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One conversation as a list shows it.

    Attributes:
        id: the conversation's id.
        title: what to call it.
        updated: seconds since 1970.
        pinned: it stays at the top.
        unread: something came while nobody was looking.
        state: what it is doing.
        speed: tokens a second, of one that is writing.
        queued: messages that wait for the end of an answer.
        num_messages: in all its branches.
        in_memory: what is computed of it stays in memory.
    """

    id: str
    title: str
    updated: float
    pinned: bool = False
    unread: bool = False
    state: ChatState = ChatState.IDLE
    speed: float = 0.0
    queued: int = 0
    num_messages: int = 0
    in_memory: bool = False

    def note(self, now: float) -> str:
        """What is said about it in a few characters: what it is doing, else its age."""
        waiting = f" +{self.queued}" if self.queued else ""
        if self.state is ChatState.GENERATING:
            return f"{self.speed:.0f} tok/s{waiting}" if self.speed else f"writing{waiting}"
        if self.state is not ChatState.IDLE:
            return f"{self.state.value}{waiting}"
        return age(now - self.updated) if self.num_messages else ""


def list_entries(infos: Iterable[SessionInfo], chats: Mapping[str, Chat], filter_text: str = "") -> list[ListEntry]:
    """The conversations to show, in their order.

    Args:
        infos: what the store has, newest first.
        chats: those that are open.
        filter_text: only titles in which all of its words occur.
    """
    words = filter_text.casefold().split()
    found = {info.id: _of_store(info, chats.get(info.id)) for info in infos}
    found |= {chat.id: _of_chat(chat) for chat in chats.values() if chat.id not in found}
    fitting = [entry for entry in found.values() if all(word in entry.title.casefold() for word in words)]
    return sorted(fitting, key=lambda entry: (not entry.pinned, -entry.updated))


def _of_store(info: SessionInfo, chat: Chat | None) -> ListEntry:
    if chat is not None:
        return _of_chat(chat)
    return ListEntry(info.id, info.title or UNTITLED, info.updated, pinned=info.pinned, unread=info.unread, num_messages=info.num_messages)


def _of_chat(chat: Chat) -> ListEntry:
    return ListEntry(
        chat.id,
        chat.title,
        chat.conversation.updated,
        chat.pinned,
        chat.unread,
        chat.state,
        chat.speed,
        len(chat.queue),
        len(chat.conversation.nodes),
        chat.in_memory,
    )


def age(seconds: float) -> str:
    """How long ago, in its largest unit: `5 min`, `3 d`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"


def spoken_age(when: float, now: float | None = None) -> str:
    """How long ago as it is said: `just now`, `5 min ago`."""
    text = age((time.time() if now is None else now) - when)
    return "just now" if text == "now" else f"{text} ago"
