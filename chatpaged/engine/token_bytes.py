"""What a single token stands for, in bytes: it may be a part of a character only."""

from __future__ import annotations

from functools import cache

from chatpaged.engine.tokenizer import Tokenizer


def token_bytes(token_id: int, tokenizer: Tokenizer) -> bytes:
    """Bytes of a token; of a control token its name."""
    piece = tokenizer.piece(token_id)
    if tokenizer.is_added(token_id):
        return piece.encode()
    if tokenizer.is_byte(token_id):
        return bytes([int(piece[3:5], 16)])
    if tokenizer.is_byte_level:
        table = _byte_level_table()
        # A character that stands for no byte is there as itself.
        return b"".join(bytes([table[c]]) if c in table else c.encode() for c in piece)
    return piece.replace("▁", " ").encode()


@cache
def _byte_level_table() -> dict[str, int]:
    """The characters that stand for bytes in vocabularies of GPT-2's kind: printable ones for themselves, others in order from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(spare)}
