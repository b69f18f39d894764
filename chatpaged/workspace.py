"""All chats of the application on one engine: begun, opened, moved about in, and the engine under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chatpaged.backends import Backend
from chatpaged.chat import Chat, ChatState
from chatpaged.chat_answers import ChatAnswers
from chatpaged.chat_memory import ChatMemory
from chatpaged.conversation import Conversation
from chatpaged.engine_view import EngineView
from chatpaged.engine_watch import EngineWatch
from chatpaged.errors import ChatpagedError, StoreError
from chatpaged.preset_prompts import PresetPrompts
from chatpaged.prompt_draft import PromptDraft
from chatpaged.session import SessionModel, SessionOptions
from chatpaged.store_background import BackgroundStore
from chatpaged.workspace_events import EngineChanged, ListChanged, Notice, PathChanged, Severity, WorkspaceEvent


class Workspace(ChatAnswers):
    """The open chats.

    Attributes:
        system: the system prompt of new chats.
        presets: system prompts of presets that the engine keeps.
        memory: what the engine keeps of them.
    """

    def __init__(
        self,
        backend: Backend,
        store: BackgroundStore | None,
        *,
        system: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
        hold: bool = False,
    ) -> None:
        """Begins to load the engine.

        Args:
            backend: the model.
            store: where chats are kept.
            system: the system prompt of new chats.
            sampling: values that hold for all chats without their own.
            options: what holds for every prompt.
            hold: whether loading waits for `host.begin`.
        """
        super().__init__(backend, store, sampling=sampling, options=options, hold=hold)
        self.system = system
        self._watch = EngineWatch(self.host, self.options.salt)
        self.presets = PresetPrompts(self.host, self.options, self._tell)
        self.subscribe(self._follow_engine)
        self.memory = ChatMemory(self.host, self.chats, self._session, self._emit, salt=self.options.salt)
        self.subscribe(self.memory.hear)

    def _tell(self, text: str, severity: Severity) -> None:
        self._emit(Notice(text, severity))

    def _follow_engine(self, event: WorkspaceEvent) -> None:
        if isinstance(event, EngineChanged):
            self.presets.follow()

    # --- chats -----------------------------------------------------------------------------------------------------------

    def look_at(self, chat_ids: Sequence[str]) -> None:
        """Says which chats are in view, the one that is typed into first: these go first, and the blocks of that one last."""
        super().look_at(chat_ids)
        self.memory.look_at(next(iter(chat_ids), None))

    def new_chat(self, *, system: str | None = None, sampling: Mapping[str, Any] | None = None, preset: str = "") -> Chat:
        """Begins a chat. It is kept with its first message."""
        conversation = Conversation(system=system if system is not None else self.system)
        chat = Chat(conversation, sampling=dict(sampling or {}), preset=preset)
        self.chats[chat.id] = chat
        self._emit(ListChanged())
        return chat

    async def open_chat(self, chat_id: str) -> Chat:
        """A chat by its id, from the store if it is not open.

        Raises:
            InvalidRequestError: there is none.
            StoreError: it cannot be read.
        """
        if chat_id not in self.chats:
            if self.store is None:
                raise StoreError("nothing is kept: there is no other chat")
            conversation, draft = await self.store.read(lambda store: (store.load(chat_id), store.draft(chat_id)))
            info = self.shelf.info(chat_id)
            chat = Chat(conversation, prompt=PromptDraft.from_json(draft), stored=True)
            chat.pinned, chat.unread = (info.pinned, info.unread) if info is not None else (False, False)
            self.chats.setdefault(chat_id, chat)
        return self.chats[chat_id]

    # --- moving about, naming --------------------------------------------------------------------------------------------

    def branch(self, chat: Chat, node_id: str | None) -> None:
        """Goes back: the next message will follow this one."""
        self._change(chat, lambda conversation: conversation.branch(node_id))

    def switch(self, chat: Chat, node_id: str) -> None:
        """Looks at another version of a message, and at what followed it."""
        self._change(chat, lambda conversation: conversation.switch(node_id))

    def set_system(self, chat: Chat, text: str) -> None:
        """Changes the system prompt of the whole conversation."""

        def change(conversation: Conversation) -> None:
            conversation.system = text

        self._change(chat, change)

    def _change(self, chat: Chat, change: Callable[[Conversation], object]) -> None:
        """Changes what is looked at; no model is needed for that."""
        if not self.is_free(chat):
            return
        try:
            change(chat.conversation)
            if self.store is not None and chat.stored:
                self.store.update_session(chat.conversation)
        except ChatpagedError as error:
            self._emit(Notice(str(error), "error", chat.id))
        self._emit(PathChanged(chat.id))

    # --- the engine ------------------------------------------------------------------------------------------------------

    async def use_model(self, backend: Backend) -> None:
        """Takes another model for all chats; answers that are being made end, and what there is of them is kept."""
        await self._end_answers()
        await self.host.switch(backend)

    async def reload(self) -> None:
        """Loads the model again, after the engine has died or could not be loaded."""
        self.cut_off = 0
        await self.use_model(self.host.backend)

    async def close(self) -> None:
        """Ends all answers and the engine. What there is of answers is kept."""
        await self._end_answers()
        await self.host.close()

    async def _end_answers(self) -> None:
        for chat in self.chats.values():
            self.stop(chat)
        tasks = [chat.task for chat in self.chats.values() if chat.task is not None and not chat.task.done()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=2.0)
            for task in late:  # an engine in a long step; the reply keeps what it has
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> EngineView | None:
        """A picture of the engine, told by chats; None while there is no engine."""
        return await self._watch.look(self.chats, next(iter(self._in_view), None))

    async def context_use(self, chat: Chat, text: str) -> int | None:
        """Tokens that the conversation and what is typed take; None while that is not known. Counted in threads.

        The conversation is counted once; what is typed is counted by itself, so that typing costs the same in a long one.
        """
        model = self.host.model
        if model is None:
            return None
        used = self._written(chat)
        if used is None:
            used = await self._counted(chat, model)
        typed = await asyncio.to_thread(model.tokenizer.encode, text) if text else ()
        return used + len(typed) if used is not None else None

    @staticmethod
    def _written(chat: Chat) -> int | None:
        """Tokens of an answer that is being made, and of its prompt."""
        if chat.reply is None or chat.state not in (ChatState.WAITING, ChatState.GENERATING):
            return None
        return len(chat.reply.draft.prompt.token_ids) + chat.reply.written(0)[2]

    async def _counted(self, chat: Chat, model: SessionModel) -> int | None:
        key = (model, chat.conversation.leaf, chat.conversation.system)
        if chat.counted is None or chat.counted[0] != key:
            session = self._session(chat, model)
            try:
                chat.counted = (key, (await asyncio.to_thread(session.context_use)).used)
            except ChatpagedError:
                return None
        return chat.counted[1]
