"""What widgets ask the main screen to do."""

from __future__ import annotations

from textual.message import Message


class ChatRequest(Message):
    """Something is wanted of a chat."""

    def __init__(self, chat_id: str) -> None:
        super().__init__()
        self.chat_id = chat_id


class OpenChat(ChatRequest):
    """A chat is to be looked at."""


class OpenBeside(ChatRequest):
    """A chat is to be looked at beside the one in view."""


class RenameChat(ChatRequest):
    """A chat is to get another name."""


class PinChat(ChatRequest):
    """A chat is to stay at the top of the list, or not any more."""


class DeleteChat(ChatRequest):
    """A chat is to be deleted."""


class UndeleteChat(Message):
    """What was deleted last is to come back."""


class NewChat(Message):
    """A chat is to be begun."""


class FilterChats(Message):
    """Only some titles are to be listed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class FindText(Message):
    """A text is to be looked for in all messages."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
