"""Messages to token ids: injection-safe, and append-only for what a model has said itself.

The model's chat template is rendered with two kinds of marks in it, characters that occur in no message:

- Inside message texts a guard follows each character that could begin a control token and precedes each that could end
  one. After rendering, whatever still matches a control token was written by the template; all else is encoded as text.
- A reply that comes with the ids it was generated as is replaced by a placeholder. The ids take its place afterwards: a
  reply is never encoded anew, so the keys and values computed for it stay valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from chatpaged.engine.tokenizer import Tokenizer, read_json
from chatpaged.errors import InvalidRequestError, ModelError

ROLES = ("system", "user", "assistant", "tool")
# Noncharacters of Unicode first; private use only when a text contains every one of them.
_MARKS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Attributes:
        role: system, user, assistant or tool.
        content: the text, taken as it is.
        token_ids: for an assistant's message, the ids it was generated as; they stand in the prompt in place of the text.
    """

    role: str
    content: str
    token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidRequestError(f"unknown role {self.role!r}; one of {', '.join(ROLES)}")
        if self.token_ids is not None and self.role != "assistant":
            raise InvalidRequestError(f"only an assistant's message has token ids, not one of role {self.role!r}")


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt ready for the engine.

    Attributes:
        text: what it reads like, control tokens written out.
        token_ids: what the model gets.
    """

    text: str
    token_ids: tuple[int, ...]


class ChatTemplate:
    """A model's chat template together with its tokenizer."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compiles a template.

        Raises:
            ModelError: the template has a syntax error.
        """
        self._tokenizer = tokenizer
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template cannot be used: {error}") from error

    @classmethod
    def from_directory(cls, directory: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model directory: `chat_template.jinja`, else the one in its settings; None if it has none."""
        path = directory / "chat_template.jinja"
        if path.is_file():
            return cls(path.read_text(encoding="utf-8"), tokenizer)
        source = tokenizer.settings.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
        if isinstance(source, list):  # several under names
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
        return cls(source, tokenizer) if isinstance(source, str) else None

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> RenderedPrompt:
        """Builds the prompt for the next reply.

        Args:
            messages: the conversation, oldest first.
            add_generation_prompt: end with the header of an assistant's message.

        Raises:
            InvalidRequestError: the template refuses the messages (a role it does not know, wrong order), or there are none.
        """
        if not messages:
            raise InvalidRequestError("no messages")
        guard, opening, closing = _unused_characters(messages, 3)
        rendered = self._render_marked(messages, guard, opening, closing, add_generation_prompt=add_generation_prompt)
        text: list[str] = []
        ids: list[int] = []
        # Every second piece is the number of a message whose ids stand there.
        for i, piece in enumerate(re.split(f"{opening}([0-9]+){closing}", rendered)):
            if i % 2:
                message = messages[int(piece)]
                text.append(message.content)
                ids += message.token_ids or ()
            else:
                text.append(piece.replace(guard, ""))
                ids += self._encode(piece, guard)
        return RenderedPrompt("".join(text), tuple(ids))

    def _render_marked(
        self, messages: Sequence[ChatMessage], guard: str, opening: str, closing: str, *, add_generation_prompt: bool
    ) -> str:
        marked = [
            {
                "role": message.role,
                "content": self._guarded(message.content, guard) if message.token_ids is None else f"{opening}{i}{closing}",
            }
            for i, message in enumerate(messages)
        ]
        special = {name: self._tokenizer.special_text(name) or "" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        try:
            return self._template.render(messages=marked, add_generation_prompt=add_generation_prompt, tools=None, **special)
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"the model's chat template refuses these messages: {error}") from error

    @cached_property
    def _ends(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Finds characters that begin, and that end, a control token."""
        texts = self._tokenizer.control_tokens
        first, last = ("".join(sorted({re.escape(text[end]) for text in texts})) for end in (0, -1))
        return re.compile(f"[{first}]" if first else r"(?!)"), re.compile(f"[{last}]" if last else r"(?!)")

    def _guarded(self, text: str, guard: str) -> str:
        first, last = self._ends
        return first.sub(lambda match: match[0] + guard, last.sub(lambda match: guard + match[0], text))

    def _encode(self, piece: str, guard: str) -> list[int]:
        """Encodes rendered text; only what the template wrote can become control tokens."""
        tokenizer = self._tokenizer
        plain = piece.replace(guard, "")
        markers = list(tokenizer.control_pattern.finditer(piece))
        if len(markers) == len(tokenizer.control_pattern.findall(plain)):
            return tokenizer.encode_markup(plain)  # no message contains a control token: the whole at once
        ids: list[int] = []
        start = 0
        for marker in markers:
            ids += tokenizer.encode(piece[start : marker.start()].replace(guard, ""))
            ids.append(tokenizer.control_tokens[marker[0]])
            start = marker.end()
        return ids + tokenizer.encode(piece[start:].replace(guard, ""))


def _unused_characters(messages: Iterable[ChatMessage], count: int) -> list[str]:
    used = set().union(*(message.content for message in messages))
    return list(islice((mark for mark in map(chr, chain(*_MARKS)) if mark not in used), count))


# --- the template language -----------------------------------------------------------------------------------------------


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks replies for training; here only its contents count."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Parses the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The dialect that chat templates are written in: transformers' own, without access to anything outside."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        autoescape=False,
    )
    environment.filters["tojson"] = _tojson
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(helpers)
    return environment


def _tojson(value: object, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes HTML, which no template expects.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_string: str) -> str:
    return datetime.now().astimezone().strftime(format_string)
