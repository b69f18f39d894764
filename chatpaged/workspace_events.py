"""What happens in a workspace, as those hear it who show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class ChatChanged:
    """Title, state or marks of a chat are other ones."""

    chat_id: str


@dataclass(frozen=True, slots=True)
class PathChanged:
    """Other messages are looked at."""

    chat_id: str


@dataclass(frozen=True, slots=True)
class AnswerGrew:
    """An answer has begun, or become longer.

    Attributes:
        chat_id: its chat.
        node_id: its message.
        index: which of the answers to the same question.
        text: what is new.
        reasoning: what is new of its thinking.
        repeats: how often its end has repeated itself, once that is out of the ordinary; else 0.
    """

    chat_id: str
    node_id: str
    index: int
    text: str
    reasoning: str
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The answers to a question are there. `node_ids` are their messages; none where nothing came."""

    chat_id: str
    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """What was to be sent has not been, and goes back to where it was typed."""

    chat_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know."""

    text: str
    severity: Severity = "information"
    chat_id: str | None = None


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """The engine's state is another one, or what it is doing while it loads."""


@dataclass(frozen=True, slots=True)
class ListChanged:
    """Other conversations are there."""


WorkspaceEvent = ChatChanged | PathChanged | AnswerGrew | AnswerEnded | Returned | Notice | EngineChanged | ListChanged
