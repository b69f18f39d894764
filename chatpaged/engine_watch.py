"""The engine as a workspace sees it: a picture for each look, told by its chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from chatpaged.chat import Chat
from chatpaged.engine.retained_prefixes import PrefixKeys
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.engine_host import EngineHost, HostState
from chatpaged.engine_rows import ChatFacts
from chatpaged.engine_view import EngineView
from chatpaged.errors import EngineDeadError
from chatpaged.history import Turn

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine


class EngineWatch:
    """Asks the engine, between two of its steps, for everything a memory panel needs.

    What a chat's last sequence left in the prefix cache is found by keys that are computed once for each turn.
    """

    def __init__(self, host: EngineHost, salt: bytes = b"") -> None:
        self._host = host
        self._salt = salt
        self._keys: dict[str, tuple[Turn, PrefixKeys]] = {}

    async def look(self, chats: Mapping[str, Chat], in_view: str | None) -> EngineView | None:
        """A picture; None while there is no engine.

        Args:
            chats: those that are open.
            in_view: the one that is typed into.
        """
        if self._host.state is not HostState.READY:
            return None
        turns = {chat.id: turn for chat in chats.values() if (turn := _last_turn(chat)) is not None}
        try:
            snapshot, kept = await self._host.engine.call(lambda llm: self._on_engine(llm, turns))
        except EngineDeadError:
            return None
        return EngineView.of(snapshot, [_facts(chat, kept.get(chat.id, ())) for chat in chats.values()], in_view=in_view)

    def _on_engine(self, llm: LLMEngine, turns: Mapping[str, Turn]) -> tuple[EngineSnapshot, dict[str, tuple[int, ...]]]:
        """On the engine's thread, which alone uses the keys."""
        kept: dict[str, tuple[int, ...]] = {}
        for chat_id, turn in turns.items():
            known = self._keys.get(chat_id)
            if known is None or known[0] is not turn:
                known = self._keys[chat_id] = (turn, llm.prefix_keys(turn.token_ids, self._salt))
            kept[chat_id] = llm.cached_blocks(known[1])
        for chat_id in self._keys.keys() - turns.keys():
            del self._keys[chat_id]
        return llm.snapshot(), kept


def _last_turn(chat: Chat) -> Turn | None:
    return chat.session.last_turn if chat.session is not None else None


def _facts(chat: Chat, kept: Sequence[int]) -> ChatFacts:
    metrics = chat.reply.metrics if chat.reply is not None else None
    return ChatFacts(
        id=chat.id,
        title=chat.title,
        request_id=chat.reply.request_id if chat.reply is not None and chat.is_busy else None,
        cached_blocks=tuple(kept),
        cached_tokens=metrics.cached_tokens if metrics is not None else 0,
        is_pinned=chat.in_memory,
    )
