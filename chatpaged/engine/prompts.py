"""What a caller may give as a prompt, and how it becomes token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.messages import ChatMessage, RenderedPrompt

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.chat_template import ChatTemplate
    from chatpaged.engine.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[ChatMessage] | RenderedPrompt
"""Plain text, token ids, a conversation that the chat template turns into ids, or what has been turned into ids already."""


NO_TEMPLATE = "no chat template; use --template FILE or --raw-prompt"


def render_prompt(
    prompt: Prompt,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    *,
    arguments: Mapping[str, object] | None = None,
    prefill: str = "",
    keep_reasoning: bool = False,
) -> RenderedPrompt:
    """Turns a prompt into token ids.

    Args:
        prompt: text (see `raw_prompt`), ids, messages, or what has been rendered already.
        tokenizer: the model's.
        chat_template: the model's; needed for messages.
        arguments: for messages, see `ChatTemplate.render`.
        prefill: likewise.
        keep_reasoning: likewise.

    Raises:
        InvalidRequestError: the prompt is empty, the template refuses the messages, or options for messages were given without any.
        ModelError: messages were given, but there is no template.
    """
    if isinstance(prompt, RenderedPrompt):
        return prompt
    messages = not isinstance(prompt, str) and all(isinstance(item, ChatMessage) for item in prompt)
    if (arguments or prefill) and not messages:
        raise InvalidRequestError("a prompt without a chat template takes no template arguments and no prefill")
    if isinstance(prompt, str):
        rendered = raw_prompt(prompt, tokenizer)
    elif messages:
        conversation = [item for item in prompt if isinstance(item, ChatMessage)]
        rendered = _template(conversation, chat_template).render(
            conversation, arguments=arguments, prefill=prefill, keep_reasoning=keep_reasoning
        )
    else:
        ids = tuple(item for item in prompt if isinstance(item, int))
        if len(ids) != len(prompt):
            raise InvalidRequestError("a prompt is text, a list of token ids or a list of ChatMessage")
        known = (token_id for token_id in ids if 0 <= token_id < tokenizer.vocab_size)
        rendered = RenderedPrompt(tokenizer.transcribe(known), ids)
    if not rendered.token_ids:
        raise InvalidRequestError("empty prompt")
    return rendered


def raw_prompt(text: str, tokenizer: Tokenizer) -> RenderedPrompt:
    """Text as it is, without a template: the tokenizer's begin token, once, and the text. What reads like a special token is text."""
    return RenderedPrompt(text, (*tokenizer.leading_ids, *tokenizer.encode(text)) if text else ())


def _template(messages: list[ChatMessage], chat_template: ChatTemplate | None) -> ChatTemplate:
    if not messages:
        raise InvalidRequestError("empty prompt")
    if chat_template is None:
        raise ModelError(NO_TEMPLATE)
    return chat_template
