"""Where chats stand when nobody looks at them: listed, named, pinned, thrown away and taken back."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from chatpaged.chat import UNTITLED, Chat
from chatpaged.errors import StoreError
from chatpaged.session_list import ListEntry, list_entries
from chatpaged.store import SessionInfo
from chatpaged.store_background import BackgroundStore
from chatpaged.store_search import SearchHit
from chatpaged.workspace_events import ChatChanged, ListChanged, Notice, WorkspaceEvent


class ChatShelf:
    """All conversations: those that are open, and those of the store. Lives on the event loop."""

    def __init__(self, chats: MutableMapping[str, Chat], store: BackgroundStore | None, emit: Callable[[WorkspaceEvent], None]) -> None:
        """Begins with an empty list.

        Args:
            chats: those that are open; what is thrown away is closed.
            store: where the others are.
            emit: hears what happens.
        """
        self._chats = chats
        self._store = store
        self._emit = emit
        self._infos: dict[str, SessionInfo] = {}
        self._thrown_away: list[tuple[str, Chat | None]] = []
        self._hidden: set[str] = set()

    async def refresh(self) -> None:
        """Looks into the store again."""
        if self._store is None:
            return
        try:
            infos = await self._store.read(lambda store: store.sessions())
        except StoreError as error:
            self._emit(Notice(str(error), "error"))
            return
        self._infos = {info.id: info for info in infos}
        for chat in self._chats.values():
            if (info := self._infos.get(chat.id)) is not None:
                chat.pinned = info.pinned
        self._emit(ListChanged())

    def entries(self, filter_text: str = "") -> list[ListEntry]:
        """What a list can show, in its order; also open chats in which nothing has been said yet."""
        infos = [info for info in self._infos.values() if info.id not in self._hidden]
        return list_entries(infos, self._chats, filter_text)

    async def search(self, text: str) -> list[SearchHit]:
        """Messages in which all words of a text occur."""
        return await self._store.read(lambda store: store.search(text)) if self._store is not None else []

    def info(self, chat_id: str) -> SessionInfo | None:
        """What the store has of a conversation."""
        return self._infos.get(chat_id)

    def title(self, chat_id: str) -> str:
        """What to call a conversation."""
        chat, info = self._chats.get(chat_id), self._infos.get(chat_id)
        return chat.title if chat is not None else info.title if info is not None and info.title else UNTITLED

    def is_pinned(self, chat_id: str) -> bool:
        """Whether it stays at the top."""
        chat, info = self._chats.get(chat_id), self._infos.get(chat_id)
        return chat.pinned if chat is not None else info is not None and info.pinned

    def rename(self, chat_id: str, name: str) -> None:
        """Gives a conversation a name; an empty one takes it away."""
        chat = self._chats.get(chat_id)
        if chat is not None:
            chat.conversation.name = " ".join(name.split())
        if self._store is not None and self._is_kept(chat_id):
            self._store.rename(chat_id, name)
        self._changed(chat_id)

    def pin(self, chat_id: str) -> bool:
        """Pins a conversation, or lets it go. Returns whether it is pinned now."""
        pinned = not self.is_pinned(chat_id)
        if (chat := self._chats.get(chat_id)) is not None:
            chat.pinned = pinned
        if self._store is not None and self._is_kept(chat_id):
            self._store.set_pinned(chat_id, pinned=pinned)
        self._changed(chat_id)
        return pinned

    def throw_away(self, chat_id: str) -> None:
        """Takes a conversation out of the list; `take_back` brings it back. Its answers have been stopped."""
        if self._store is not None and self._is_kept(chat_id):
            self._store.throw_away(chat_id)
        self._thrown_away.append((chat_id, self._chats.pop(chat_id, None)))
        self._hidden.add(chat_id)
        self._emit(ListChanged())

    def take_back(self) -> str | None:
        """Brings back what was thrown away last. Returns its id; None if nothing was."""
        if not self._thrown_away:
            return None
        chat_id, chat = self._thrown_away.pop()
        self._hidden.discard(chat_id)
        if chat is not None:
            self._chats[chat_id] = chat
        if self._store is not None and self._is_kept(chat_id):
            self._store.undelete(chat_id)
        self._emit(ListChanged())
        return chat_id

    def keep_marks(self, chat: Chat) -> None:
        """Keeps whether a chat is unread, and what is typed into it."""
        if self._store is not None and chat.stored:
            self._store.set_unread(chat.id, unread=chat.unread)
            self._store.set_draft(chat.id, chat.prompt.to_json())

    def _is_kept(self, chat_id: str) -> bool:
        chat = self._chats.get(chat_id)
        return chat_id in self._infos or (chat is not None and chat.stored)

    def _changed(self, chat_id: str) -> None:
        self._emit(ChatChanged(chat_id))
        self._emit(ListChanged())
