from __future__ import annotations

from pathlib import Path

import pytest

from chatpaged.engine.token_bytes import token_bytes
from chatpaged.engine.tokenizer import Tokenizer
from tests.byte_tokenizer import END, byte_tokenizer
from tests.small_tokenizers import byte_fallback, unigram


def test_byte_level_vocabularies() -> None:
    tokenizer = byte_tokenizer()
    assert [token_bytes(byte, tokenizer) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert token_bytes(END, tokenizer) == b"<|end|>"
    assert token_bytes(10_000, tokenizer) == b""


def test_vocabularies_with_single_bytes() -> None:
    tokenizer = byte_fallback()
    assert b"".join(token_bytes(token_id, tokenizer) for token_id in (byte + 1 for byte in "😀".encode())) == "😀".encode()
    assert token_bytes(tokenizer.vocab_size - 2, tokenizer) == b" the"


def test_spaces_of_unigram_vocabularies() -> None:
    tokenizer = unigram()
    assert b"".join(token_bytes(token_id, tokenizer) for token_id in tokenizer.encode("the a")) == b" the a"


@pytest.mark.starter
def test_bytes_of_a_real_tokenizer_join_to_its_text(starter_model: Path) -> None:
    tokenizer = Tokenizer.from_directory(starter_model)
    for text in ("Hello there, world!\n\n  x = 1", "日本語 😀 🇫🇷 ďábelské", "\t\r\n"):
        assert b"".join(token_bytes(token_id, tokenizer) for token_id in tokenizer.encode(text)).decode() == text
    assert token_bytes(2, tokenizer) == b"<|im_end|>"
    assert token_bytes(10813, tokenizer) == "😀".encode()[:2]
