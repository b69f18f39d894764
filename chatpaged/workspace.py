"""All chats of the application on one engine: sent, streamed, stopped and kept, whoever looks at them.

Lives on an event loop and knows nothing of widgets: whoever shows it subscribes to its events.

```text
send ── draft (a thread) ── begin: the question is kept ── engine.generate ── Reply.take ── events
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chatpaged.backends import Backend
from chatpaged.chat import Chat, ChatState
from chatpaged.chat_shelf import ChatShelf
from chatpaged.conversation import Conversation
from chatpaged.engine.outputs import FinishReason, RequestOutput
from chatpaged.engine.sampling_params import SamplingParams, new_seed
from chatpaged.engine_host import EngineHost, HostState
from chatpaged.engine_view import EngineView
from chatpaged.engine_watch import EngineWatch
from chatpaged.errors import ChatpagedError, EngineDeadError, StoreError
from chatpaged.prompt_draft import PromptDraft
from chatpaged.session import ChatSession, Draft, Reply, SessionModel, SessionOptions
from chatpaged.store_background import BackgroundStore
from chatpaged.text_length import check_counted
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

Listener = Callable[[WorkspaceEvent], None]
MakeDraft = Callable[[ChatSession], Draft]
_IN_VIEW, _VISIBLE, _BEHIND = 0, 1, 2


class Workspace:
    """The open chats.

    Attributes:
        host: the engine.
        chats: those that are open, by id.
        cut_off: answers that the death of the engine has ended.
        shelf: all conversations, as a list shows them.
        store: where they are kept; None keeps nothing.
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
        self.chats: dict[str, Chat] = {}
        self.store = store
        self.system = system
        self.sampling = dict(sampling or {})
        self.options = options if options is not None else SessionOptions(leave_out=True)
        self._listeners: list[Listener] = []
        self._in_view: tuple[str, ...] = ()
        self._numbers = 0
        self.cut_off = 0
        self.shelf = ChatShelf(self.chats, store, self._emit)
        self.host = EngineHost(backend, lambda: self._emit(EngineChanged()), hold=hold)
        self._watch = EngineWatch(self.host)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Has somebody hear of everything. Returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _emit(self, event: WorkspaceEvent) -> None:
        for listener in list(self._listeners):
            listener(event)

    # --- chats -----------------------------------------------------------------------------------------------------------

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

    def look_at(self, chat_ids: Sequence[str]) -> None:
        """Says which chats are in view, the one that is typed into first: these go first."""
        self._in_view = tuple(chat_ids)
        for chat in self.chats.values():
            if chat.id in self._in_view and chat.unread:
                self._set_unread(chat, unread=False)
            if chat.reply is not None and chat.is_busy:
                self.host.engine.set_priority(chat.reply.request_id, self._priority(chat), interactive=True)

    @property
    def in_view(self) -> tuple[str, ...]:
        """The chats in view, the one that is typed into first."""
        return self._in_view

    def _priority(self, chat: Chat) -> int:
        if self._in_view[:1] == (chat.id,):
            return _IN_VIEW
        return _VISIBLE if chat.id in self._in_view else _BEHIND

    # --- answers ---------------------------------------------------------------------------------------------------------

    def send(self, chat: Chat, text: str, *, n: int = 1) -> None:
        """Says something. While an answer is being made, it waits for its end."""
        if chat.is_busy:
            chat.queue.append(text)
            self._emit(ChatChanged(chat.id))
        else:
            self._begin(chat, lambda session: session.draft(text), n=n, text=text)

    def edit(self, chat: Chat, node_id: str, text: str) -> None:
        """Says something else in place of a message; the old one stays beside it."""
        self._begin(chat, lambda session: session.draft_edit(node_id, text), text=text)

    def regenerate(self, chat: Chat, node_id: str | None = None, *, n: int = 1) -> None:
        """Has another answer generated beside one, or several."""
        self._begin(chat, lambda session: session.draft_again(node_id), n=n)

    def continue_answer(self, chat: Chat, node_id: str | None = None) -> None:
        """Goes on with an answer that was cut off."""
        self._begin(chat, lambda session: session.draft_continue(node_id))

    async def begun(self, chat: Chat) -> str | None:
        """Waits until the question is kept that is being sent. Returns its id; None if it could not be sent."""
        return await asyncio.shield(chat.begun) if chat.begun is not None else None

    def stop(self, chat: Chat) -> bool:
        """Ends the answer; what there is of it is kept. What waits for its end goes back to where it was typed."""
        if not chat.is_busy:
            return False
        chat.stopping = True
        self._emit(ChatChanged(chat.id))
        if chat.queue:
            self._emit(Returned(chat.id, "\n\n".join(chat.queue)))
            chat.queue.clear()
        if chat.state is ChatState.DRAFTING or self.host.state is HostState.LOADING:
            if chat.task is not None:  # the engine has not heard of it
                chat.task.cancel()
        elif chat.reply is not None:
            self.host.engine.stop(chat.reply.request_id)
        return True

    def _begin(self, chat: Chat, make: MakeDraft, *, n: int = 1, text: str = "") -> None:
        if chat.is_busy:
            self._emit(Notice("an answer is being made; stop it first", "warning", chat.id))
            return
        self._set_state(chat, ChatState.DRAFTING)
        chat.begun = asyncio.get_running_loop().create_future()
        chat.task = asyncio.create_task(self._answer(chat, make, n, text))

    async def _answer(self, chat: Chat, make: MakeDraft, n: int, text: str) -> None:
        """From a draft to its answers. The top of a chat's work: whatever fails is told, and nothing is lost."""
        try:
            reply = await self._start(chat, make, n, text)
        except ChatpagedError as error:
            self._give_back(chat, text, str(error))
        except asyncio.CancelledError:
            self._give_back(chat, text, "")
        else:
            await self._stream(chat, reply)
        if chat.queue and self.host.state in (HostState.READY, HostState.LOADING):
            following = chat.queue.pop(0)
            self._begin(chat, lambda session: session.draft(following), text=following)

    def _give_back(self, chat: Chat, text: str, reason: str) -> None:
        chat.stopping = False
        self._set_state(chat, ChatState.IDLE)
        if chat.begun is not None and not chat.begun.done():
            chat.begun.set_result(None)
        if text:
            self._emit(Returned(chat.id, text))
        if reason:
            self._emit(Notice(reason, "error", chat.id))

    async def _start(self, chat: Chat, make: MakeDraft, n: int, text: str) -> Reply:
        """Makes the prompt and keeps the question."""
        model = await self.host.wait_model()
        session = self._session(chat, model)
        if model.context is not None:
            await asyncio.to_thread(check_counted, text, model.tokenizer, model.context)
        draft = await asyncio.to_thread(make, session)
        self.host.check_fits(draft.prompt)
        values = chat.effective_sampling(self.host.defaults, self.sampling)
        seed = values.get("seed")
        params = SamplingParams(**values | {"n": n, "seed": seed if seed is not None else new_seed()})
        self._numbers += 1
        chat.before = chat.conversation.leaf
        reply = session.begin(
            draft, params, request_id=f"{chat.id}-{self._numbers}", seed=params.seed or 0, block_size=self.host.block_size
        )
        chat.reply, chat.stored = reply, self.store is not None
        if draft.continued is None:
            chat.conversation.branch(draft.question.id)  # whatever was answered before is not in view while it is answered again
        self._set_state(chat, ChatState.WAITING)
        if chat.begun is not None:
            chat.begun.set_result(draft.question.id)
        self._emit(PathChanged(chat.id))
        if draft.left_out_note:
            self._emit(Notice(draft.left_out_note, "information", chat.id))
        return reply

    async def _stream(self, chat: Chat, reply: Reply) -> None:
        engine = self.host.engine
        reason = FinishReason.CANCELLED
        try:
            reply.block_size = (await engine.wait_loaded()).block_size
            outputs = engine.generate(reply.draft.prompt, reply.params, request_id=reply.request_id, priority=self._priority(chat))
            async for output in outputs:
                self._take(chat, reply, output)
        except EngineDeadError:
            self.cut_off += 1
            reason = FinishReason.ERROR  # the host has heard of it, and tells everybody
        except ChatpagedError as error:
            self._emit(Notice(str(error), "error", chat.id))
        except asyncio.CancelledError:
            pass  # the workspace is being closed
        finally:
            reply.end(reason)
            self._ended(chat, reply)

    def _take(self, chat: Chat, reply: Reply, output: RequestOutput) -> None:
        try:
            reply.take(output)
        except StoreError as error:
            self._emit(Notice(f"this answer is not kept: {error}", "error", chat.id))
        if chat.state is ChatState.WAITING and output.deltas:
            self._set_state(chat, ChatState.GENERATING)
        chat.grew(sum(len(delta.token_ids) for delta in output.deltas))
        for delta in output.deltas:
            node = reply.node_of(delta.index)
            if node is not None:
                self._emit(AnswerGrew(chat.id, node.id, delta.index, delta.text, delta.reasoning, delta.repeats))

    def _ended(self, chat: Chat, reply: Reply) -> None:
        chat.state, chat.stopping = ChatState.IDLE, False
        if not reply.nodes and not reply.draft.is_new and chat.before is not None:
            chat.conversation.branch(chat.before.id)
            self._emit(PathChanged(chat.id))
        if reply.nodes and chat.id not in self._in_view:
            self._set_unread(chat, unread=True)
        self._emit(AnswerEnded(chat.id, tuple(node.id for node in reply.nodes)))
        self._emit(ChatChanged(chat.id))

    def _session(self, chat: Chat, model: SessionModel) -> ChatSession:
        """The conversation on the model of now. What another model or engine has computed is of no use."""
        if chat.session is None or chat.session.model is not model:
            chat.session = ChatSession(model, chat.conversation, store=self.store, stored=chat.stored, options=self.options)
        return chat.session

    def _set_unread(self, chat: Chat, *, unread: bool) -> None:
        chat.unread = unread
        self.shelf.keep_marks(chat)
        self._emit(ChatChanged(chat.id))

    def _set_state(self, chat: Chat, state: ChatState) -> None:
        chat.state = state
        self._emit(ChatChanged(chat.id))

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
        if chat.is_busy:
            self._emit(Notice("an answer is being made; stop it first", "warning", chat.id))
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
