"""Text to token ids and back, without transformers: `tokenizer.json` read by the tokenizers library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from chatpaged.errors import ModelError

_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)


class Tokenizer:
    """A model's tokenizer. Not thread-safe: it belongs to the engine thread.

    Attributes:
        settings: the contents of `tokenizer_config.json`.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, settings: dict[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self.settings = settings or {}
        self._added = tokenizer.get_added_tokens_decoder()
        self._hidden_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer:
        """Reads `tokenizer.json` and `tokenizer_config.json` of a model directory.

        Raises:
            ModelError: there is no `tokenizer.json`, or it is damaged.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"no tokenizer.json in {directory}")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, read_json(directory / "tokenizer_config.json"))

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Tokens that outside text must never become: special ones, and added ones that look like markup (`<think>`)."""
        return {
            token.content: token_id
            for token_id, token in self._added.items()
            if token.content and (token.special or _MARKER.fullmatch(token.content))
        }

    @cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Finds control tokens in text, the longest at each place. Matches nothing when there are none."""
        texts = sorted(self.control_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")

    def special_text(self, name: str) -> str | None:
        """Text of a special token by its name in `tokenizer_config.json`, such as `bos_token`."""
        value = self.settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The end token that the tokenizer's own settings name."""
        text = self.special_text("eos_token")
        token_id = self._tokenizer.token_to_id(text) if text else None
        return frozenset() if token_id is None else frozenset({token_id})

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts before plain text, such as the begin-of-sequence token."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start])
        return ()

    def encode_markup(self, text: str) -> list[int]:
        """Token ids of text that a chat template wrote: control tokens in it are what they say. Nothing is added around it."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of text from outside: whatever it contains, no control token comes out. Nothing is added around it."""
        if self.control_pattern.search(text) is None:
            return self.encode_markup(text)
        ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        return ids if self._control_ids.isdisjoint(ids) else self._encode_split(text)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self.control_tokens.values())

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """A copy that takes control tokens for ordinary text."""
        plain = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        # Only special tokens can be switched off, so the copy takes all control tokens for special ones.
        plain.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in self.control_tokens])
        plain.encode_special_tokens = True
        return plain

    def _encode_split(self, text: str) -> list[int]:
        """For vocabularies whose ordinary pieces include control tokens: cuts each of them in two before encoding."""
        ids: list[int] = []
        start = 0
        for match in self.control_pattern.finditer(text):
            ids += self._plain.encode(text[start : match.start() + 1], add_special_tokens=False).ids
            start = match.start() + 1
        ids += self._plain.encode(text[start:], add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(ids):
            raise ModelError("this tokenizer turns ordinary text into control tokens; it cannot be used safely")
        return ids

    def is_hidden(self, token_id: int) -> bool:
        """Whether a token is left out of decoded text."""
        return token_id in self._hidden_ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of token ids, special tokens left out. Broken UTF-8 comes out as U+FFFD."""
        visible = [token_id for token_id in token_ids if token_id not in self._hidden_ids]
        return str(self._tokenizer.decode(visible, skip_special_tokens=False))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model directory; empty if there is no such file.

    Raises:
        ModelError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value
