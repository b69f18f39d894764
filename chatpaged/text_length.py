"""Texts that are far too long for a model, found out before anything expensive is done with them."""

from __future__ import annotations

from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.errors import PromptTooLongError

_MARGIN = 4  # normalizers make some texts shorter
_WORTH_COUNTING = 4
"""Characters a token of the context, from which a text is counted by itself first: to put it into a template takes longer."""


def check_length(text: str, tokenizer: Tokenizer, context: int) -> None:
    """Refuses a text that cannot fit whatever its tokens are. To encode it, just to count them, would take minutes and gigabytes.

    Raises:
        PromptTooLongError: it is far longer than the context would be in the longest tokens that there are.
    """
    least = len(text.encode(errors="replace")) // (tokenizer.longest_piece * _MARGIN)
    if least > context:
        raise PromptTooLongError(f"prompt is far too long for the context: more than {least} tokens > {context}; use a shorter prompt")


def check_counted(text: str, tokenizer: Tokenizer, context: int) -> None:
    """The same, and a long text is counted. It may take a second.

    Raises:
        PromptTooLongError: it does not fit by itself.
    """
    check_length(text, tokenizer, context)
    if len(text) > _WORTH_COUNTING * context and (tokens := len(tokenizer.encode(text))) > context:
        raise PromptTooLongError(f"prompt is too long for the context: {tokens} tokens > {context}; use a shorter prompt")
