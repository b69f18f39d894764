"""What no waiting would help: prompts that can never be served."""

from __future__ import annotations

from chatpaged.errors import PromptTooLongError


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
