"""Messages of a conversation, and the prompt they become."""

from __future__ import annotations

from dataclasses import dataclass

from chatpaged.errors import InvalidRequestError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    A reply that this application generated keeps its ids; `ChatTemplate.reply` makes such a message. In the sequence that it was
    generated in, `reasoning_ids` and `token_ids` followed each other directly.

    Attributes:
        role: system, user, assistant or tool.
        content: the text, taken as it is.
        token_ids: for an assistant's message, the ids it was generated as; they stand in the prompt in place of the text.
        reasoning: for an assistant's message, its thinking, without markers.
        reasoning_ids: the ids between the header of a reply and the answer: the thinking with its markers, be they written by
            the model or by the template (also those of a thinking block that was left empty).
    """

    role: str
    content: str
    token_ids: tuple[int, ...] | None = None
    reasoning: str = ""
    reasoning_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidRequestError(f"unknown role {self.role!r}; one of {', '.join(ROLES)}")
        if self.role != "assistant" and (self.token_ids is not None or self.reasoning or self.reasoning_ids):
            raise InvalidRequestError(f"only an assistant's message has token ids or reasoning, not one of role {self.role!r}")
        if self.reasoning_ids and self.token_ids is None:
            raise InvalidRequestError("a message with the ids of its reasoning needs those of its answer")


@dataclass(frozen=True, slots=True)
class ReplySpan:
    """Where the ids of an earlier reply stand in a prompt.

    Attributes:
        index: which message it is.
        start: position of its first id, reasoning included.
        answer: position of the answer's first id; equal to `start` where no reasoning stands in the prompt.
        end: position after its last id.
    """

    index: int
    start: int
    answer: int
    end: int


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt ready for the engine.

    Attributes:
        text: what it reads like, control tokens written out.
        token_ids: what the model gets.
        prefill: the beginning of the answer that the prompt ends with; the whole answer is this and what the model adds.
        prefill_ids: its ids, the last ones of `token_ids`.
        lead_ids: what the template writes before an answer and leaves out of past ones, such as the opening of a thinking block.
        in_reasoning: the prompt ends within a thinking block: the model goes on thinking.
        system_merged: the template has no system role; the system prompt was put before the first message of the user.
        replies: where the ids of earlier replies stand.
    """

    text: str
    token_ids: tuple[int, ...]
    prefill: str = ""
    prefill_ids: tuple[int, ...] = ()
    lead_ids: tuple[int, ...] = ()
    in_reasoning: bool = False
    system_merged: bool = False
    replies: tuple[ReplySpan, ...] = ()
