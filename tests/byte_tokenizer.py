"""A tokenizer with one token a byte: id = byte, and a few special tokens from 256 on."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from chatpaged.chat_template import ChatTemplate
from chatpaged.engine.tokenizer import Tokenizer

START, END = 256, 257
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """The printable stand-ins that byte-level tokenizers use, by byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def byte_tokenizer() -> Tokenizer:
    """Makes the tokenizer; its end token is `<|end|>`."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in ("<|start|>", "<|end|>")])
    return Tokenizer(inner, {"eos_token": "<|end|>"})


def byte_template(tokenizer: Tokenizer) -> ChatTemplate:
    """A template in the manner of ChatML."""
    return ChatTemplate(TEMPLATE, tokenizer)
