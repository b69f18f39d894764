"""What no waiting would help: requests that can never be served."""

from __future__ import annotations

from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, PromptTooLongError


def check_prompt_fits(num_tokens: int, *, context: int | None, num_blocks: int | None, block_size: int) -> None:
    """Refuses a prompt that no waiting would help. What is None is not known yet, and not checked.

    Args:
        num_tokens: length of the prompt.
        context: longest sequence in tokens, prompt and answer.
        num_blocks: usable blocks of the pool.
        block_size: tokens a block holds.

    Raises:
        PromptTooLongError: the prompt leaves no room for an answer in the context, or can never fit the KV pool.
    """
    if context is not None and num_tokens > context:
        raise PromptTooLongError(f"prompt is too long for the context: {num_tokens} tokens > {context}; use a shorter prompt")
    if num_tokens == context:
        raise PromptTooLongError(f"prompt fills the context of {context} tokens and leaves no room for an answer; use a shorter prompt")
    needed = -(-num_tokens // block_size)
    if num_blocks is not None and needed > num_blocks:
        raise PromptTooLongError(
            f"prompt needs {needed} blocks ({num_tokens} tokens), pool has {num_blocks} ({num_blocks * block_size}); "
            f"use --kv-blocks ≥ {needed + 1} or a shorter prompt"
        )


def check_request(params: SamplingParams, *, priority: object, salt: object, vocab_size: int) -> None:
    """Refuses what would fail in a later step, where it would end the engine. Annotations bind nobody.

    Args:
        params: sampling parameters.
        priority: of the request.
        salt: likewise.
        vocab_size: token ids that the model knows.

    Raises:
        InvalidRequestError: a value is of the wrong kind, or a token id is none of the model's.
    """
    if not isinstance(priority, int) or not isinstance(salt, bytes):
        raise InvalidRequestError(f"priority is a whole number and salt is bytes, not {priority!r} and {salt!r}")
    for name, token_ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        unknown = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
        if unknown:
            raise InvalidRequestError(f"token id {unknown[0]} in {name} is not between 0 and {vocab_size - 1}")
