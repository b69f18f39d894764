"""Token ids to text while they come in."""

from __future__ import annotations

from chatpaged.engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns a growing list of ids into text, piece by piece.

    The pieces join to the decoded text of all ids. A character whose bytes are not all there yet is held back; it comes out
    as U+FFFD only once it can never be completed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoding starts anew at a place where text was complete, with the ids before it as context: decoders treat the
        # first token of a text differently (a leading space may be dropped).
        self._context: list[int] = []
        self._pending: list[int] = []
        self._num_emitted = 0

    def append(self, token_id: int) -> str:
        """Takes one more token; returns the text that has become certain."""
        if self._tokenizer.is_hidden(token_id):
            return ""
        self._pending.append(token_id)
        if self._tokenizer.is_byte(token_id):
            return ""  # what a run of single bytes reads like is certain at its end only
        text = self._tokenizer.decode(self._context + self._pending)
        stable = text.removesuffix(REPLACEMENT)
        piece = stable[self._num_emitted :]
        if stable == text:
            self._context, self._pending = self._pending, []
            self._num_emitted = len(self._tokenizer.decode(self._context))
        else:
            self._num_emitted += len(piece)
        return piece

    def split(self) -> str:
        """The rest so far; what follows is decoded apart from it."""
        piece = self.flush()
        self._context, self._pending, self._num_emitted = [], [], 0
        return piece

    def flush(self) -> str:
        """The rest, with U+FFFD for what is incomplete."""
        piece = self._tokenizer.decode(self._context + self._pending)[self._num_emitted :]
        self._num_emitted += len(piece)
        return piece
