"""What the engine is told of chats: which one is looked at, so that its blocks go last, and which are pinned, so that theirs stay.

```text
a chat comes into view, gets a turn, or another path ── its token ids (a thread, where no turn of this process has them) ── look_at
/pin, and the end of each answer of a pinned chat ───── the ids of its last turn ─────────────────────────────────────── pin
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from chatpaged.amounts import counted, memory_size
from chatpaged.chat import Chat, ChatState
from chatpaged.engine.retained_prefixes import PinResult
from chatpaged.engine_host import EngineHost, HostState
from chatpaged.errors import ChatpagedError, EngineDeadError, InvalidRequestError
from chatpaged.session import ChatSession
from chatpaged.session_model import SessionModel
from chatpaged.task_set import TaskSet
from chatpaged.workspace_events import AnswerEnded, ChatChanged, EngineChanged, ListChanged, Notice, PathChanged, WorkspaceEvent

_SETTLED_SECONDS = 0.1
"""How long a chat is in view before its ids are worked out: who leafs through many looks at none of them."""


class ChatMemory:
    """Tells the engine what to keep. Lives on the event loop and waits for nobody.

    Pins last as long as the process. They belong to a chat: another engine is told of them with the chat's next answer.
    """

    def __init__(
        self,
        host: EngineHost,
        chats: Mapping[str, Chat],
        session_of: Callable[[Chat, SessionModel], ChatSession],
        emit: Callable[[WorkspaceEvent], None],
        *,
        salt: bytes = b"",
    ) -> None:
        """Begins with nothing in view and nothing pinned.

        Args:
            host: the engine.
            chats: those that are open.
            session_of: a chat's session with a model.
            emit: hears what happens.
            salt: that of all requests.
        """
        self._host = host
        self._chats = chats
        self._session_of = session_of
        self._emit = emit
        self._salt = salt
        self._in_view: str | None = None
        self._told: tuple[object, ...] = ()
        self._pins: dict[str, PinResult] = {}
        self._pinned_on: object = None
        self._tasks = TaskSet()

    # --- the chat in view ------------------------------------------------------------------------------------------------

    def look_at(self, chat_id: str | None) -> None:
        """Says which chat is typed into. Costs nothing when the engine knows that already."""
        self._in_view = chat_id
        self._tell()

    def hear(self, event: WorkspaceEvent) -> None:
        """What happens to chats may change what is to be kept."""
        match event:
            case AnswerEnded(chat_id=chat_id) | PathChanged(chat_id=chat_id):
                if chat_id == self._in_view:
                    self._tell()
                if isinstance(event, AnswerEnded):
                    self._extend(chat_id)
            case EngineChanged():
                self._tell()
            case ListChanged():
                self._drop_gone()
            case _:
                pass

    def _tell(self) -> None:
        if self._host.state is not HostState.READY:
            return
        chat = self._chats.get(self._in_view) if self._in_view is not None else None
        state = (self._host.engine, self._in_view, *_state_of(chat))
        if state != self._told:
            self._told = state
            self._run(self._look_at(chat, state))

    async def _look_at(self, chat: Chat | None, state: tuple[object, ...]) -> None:
        token_ids = await self._known_ids(chat, state) if chat is not None else ()
        if state == self._told:  # nothing else has come into view meanwhile
            await self._host.engine.call(lambda llm: llm.look_at(token_ids or None, self._salt))

    async def _known_ids(self, chat: Chat, state: tuple[object, ...]) -> tuple[int, ...]:
        """A chat's ids as far as they are known: of what is sent, of its last turn, or as its next prompt would begin."""
        model = self._host.model
        if chat.is_empty or model is None:
            return ()
        token_ids = self._computed_ids(chat, model)
        if token_ids and _is_at_its_end(chat):
            return token_ids
        await asyncio.sleep(_SETTLED_SECONDS)
        if state != self._told:
            return ()
        try:
            return await asyncio.to_thread(self._session_of(chat, model).history_ids)
        except ChatpagedError:  # its next prompt will be refused, and that will be told
            return token_ids

    def _computed_ids(self, chat: Chat, model: SessionModel) -> tuple[int, ...]:
        """The ids that this process has computed, or is computing."""
        if chat.reply is not None and chat.state in (ChatState.WAITING, ChatState.GENERATING):
            return chat.reply.draft.prompt.token_ids
        turn = chat.session.last_turn if chat.session is not None and chat.session.model is model else None
        return turn.token_ids if turn is not None else ()

    # --- pins ------------------------------------------------------------------------------------------------------------

    async def pin(self, chat: Chat) -> str:
        """Keeps all full blocks of a chat in memory; from now on also those of its further turns. Returns the price in words.

        Raises:
            InvalidRequestError: there is nothing to keep, or no room for it.
            EngineDeadError: there is no engine any more.
        """
        if self._host.state is not HostState.READY:
            raise InvalidRequestError("there is no engine yet whose memory could be kept; /pin again when it is there")
        if not await self._host.engine.call(lambda llm: llm.config.enable_prefix_caching):
            raise InvalidRequestError("with --no-prefix-caching nothing is kept of any chat")
        was_pinned, chat.in_memory = chat.in_memory, True  # an answer that ends meanwhile is pinned as well
        try:
            result = self._checked(await self._pin(chat))
        except ChatpagedError:
            chat.in_memory = was_pinned
            raise
        self._emit(ChatChanged(chat.id))
        return price(result, self._host.facts.block_bytes if self._host.facts is not None else 0)

    def _checked(self, result: PinResult | None) -> PinResult:
        if result is None:
            raise InvalidRequestError("nothing of this chat has been computed since the start; send a message first, then /pin")
        if not result.wanted:
            raise InvalidRequestError(f"this chat does not fill a block of {self._host.block_size} tokens yet; /pin it a little later")
        if not result.pinned:
            raise InvalidRequestError(f"no room: {result.total} of at most {result.limit} blocks are pinned; /unpin in another chat")
        return result

    async def unpin(self, chat: Chat) -> bool:
        """Lets go of a chat's blocks. Returns whether it was pinned."""
        was_pinned, chat.in_memory = chat.in_memory, False
        self._pins.pop(chat.id, None)
        if self._host.state is HostState.READY:
            await self._host.engine.call(lambda llm: llm.unpin(chat.id))
        self._emit(ChatChanged(chat.id))
        return was_pinned

    async def _pin(self, chat: Chat) -> PinResult | None:
        """What became of it; None where nothing has been computed."""
        model = self._host.model
        token_ids = self._computed_ids(chat, model) if model is not None else ()
        if not token_ids:
            return None
        engine = self._host.engine
        result = await engine.call(lambda llm: llm.pin(chat.id, token_ids, self._salt))
        if engine is not self._pinned_on:
            self._pins, self._pinned_on = {}, engine
        if result.pinned:
            self._pins[chat.id] = result
        return result

    def _extend(self, chat_id: str) -> None:
        chat = self._chats.get(chat_id)
        if chat is not None and chat.in_memory and self._host.state is HostState.READY:
            self._run(self._pin_more(chat))

    async def _pin_more(self, chat: Chat) -> None:
        """Pins what the last turn has added; says so once when not all of it fits any more."""
        before = self._pins.get(chat.id)
        result = await self._pin(chat)
        was_whole = before is None or before.pinned == before.wanted
        if result is not None and was_whole and result.pinned < result.wanted:
            fit = f"only the first {result.pinned} of its {counted(result.wanted, 'block')} stay in memory"
            self._emit(Notice(f"this pinned chat has outgrown its room: {fit}", "warning", chat.id))

    def _drop_gone(self) -> None:
        """Chats that were deleted keep nothing; one that has been taken back is pinned again."""
        if self._host.state is not HostState.READY or self._pinned_on is not self._host.engine:
            return
        for chat_id in self._pins.keys() - self._chats.keys():
            del self._pins[chat_id]
            self._run(self._unpin_gone(chat_id))
        for chat in self._chats.values():
            if chat.in_memory and chat.id not in self._pins:
                self._extend(chat.id)

    async def _unpin_gone(self, chat_id: str) -> None:
        await self._host.engine.call(lambda llm: llm.unpin(chat_id))

    # --- tasks -----------------------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            with suppress(EngineDeadError):  # the host has heard of it, and tells everybody
                await work

        self._tasks.start(guarded())


def price(result: PinResult, block_bytes: int) -> str:
    """What a pin takes, in words.

    Args:
        result: what became of the wish.
        block_bytes: bytes of a block.
    """
    size = memory_size(result.pinned * block_bytes)
    of_all = f"{result.total} of at most {result.limit}"
    if result.pinned == result.wanted:
        return f"pinned {counted(result.pinned, 'block')} ({size}), {of_all}"
    return f"pinned the first {result.pinned} of {counted(result.wanted, 'block')} ({size}), {of_all}: a quarter of the pool"


def _state_of(chat: Chat | None) -> tuple[object, ...]:
    """What a chat's ids depend on."""
    if chat is None:
        return ()
    leaf = chat.conversation.leaf
    is_sent = chat.reply is not None and chat.state in (ChatState.WAITING, ChatState.GENERATING)
    request = chat.reply.request_id if is_sent and chat.reply is not None else None
    return (leaf.id if leaf is not None else None, chat.conversation.system, request)


def _is_at_its_end(chat: Chat) -> bool:
    """Whether what this process has computed is the chat's end, and not only a part of the way to it."""
    leaf = chat.conversation.leaf
    return chat.is_busy or (chat.session is not None and leaf is not None and chat.session.turn_of(leaf.id) is not None)
