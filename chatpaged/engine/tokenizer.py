"""Text to token ids and back, without transformers: `tokenizer.json` read by the tokenizers library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import tokenizers

from chatpaged.engine.tokenizer_files import tokenizer_directory
from chatpaged.errors import InvalidRequestError, ModelError

_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)
# Gemma has tokens for the markup of web pages. Those are words of a text like any other, unless the settings give them a role.
_HTML = re.compile(
    r"</?(?:a|b|blockquote|body|caption|code|div|em|footer|h[1-6]|html|i|iframe|img|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|td|tfoot"
    r"|th|thead|tr|u|ul)>"
)
_BEFORE = "x"  # any text that does not join with a space after it
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# Noncharacters of Unicode first; private use only when a text contains every one of them.
_MARKS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Tokenizer:
    """A model's tokenizer. Not thread-safe: it belongs to the engine thread.

    Attributes:
        settings: the contents of `tokenizer_config.json`.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, settings: dict[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self.settings = settings or {}
        self._added = tokenizer.get_added_tokens_decoder()
        self._marked: tuple[str, tokenizers.Tokenizer] | None = None
        self._hidden_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer:
        """Reads `tokenizer.json` and `tokenizer_config.json` of a model directory.

        Raises:
            ModelError: there is no `tokenizer.json` and none can be made, or it is damaged.
        """
        place = tokenizer_directory(directory)
        path = place / "tokenizer.json"
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Where it was made from other files, transformers has added what these leave to its own classes.
        made = {} if place == directory else read_json(place / "tokenizer_config.json")
        return cls(tokenizer, made | read_json(directory / "tokenizer_config.json"))

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Tokens that outside text must never become: special ones, and added ones that look like a model's marks (`<think>`)."""
        named = {self.special_text(name) for name in _ROLES}
        return {
            token.content: token_id
            for token_id, token in self._added.items()
            if token.content and (token.special or token.content in named or _is_mark(token.content))
        }

    @cached_property
    def control_edges(self) -> str:
        """The characters with which control tokens begin and end, each once."""
        return "".join(sorted({text[end] for text in self.control_tokens for end in (0, -1)}))

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        texts = sorted(self.control_tokens, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, texts)) if texts else '(?!)'})")

    def split_control(self, text: str) -> list[str]:
        """Cuts text at the control tokens in it, the longest at each place: every second part is one."""
        return self._control_pattern.split(text)

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

    def encode(self, text: str) -> list[int]:
        """Token ids of text from outside: whatever it contains, no control token comes out. Nothing is added around it.

        Raises:
            InvalidRequestError: the text contains lone surrogates.
            ModelError: the tokenizer has an ordinary character for a control token.
        """
        return self.encode_parts([text])

    def encode_parts(self, parts: Sequence[str], *, continued: bool = False) -> list[int]:
        """Token ids of a text that is given in parts. Nothing is added around it.

        Args:
            parts: text from outside, which never becomes a control token, and control tokens in turn, as from `split_control`.
            continued: other text goes before it. Some tokenizers put a space before the first word of a text, but not within one.

        Raises:
            InvalidRequestError: the text contains lone surrogates.
            ModelError: the tokenizer has an ordinary character for a control token.
        """
        if continued and parts[0] and self._start_matters:
            ids = self.encode_parts([_BEFORE + parts[0], *parts[1:]])
            before = self.encode(_BEFORE)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        wanted = [self.control_tokens[part] for part in parts[1::2]]
        try:
            ids = list(self._tokenizer.encode("".join(parts), add_special_tokens=False).ids)
        except TypeError as error:
            raise InvalidRequestError("the text is not valid Unicode (a lone surrogate)") from error
        # The result is what counts: normalizers can make control tokens of texts that look different.
        return ids if self._control_in(ids) == wanted else self._encode_marked(parts, wanted)

    @cached_property
    def _start_matters(self) -> bool:
        before = self.encode(_BEFORE)
        return any(self.encode(_BEFORE + text) != [*before, *self.encode(text)] for text in ("\n", " "))

    def _control_in(self, ids: list[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self._control_ids]

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self.control_tokens.values())

    def _encode_marked(self, parts: Sequence[str], wanted: list[int]) -> list[int]:
        """Encodes with other names for the control tokens that are meant, so that all that read like one are text."""
        mark, tokenizer = self._marked_tokenizer(parts)
        originals = {tokenizer.token_to_id(f"{mark}{token_id}{mark}"): token_id for token_id in wanted}
        cut = f"{mark}{mark}"
        cut_id = tokenizer.token_to_id(cut)
        text = "".join(f"{mark}{self.control_tokens[part]}{mark}" if i % 2 else part for i, part in enumerate(parts))
        while True:
            encoding = tokenizer.encode(text, add_special_tokens=False)
            spans = [span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id in self._control_ids]
            if not spans:
                return [originals.get(token_id, token_id) for token_id in encoding.ids if token_id != cut_id]
            # The ordinary vocabulary has control tokens in it: they are cut in two, and the halves encoded apart.
            for start, end in reversed(spans):
                if end - start < 2:
                    raise ModelError("this tokenizer turns ordinary characters into control tokens; it cannot be used safely")
                text = f"{text[: start + 1]}{cut}{text[start + 1 :]}"

    def _marked_tokenizer(self, texts: Sequence[str]) -> tuple[str, tokenizers.Tokenizer]:
        """A copy that takes control tokens for ordinary text and knows them by their number between two marks, and the mark."""
        if self._marked is None or any(self._marked[0] in text for text in texts):
            # Not the first, which texts about such things hold: making the copy takes up to a second.
            mark = unused_characters(texts, 9)[-1]
            copy = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
            # Only special tokens can be switched off, so the copy takes all control tokens for special ones.
            copy.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in self.control_tokens])
            copy.encode_special_tokens = True
            originals = [(token_id, self._added[token_id]) for token_id in self._control_ids]
            copy.add_tokens(
                [tokenizers.AddedToken(f"{mark}{mark}", normalized=False)]
                + [
                    tokenizers.AddedToken(f"{mark}{token_id}{mark}", lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
                    for token_id, token in originals
                ]
            )
            self._marked = (mark, copy)
        return self._marked

    def is_hidden(self, token_id: int) -> bool:
        """Whether a token is left out of decoded text."""
        return token_id in self._hidden_ids

    def is_added(self, token_id: int) -> bool:
        """Whether a token stands beside the vocabulary proper, as control tokens do."""
        return token_id in self._added

    def piece(self, token_id: int) -> str:
        """A token as the vocabulary has it; empty for an id that has none."""
        return self._tokenizer.id_to_token(token_id) or ""

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        return max(len(piece.encode()) for piece in self._tokenizer.get_vocab(with_added_tokens=True))

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether the vocabulary spells bytes as printable characters, as GPT-2's does."""
        return "ByteLevel" in repr(self._tokenizer.decoder)

    def is_byte(self, token_id: int) -> bool:
        """Whether a token stands for a single byte of a character that the vocabulary lacks (`<0xE3>`)."""
        return token_id in self._byte_ids

    @cached_property
    def _byte_ids(self) -> frozenset[int]:
        if "ByteFallback" not in repr(self._tokenizer.decoder):
            return frozenset()
        ids = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(token_id for token_id in ids if token_id is not None)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of token ids, special tokens left out. Broken UTF-8 comes out as U+FFFD."""
        visible = [token_id for token_id in token_ids if token_id not in self._hidden_ids]
        return str(self._tokenizer.decode(visible, skip_special_tokens=False))

    def transcribe(self, token_ids: Iterable[int]) -> str:
        """Text of token ids, special tokens written out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _is_mark(text: str) -> bool:
    return _MARKER.fullmatch(text) is not None and _HTML.fullmatch(text) is None


def unused_characters(texts: Iterable[str], count: int) -> list[str]:
    """Characters that occur in none of the texts."""
    used = set().union(*texts)
    return list(islice((mark for mark in map(chr, chain(*_MARKS)) if mark not in used), count))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model directory; empty if there is no such file.

    Raises:
        ModelError: the file is not a JSON object.
    """
    try:
        if not path.is_file():
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value
