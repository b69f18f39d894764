"""Append-only history: the next prompt of a conversation, and what of the last sequence is still good.

The ids that are in the KV pool are those of the last prompt and of the reply to it. A new prompt that begins with the same ids finds
all of them there. Where it does not, the first difference is named, with its reason and with how much must be read again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chatpaged.messages import ChatMessage, RenderedPrompt, ReplySpan

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.chat_template import ChatTemplate


class Reason(enum.Enum):
    """Why a prompt does not begin with the ids of the last sequence, or why these are not in the KV pool any more."""

    REASONING_DROPPED = "reasoning dropped"
    REASONING_RESTORED = "reasoning put back"
    SYSTEM_CHANGED = "system prompt changed"
    MESSAGE_EDITED = "message edited"
    MESSAGES_LEFT_OUT = "messages left out"
    REPLY_REWRITTEN = "reply without its token ids"
    TEMPLATE_CHANGED = "template changed"
    ARGUMENTS_CHANGED = "template arguments changed"
    TEMPLATE_TEXT = "the template writes something else, such as the date"
    MODEL_CHANGED = "model changed"
    ENGINE_STARTED = "engine started anew"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a prompt leaves the ids of the last sequence.

    Attributes:
        position: the first token that differs.
        reason: why.
        message: number of the message that is the cause, from 0; None if none is.
        reread: tokens after the difference that stand for messages which had been read already. New messages are not counted.
    """

    position: int
    reason: Reason
    message: int | None
    reread: int

    def __str__(self) -> str:
        where = f" (message {self.message + 1})" if self.message is not None and self.reason is Reason.MESSAGE_EDITED else ""
        return f"{self.reason.value}{where}: re-read {self.reread} token{'' if self.reread == 1 else 's'}"


@dataclass(frozen=True)
class Turn:
    """A prompt and the reply to it: one sequence as it stands in the KV pool.

    Attributes:
        messages: what the prompt was made from.
        prompt: the prompt.
        output_ids: the reply as it was generated, without an end token.
        reply: the same as a message.
        source: the template.
        arguments: what the template was given besides the messages.
    """

    messages: tuple[ChatMessage, ...]
    prompt: RenderedPrompt
    output_ids: tuple[int, ...]
    reply: ChatMessage
    source: str
    arguments: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        template: ChatTemplate,
        messages: Sequence[ChatMessage],
        prompt: RenderedPrompt,
        output_ids: Sequence[int],
        arguments: Mapping[str, object] | None = None,
    ) -> Turn:
        """Notes a turn.

        Args:
            template: what rendered the prompt.
            messages: what it was rendered from.
            prompt: what came out.
            output_ids: what was generated, without an end token; of a cancelled reply, what there is of it.
            arguments: as they were given to the template.
        """
        ids = tuple(output_ids)
        return cls(tuple(messages), prompt, ids, template.reply(prompt, ids), template.source, dict(arguments or {}))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of the sequence."""
        return (*self.prompt.token_ids, *self.output_ids)

    @property
    def history(self) -> tuple[ChatMessage, ...]:
        """The messages, with the reply."""
        return (*self.messages, self.reply)

    @property
    def spans(self) -> tuple[ReplySpan, ...]:
        """Where the replies stand in the sequence, the last one included."""
        end = len(self.token_ids)
        answer = end - len(self.reply.token_ids or ())
        start = max(0, answer - len(self.reply.reasoning_ids))
        return (*self.prompt.replies, ReplySpan(len(self.messages), start, answer, end))


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """A prompt that follows a turn.

    Attributes:
        prompt: what the model gets.
        kept: how many of its first tokens are those of the last sequence.
        difference: where and why it leaves them; None where it begins with all of them, or is itself their beginning.
    """

    prompt: RenderedPrompt
    kept: int
    difference: Difference | None


def next_prompt(
    template: ChatTemplate,
    messages: Sequence[ChatMessage],
    previous: Turn | None,
    *,
    arguments: Mapping[str, object] | None = None,
    prefill: str = "",
    keep_reasoning: bool = False,
) -> NextPrompt:
    """Builds the next prompt of a conversation and compares it with the last sequence.

    Replies stand in it with the ids they were generated as, so that it begins with the last sequence unless something has changed.

    Args:
        template: the model's.
        messages: the whole conversation; replies as `Turn.reply` gave them.
        previous: the turn before; None if there is none.
        arguments: see `ChatTemplate.render`.
        prefill: likewise.
        keep_reasoning: keep the thinking of earlier replies, which a template may leave out: then nothing has to be read again.

    Raises:
        InvalidRequestError: see `ChatTemplate.render`.
    """
    prompt = template.render(messages, arguments=arguments, prefill=prefill, keep_reasoning=keep_reasoning)
    if previous is None:
        return NextPrompt(prompt, 0, None)
    old = previous.token_ids
    kept = common_prefix(old, prompt.token_ids)
    if kept in (len(old), len(prompt.token_ids)):
        return NextPrompt(prompt, kept, None)
    reason, message = _reason(previous, messages, prompt, kept, source=template.source, arguments=dict(arguments or {}))
    return NextPrompt(prompt, kept, Difference(kept, reason, message, _reread(previous, messages, prompt, kept)))


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common from their beginning on."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def _reread(previous: Turn, messages: Sequence[ChatMessage], prompt: RenderedPrompt, kept: int) -> int:
    """Tokens from the difference to the end of the last reply that was there before."""
    known = [span.end for span in prompt.replies if messages[span.index] in previous.history]
    return max(0, max(known, default=kept) - kept)


def _reason(
    previous: Turn,
    messages: Sequence[ChatMessage],
    prompt: RenderedPrompt,
    kept: int,
    *,
    source: str,
    arguments: Mapping[str, object],
) -> tuple[Reason, int | None]:
    changed = _changed_message(previous.history, messages)
    thought = _span_of_thinking(previous.spans, kept)
    if source != previous.source:
        return Reason.TEMPLATE_CHANGED, None
    if thought is not None and (changed is None or thought < changed[1]):
        return Reason.REASONING_DROPPED, thought
    restored = _span_of_thinking(prompt.replies, kept)
    if restored is not None and (changed is None or restored < changed[1]):
        return Reason.REASONING_RESTORED, restored
    if changed is not None:
        return changed
    if arguments != previous.arguments:
        return Reason.ARGUMENTS_CHANGED, None
    return Reason.TEMPLATE_TEXT, None


def _span_of_thinking(spans: Iterable[ReplySpan], position: int) -> int | None:
    """Number of the message whose thinking begins or goes on at a position."""
    return next((span.index for span in spans if span.start <= position < span.answer), None)


def _changed_message(old: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> tuple[Reason, int] | None:
    """The first message that is not what it was."""
    if [message for message in old if message.role == "system"] != [message for message in new if message.role == "system"]:
        first = next((i for i, message in enumerate(new) if message.role == "system"), 0)
        return Reason.SYSTEM_CHANGED, first
    for i, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            if (before.role, before.content) == (after.role, after.content) and after.token_ids is None:
                return Reason.REPLY_REWRITTEN, i
            left_out = after in old[i + 1 :]
            return (Reason.MESSAGES_LEFT_OUT if left_out else Reason.MESSAGE_EDITED), i
    return None
