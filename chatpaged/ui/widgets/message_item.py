"""A message and what can be done with it, as plain data and as what is posted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message

from chatpaged.conversation import Node

ActionName = Literal["copy", "copy_code", "edit", "regenerate", "continue", "branch", "alternatives", "previous", "next"]


@dataclass(frozen=True)
class MessageItem:
    """A message of the way that is shown.

    Attributes:
        node: the message.
        position: which of its siblings it is, counted from 1.
        siblings: how many there are, itself included.
    """

    node: Node
    position: int = 1
    siblings: int = 1


class MessageAction(Message):
    """Somebody wants something done with a message.

    Attributes:
        node_id: the message.
        action: what.
        text: exactly what is to be copied or edited.
    """

    def __init__(self, node_id: str, action: ActionName, text: str = "") -> None:
        super().__init__()
        self.node_id = node_id
        self.action: ActionName = action
        self.text = text


@dataclass(frozen=True)
class Offer:
    """An action as it stands in the header of a message."""

    action: str
    key: str
    label: str


def offers(item: MessageItem, *, growing: bool, has_code: bool = False) -> tuple[Offer, ...]:
    """What can be done with a message, in the order it is shown."""
    node = item.node
    is_answer = node.role == "assistant"
    found = [Offer("copy", "y", "copy")]
    if has_code:
        found.append(Offer("copy_code", "c", "code"))
    if growing:
        return tuple(found)
    found.append(Offer("edit", "e", "edit"))
    if is_answer:
        found.append(Offer("regenerate", "r", "again"))
        if node.can_continue:
            found.append(Offer("continue", "o", "go on"))
    found.append(Offer("branch", "b", "branch"))
    if is_answer:
        found.append(Offer("alternatives", "a", "alternatives"))
    return tuple(found)
