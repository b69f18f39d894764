"""Answers of many chats from one engine: sent, streamed, stopped and kept, whoever looks at them.

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
from chatpaged.engine.outputs import FinishReason, RequestOutput
from chatpaged.engine.sampling_params import SamplingParams, new_seed
from chatpaged.engine_host import EngineHost, HostState
from chatpaged.errors import ChatpagedError, EngineDeadError, StoreError
from chatpaged.session import ChatSession, Draft, Reply
from chatpaged.session_model import SessionModel, SessionOptions
from chatpaged.store_background import BackgroundStore
from chatpaged.text_length import check_counted
from chatpaged.workspace_events import AnswerEnded, AnswerGrew, ChatChanged, EngineChanged, Notice, PathChanged, Returned, WorkspaceEvent

Listener = Callable[[WorkspaceEvent], None]
MakeDraft = Callable[[ChatSession], Draft]
_IN_VIEW, _VISIBLE, _BEHIND = 0, 1, 2


class ChatAnswers:
    """Chats that are answered. Lives on an event loop and knows nothing of widgets: whoever shows it subscribes to its events.

    Attributes:
        host: the engine.
        chats: those that are open, by id.
        cut_off: answers that the death of the engine has ended.
        shelf: all conversations, as a list shows them.
        store: where they are kept; None keeps nothing.
        sampling: values that hold for all chats without their own.
        options: what holds for every prompt.
    """

    def __init__(
        self,
        backend: Backend,
        store: BackgroundStore | None,
        *,
        sampling: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
        hold: bool = False,
    ) -> None:
        """Begins to load the engine.

        Args:
            backend: the model.
            store: where chats are kept.
            sampling: values that hold for all chats without their own.
            options: what holds for every prompt.
            hold: whether loading waits for `host.begin`.
        """
        self.chats: dict[str, Chat] = {}
        self.store = store
        self.sampling = dict(sampling or {})
        self.options = options if options is not None else SessionOptions(leave_out=True)
        self.cut_off = 0
        self._listeners: list[Listener] = []
        self._in_view: tuple[str, ...] = ()
        self._numbers = 0
        self.shelf = ChatShelf(self.chats, store, self._emit)
        self.host = EngineHost(backend, lambda: self._emit(EngineChanged()), hold=hold)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Has somebody hear of everything. Returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _emit(self, event: WorkspaceEvent) -> None:
        for listener in list(self._listeners):
            listener(event)

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

    def is_free(self, chat: Chat) -> bool:
        """Whether something else may be done with a chat; where it may not, its user is told."""
        if chat.is_busy:
            self._emit(Notice("an answer is being made; stop it first", "warning", chat.id))
        return not chat.is_busy

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
        if not self.is_free(chat):
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
            outputs = engine.generate(
                reply.draft.prompt,
                reply.params,
                request_id=reply.request_id,
                priority=self._priority(chat),
                salt=self.options.salt,
                keep=self.options.keep,
            )
            async for output in outputs:
                self._take(chat, reply, output)
        except EngineDeadError:
            self.cut_off += bool(reply.nodes)
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
