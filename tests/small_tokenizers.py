"""Tokenizers with a handful of tokens, each with one trait that makes control tokens hard to tell from text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from chatpaged.engine.tokenizer import Tokenizer

# The starter's vocabulary lacks some bytes: six control characters, and what begins characters that do not exist yet.
STARTER_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF)
    | st.characters(min_codepoint=0xF0000, max_codepoint=0x10FFFF)
)
UNIGRAM_PIECES = ("<unk>", "<s>", "</s>", *(chr(code) for code in range(ord("!"), 127)), "▁", "▁a", "▁the")


def unigram(*, prepend: str = "first", settings: dict[str, Any] | None = None) -> Tokenizer:
    """In the manner of T5: `</s>` is an ordinary piece of the vocabulary as well, and text is normalized (NFKC) before.

    Args:
        prepend: which parts of a text get a space in front: first, always, never.
        settings: contents of `tokenizer_config.json`.
    """
    pieces = [(piece, -2.0 - 0.01 * i if len(piece) > 1 else -6.0) for i, piece in enumerate(UNIGRAM_PIECES)]
    inner = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    inner.decoder = decoders.Metaspace(prepend_scheme=prepend, split=False)
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")])
    return Tokenizer(inner, settings)


def byte_fallback() -> Tokenizer:
    """In the manner of Llama 2: what the vocabulary lacks is spelled in single bytes, which are ids 1 to 256."""
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for text in ("▁", "a", "é", "▁the", "▁b"):
        vocabulary[text] = len(vocabulary)
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))  # noqa: S106 - no password
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(inner)


def word_level(*words: str, special: tuple[str, ...] = ("[CLS]", "[SEP]")) -> Tokenizer:
    """In the manner of early BERT-like models: whole words, the control tokens among them."""
    vocabulary = {word: i for i, word in enumerate(("[UNK]", *special, *words))}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - no password
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in special])
    return Tokenizer(inner)


def extended(directory: Path, *tokens: tokenizers.AddedToken, settings: dict[str, Any] | None = None) -> Tokenizer:
    """A real tokenizer with more added tokens."""
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    inner.add_tokens(list(tokens))
    return Tokenizer(inner, settings)


def with_bos(directory: Path) -> Tokenizer:
    """A real tokenizer that puts its begin token in front of every text, as those of Llama 3 and Gemma do."""
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    inner.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|> $B", special_tokens=[("<|endoftext|>", 0)]
    )
    return Tokenizer(inner, {"bos_token": "<|endoftext|>"})
