"""Prompts that are longer than the context, cut where the user has said so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatpaged.errors import PromptTooLongError

if TYPE_CHECKING:
    from chatpaged.engine.tokenizer import Tokenizer

PLACES = ("start", "middle", "end")
_KEPT_BEFORE = {"start": 0.0, "middle": 0.5, "end": 1.0}
_MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class CutText:
    """A text that has been shortened, and how many of its tokens are left out."""

    text: str
    num_cut: int


def cut_text(text: str, place: str, limit: int, tokenizer: Tokenizer, num_tokens_of: Callable[[str], int]) -> CutText:
    """Shortens a text until the prompt with it fits.

    Args:
        text: the text.
        place: what to leave out: its start, middle or end.
        limit: tokens that the whole prompt may have.
        tokenizer: the model's.
        num_tokens_of: tokens of the whole prompt with a given text in it.

    Raises:
        PromptTooLongError: what surrounds the text is too long by itself.
    """
    excess = num_tokens_of(text) - limit
    if excess <= 0:
        return CutText(text, 0)
    ids = tokenizer.encode(text)
    num_cut = excess
    for _ in range(_MAX_ROUNDS):
        if num_cut >= len(ids):
            break
        kept = len(ids) - num_cut
        before = round(kept * _KEPT_BEFORE[place])
        # A character of several tokens may lie on an edge.
        head = tokenizer.decode(ids[:before]).rstrip("\ufffd")
        tail = tokenizer.decode(ids[before + num_cut :]).lstrip("\ufffd") if before < kept else ""
        shorter = f"{head}\n[... {num_cut} tokens left out ...]\n{tail}".strip("\n")
        over = num_tokens_of(shorter) - limit
        if over <= 0:
            return CutText(shorter, num_cut)
        num_cut += over
    raise PromptTooLongError(f"the prompt does not fit {limit} tokens even without its text; use a shorter system prompt or answer")
