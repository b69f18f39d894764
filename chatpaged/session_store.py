"""What a session needs of whatever keeps its conversation."""

from __future__ import annotations

from typing import Protocol

from chatpaged.conversation import Conversation, Node


class SessionStore(Protocol):
    """Keeps conversations while they grow. `Store` does so at once, `BackgroundStore` a moment later."""

    def add_session(self, *conversations: Conversation) -> None:
        """Keeps conversations, with all that is in them."""

    def add_message(self, conversation: Conversation, node: Node) -> None:
        """Keeps a message that was added to a conversation, and what the conversation looks at."""

    def update_message(self, node: Node) -> None:
        """Keeps what a message has become."""

    def update_session(self, conversation: Conversation) -> None:
        """Keeps system prompt, model and what is looked at."""
