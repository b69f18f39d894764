"""One conversation that is open: what it is doing, and what is typed into it."""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chatpaged.conversation import Conversation, Node
from chatpaged.prompt_draft import PromptDraft
from chatpaged.session import ChatSession
from chatpaged.session_reply import Reply

UNTITLED = "New chat"
"""What a chat is called before anything is said in it."""
_SPEED_SECONDS = 3.0


class ChatState(enum.Enum):
    """What a chat is doing."""

    IDLE = "idle"
    DRAFTING = "preparing"
    WAITING = "waiting"
    GENERATING = "writing"


@dataclass(slots=True)
class Chat:
    """An open conversation. Lives on the event loop.

    Attributes:
        conversation: the messages.
        session: the conversation on the engine; made with the first message that is sent.
        state: what it is doing.
        reply: the answers that are being generated, or were last.
        queue: what has been sent meanwhile and comes next.
        sampling: values of its own, by their names in `SamplingParams`.
        preset: the preset it was begun with; empty without.
        stopping: somebody wants its answer to end.
        unread: something came while nobody was looking.
        pinned: it stays at the top of the list.
        in_memory: what is computed of it stays in memory, as long as the process lasts.
        prompt: what is typed and has not been sent.
        stored: it is in the store.
    """

    conversation: Conversation
    session: ChatSession | None = None
    state: ChatState = ChatState.IDLE
    reply: Reply | None = None
    queue: list[str] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    preset: str = ""
    unread: bool = False
    stopping: bool = False
    pinned: bool = False
    in_memory: bool = False
    prompt: PromptDraft = field(default_factory=PromptDraft)
    stored: bool = False
    task: asyncio.Task[None] | None = None
    begun: asyncio.Future[str | None] | None = None
    """The question that is being sent, once it is kept."""
    before: Node | None = None
    """What was looked at before the running request; it comes back if nothing is answered."""
    counted: tuple[Any, int] | None = None
    """Tokens of the conversation, and what was counted."""
    _grown: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.conversation.id

    @property
    def title(self) -> str:
        """What to call it."""
        return self.conversation.title or UNTITLED

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being made."""
        return self.state is not ChatState.IDLE

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been said."""
        return not self.conversation.nodes

    def grew(self, num_tokens: int) -> None:
        """Counts tokens for the speed."""
        self._grown.append((time.monotonic(), num_tokens))

    @property
    def speed(self) -> float:
        """Tokens a second over the last few seconds, of all answers together."""
        now = time.monotonic()
        while self._grown and self._grown[0][0] < now - _SPEED_SECONDS:
            self._grown.popleft()
        if self.state is not ChatState.GENERATING or len(self._grown) < 2:
            return 0.0
        span = now - self._grown[0][0]
        return sum(count for _, count in list(self._grown)[1:]) / span if span > 0 else 0.0

    def effective_sampling(self, *lower: Mapping[str, Any]) -> dict[str, Any]:
        """The values that hold, the chat's own over those given, the first of which rank lowest."""
        values: dict[str, Any] = {}
        for given in (*lower, self.sampling):
            values |= given
        return values
