"""A conversation as a tree of messages. Nothing is ever replaced: edits, other answers and branches are siblings.

```text
user "a" ── assistant "x" ── user "b" ── assistant "y"
        │                └── user "c" (b, edited) ── assistant "z"   <- leaf
        └── assistant "w" (x, generated again)
```

The way from a root to the leaf is what the user sees and what the model is sent. Nothing here touches a disk or a model.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from chatpaged.errors import InvalidRequestError
from chatpaged.messages import ROLES, ChatMessage

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: none that is mistaken for another
_TIME_DIGITS = 9  # milliseconds until the year 3084
_TITLE_LENGTH = 60


class NodeState(enum.Enum):
    """Whether a message is whole. One that is being generated is interrupted until it is finished."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One message in the tree.

    Attributes:
        id: its name; no other message has it.
        parent: the message before it; None for a first one.
        role: system, user, assistant or tool.
        content: its text.
        reasoning: the thinking before an answer.
        token_ids: the ids that the answer was generated as; None for text that no model of this application wrote.
        reasoning_ids: likewise the ids before the answer (see `ChatMessage`).
        finish_reason: why the answer ended; empty for what was not generated.
        state: whether it is whole.
        sampling: the values it was drawn with.
        model: name of the model that wrote it.
        fingerprint: of the tokenizer that the ids belong to, in hexadecimal digits.
        usage: token counts, times, and what had to be read again.
        created: seconds since 1970.
        imported: it came from a file, so that its ids may be other text than its content.
    """

    id: str
    parent: str | None
    role: str
    content: str
    reasoning: str = ""
    token_ids: tuple[int, ...] | None = None
    reasoning_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    state: NodeState = NodeState.COMPLETE
    sampling: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    fingerprint: str = ""
    usage: Mapping[str, object] = field(default_factory=dict)
    created: float = 0.0
    imported: bool = False

    def message(self, fingerprint: str | None = None) -> ChatMessage:
        """The message as the template takes it.

        Args:
            fingerprint: of the tokenizer it is for. Ids of another one would be other text, so they are left out; None keeps them.
        """
        if self.role != "assistant":
            return ChatMessage(self.role, self.content)
        if self.token_ids is None or fingerprint not in (None, self.fingerprint):
            return ChatMessage("assistant", self.content, reasoning=self.reasoning)
        return ChatMessage("assistant", self.content, self.token_ids, self.reasoning, self.reasoning_ids)

    @property
    def can_continue(self) -> bool:
        """Whether it is an answer that was cut off."""
        return self.role == "assistant" and (self.state is NodeState.INTERRUPTED or self.finish_reason in {"length", "cancelled"})


def new_id(random_digits: int, now: float | None = None) -> str:
    """A name that sorts by the time it was made.

    Args:
        random_digits: how many digits keep names apart that are made in one millisecond.
        now: seconds since 1970; None is this moment.
    """
    milliseconds = int((time.time() if now is None else now) * 1000)
    shifts = range(5 * (_TIME_DIGITS - 1), -1, -5)
    return "".join(_DIGITS[milliseconds >> shift & 31] for shift in shifts) + "".join(secrets.choice(_DIGITS) for _ in range(random_digits))


def new_session_id() -> str:
    """A name for a conversation; short enough to be typed."""
    return new_id(4)


def new_message_id() -> str:
    """A name for a message; imports make thousands of them in a moment."""
    return new_id(7)


class Conversation:
    """A tree of messages, and which of its ends is looked at.

    Attributes:
        id: its name in the store.
        name: what the user calls it; empty where nobody has said.
        system: the system prompt, which stands before every way through the tree; None leaves it to the chat template.
        model: name of the model it was last held with.
        created: seconds since 1970.
        updated: likewise, of the last change.
    """

    def __init__(
        self, *, name: str = "", system: str | None = None, model: str = "", session_id: str | None = None, now: float | None = None
    ) -> None:
        self.id = session_id if session_id is not None else new_session_id()
        self.name = name
        self.system = system
        self.model = model
        self.created = time.time() if now is None else now
        self.updated = self.created
        self._nodes: dict[str, Node] = {}
        self._children: dict[str | None, list[str]] = {}
        self._leaf: str | None = None

    # --- looking --------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All messages, in the order they were added."""
        return tuple(self._nodes.values())

    @property
    def leaf(self) -> Node | None:
        """The message that the next one will follow."""
        return self._nodes[self._leaf] if self._leaf is not None else None

    @property
    def title(self) -> str:
        """The name, else the beginning of the first message; on one line."""
        first = next((node.content for node in self._nodes.values() if node.role == "user"), "")
        return " ".join(self.name.split()) or shortened(first)

    def node(self, node_id: str) -> Node:
        """A message by its id.

        Raises:
            InvalidRequestError: there is none.
        """
        if node_id not in self._nodes:
            raise InvalidRequestError(f"no message {node_id!r} in session {self.id}")
        return self._nodes[node_id]

    def path(self, node_id: str | None = None) -> tuple[Node, ...]:
        """The way from a root to a message, the message included; to the leaf if none is named."""
        node = self.leaf if node_id is None else self.node(node_id)
        way: list[Node] = []
        while node is not None:
            way.append(node)
            node = self._nodes[node.parent] if node.parent is not None else None
        return tuple(reversed(way))

    def siblings(self, node_id: str) -> tuple[Node, ...]:
        """All versions of a message, itself included, oldest first."""
        return tuple(self._nodes[child] for child in self._children[self.node(node_id).parent])

    def children(self, node_id: str | None) -> tuple[Node, ...]:
        """What follows a message, oldest first; None gives the first messages."""
        return tuple(self._nodes[child] for child in self._children.get(node_id, ()))

    def messages(self, node_id: str | None = None, fingerprint: str | None = None) -> tuple[ChatMessage, ...]:
        """What the model is sent: the system prompt and the way to a message.

        Args:
            node_id: the last message; None is the leaf.
            fingerprint: see `Node.message`.
        """
        return self.messages_of(self.path(node_id), fingerprint)

    def messages_of(self, path: Iterable[Node], fingerprint: str | None = None) -> tuple[ChatMessage, ...]:
        """The same of a way, or of a part of one."""
        head = (ChatMessage("system", self.system),) if self.system is not None else ()
        return (*head, *(node.message(fingerprint) for node in path))

    # --- growing --------------------------------------------------------------------------------------------------------

    def add(self, node: Node, *, look_at: bool = True) -> Node:
        """Puts a message into the tree.

        Args:
            node: the message; its parent must be there already.
            look_at: make it the leaf.

        Raises:
            InvalidRequestError: its id is taken, its parent is missing or its role unknown.
        """
        if node.id in self._nodes:
            raise InvalidRequestError(f"message {node.id!r} is there already")
        if node.parent is not None:
            self.node(node.parent)
        if node.role not in ROLES:
            raise InvalidRequestError(f"unknown role {node.role!r}; one of {', '.join(ROLES)}")
        self._nodes[node.id] = node
        self._children.setdefault(node.parent, []).append(node.id)
        self.updated = max(self.updated, node.created)
        if look_at:
            self._leaf = node.id
        return node

    def add_user(self, content: str, *, now: float | None = None) -> Node:
        """What the user says after the leaf."""
        return self.add(self.new_node("user", self._leaf, content, now))

    def add_assistant(self, content: str = "", *, parent: str | None = None, look_at: bool = True, now: float | None = None) -> Node:
        """An answer, to be filled by `update`.

        Args:
            content: its text so far.
            parent: the message it answers; None is the leaf. Answers to the same message are siblings.
            look_at: make it the leaf.
            now: seconds since 1970; None is this moment.
        """
        node = self.new_node("assistant", parent if parent is not None else self._leaf, content, now)
        return self.add(replace(node, state=NodeState.INTERRUPTED), look_at=look_at)

    def edit(self, node_id: str, content: str, *, now: float | None = None) -> Node:
        """Another version of a message, beside it. What followed the old one stays with the old one."""
        old = self.node(node_id)
        return self.add(self.new_node(old.role, old.parent, content, now))

    def update(self, node: Node) -> Node:
        """Exchanges a message for one with the same id and place: an answer that has grown."""
        if self.node(node.id).parent != node.parent:
            raise InvalidRequestError(f"message {node.id!r} cannot move")
        self._nodes[node.id] = node
        return node

    def branch(self, node_id: str | None) -> None:
        """Goes back: the next message will follow this one. None begins the conversation anew, beside what is there."""
        self._leaf = self.node(node_id).id if node_id is not None else None

    def switch(self, node_id: str) -> Node:
        """Looks at another version of a message, and at the newest that follows it.

        Returns:
            The leaf.
        """
        node = self.node(node_id)
        while following := self._children.get(node.id):
            node = self._nodes[following[-1]]
        self._leaf = node.id
        return node

    def question_of(self, node_id: str) -> Node:
        """The message that an answer is to; generating the answer again makes a sibling under it.

        Raises:
            InvalidRequestError: the message is no answer, or follows nothing.
        """
        node = self.node(node_id)
        if node.role != "assistant" or node.parent is None:
            raise InvalidRequestError(f"message {node_id!r} is no answer; only answers can be generated again or continued")
        return self._nodes[node.parent]

    def discard(self, node_id: str) -> None:
        """Takes back a message that nothing follows, as if it had never been said.

        Raises:
            InvalidRequestError: something follows it.
        """
        node = self.node(node_id)
        if self._children.get(node_id):
            raise InvalidRequestError(f"message {node_id!r} cannot be taken back: others follow it")
        del self._nodes[node_id]
        self._children[node.parent].remove(node_id)
        if self._leaf == node_id:
            self._leaf = node.parent

    @staticmethod
    def new_node(role: str, parent: str | None, content: str, now: float | None = None) -> Node:
        """A message that is in no tree yet."""
        return Node(id=new_message_id(), parent=parent, role=role, content=content, created=time.time() if now is None else now)


def shortened(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * _TITLE_LENGTH].split())
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1].rstrip()}…"
