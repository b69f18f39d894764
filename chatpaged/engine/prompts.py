"""What a caller may give as a prompt, and how it becomes token ids."""

from __future__ import annotations

from collections.abc import Sequence

from chatpaged.chat_template import ChatMessage, ChatTemplate, RenderedPrompt
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.errors import InvalidRequestError, ModelError

Prompt = str | Sequence[int] | Sequence[ChatMessage] | RenderedPrompt
"""Plain text, token ids, a conversation that the chat template turns into ids, or what has been turned into ids already."""


NO_TEMPLATE = "no chat template; use --template FILE or --raw-prompt"


def render_prompt(prompt: Prompt, tokenizer: Tokenizer, chat_template: ChatTemplate | None) -> RenderedPrompt:
    """Turns a prompt into token ids. See `LLMEngine.render`."""
    if isinstance(prompt, RenderedPrompt):
        rendered = prompt
    elif isinstance(prompt, str):
        rendered = raw_prompt(prompt, tokenizer)
    elif all(isinstance(item, ChatMessage) for item in prompt):
        rendered = _render_messages([item for item in prompt if isinstance(item, ChatMessage)], chat_template)
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


def _render_messages(messages: list[ChatMessage], chat_template: ChatTemplate | None) -> RenderedPrompt:
    if not messages:
        raise InvalidRequestError("empty prompt")
    if chat_template is None:
        raise ModelError(NO_TEMPLATE)
    return chat_template.render(messages)
