"""Messages to token ids: injection-safe, and append-only for what a model has said itself.

The model's chat template is rendered with three kinds of marks in it, characters that occur in no message:

- Inside message texts each character that could begin or end a control token is exchanged for a mark. After rendering,
  whatever matches a control token was written by the template; all else is encoded as text, the characters put back.
- A reply that comes with the ids it was generated as is replaced by a placeholder. The ids take its place afterwards: a
  reply is never encoded anew, so the keys and values computed for it stay valid.
- A text that begins with a space is kept apart from the template's text before it, so that the ids are those of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from chatpaged.engine.tokenizer import Tokenizer, read_json, unused_characters
from chatpaged.errors import InvalidRequestError, ModelError

ROLES = ("system", "user", "assistant", "tool")
# What a template, which comes with the model, can run into: its own words, and Python's.
_RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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
    """A model's chat template together with its tokenizer.

    Attributes:
        source: the template as it is written.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compiles a template.

        Raises:
            ModelError: the template has a syntax error.
        """
        self._tokenizer = tokenizer
        self.source = source
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template cannot be used: {error}") from error

    @classmethod
    def from_directory(cls, directory: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model directory: `chat_template.jinja`, else the one in its settings; None if it has none.

        Raises:
            ModelError: the template cannot be read or has a syntax error.
        """
        path = directory / "chat_template.jinja"
        if path.is_file():
            try:
                return cls(path.read_text(encoding="utf-8"), tokenizer)
            except (OSError, UnicodeDecodeError) as error:
                raise ModelError(f"cannot read {path}: {error}") from error
        source = tokenizer.settings.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
        if isinstance(source, list):  # several under names
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
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
        tokenizer = self._tokenizer
        edges = tokenizer.control_edges
        cut, opening, closing, *marks = unused_characters((self.source, *(message.content for message in messages)), 3 + len(edges))
        disguise = str.maketrans(edges, "".join(marks))
        restore = str.maketrans("".join(marks), edges)
        contents = [
            message.content.translate(disguise) if message.token_ids is None else f"{opening}{i}{closing}"
            for i, message in enumerate(messages)
        ]
        rendered = self._render_with_cuts(messages, contents, cut, add_generation_prompt=add_generation_prompt)
        text: list[str] = []
        ids: list[int] = []
        # Every second piece is the number of a message whose ids stand there.
        for i, piece in enumerate(re.split(f"{opening}([0-9]+){closing}", rendered)):
            if i % 2:
                message = messages[int(piece)]
                text.append(message.content)
                ids += message.token_ids or ()
            else:
                for segment in piece.split(cut):
                    parts = [part.translate(restore) for part in tokenizer.split_control(segment)]
                    text += parts
                    ids += tokenizer.encode_parts(parts)
        return RenderedPrompt("".join(text), tuple(ids))

    def _render_with_cuts(self, messages: Sequence[ChatMessage], contents: list[str], cut: str, *, add_generation_prompt: bool) -> str:
        """Renders with a mark before each text that begins with a space, which would merge with the line end before it.

        Without marks where the template would treat such texts differently with them, such as trim them.
        """
        rendered = self._render(messages, contents, add_generation_prompt=add_generation_prompt)
        apart = [f"{cut}{content}" if content[:1].isspace() else content for content in contents]
        if apart == contents:
            return rendered
        with_cuts = self._render(messages, apart, add_generation_prompt=add_generation_prompt)
        return with_cuts if with_cuts.replace(cut, "") == rendered else rendered

    def _render(self, messages: Sequence[ChatMessage], contents: list[str], *, add_generation_prompt: bool) -> str:
        marked = [{"role": message.role, "content": content} for message, content in zip(messages, contents, strict=True)]
        special = {name: self._tokenizer.special_text(name) or "" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        try:
            return self._template.render(messages=marked, add_generation_prompt=add_generation_prompt, tools=None, **special)
        except _RENDER_ERRORS as error:
            raise InvalidRequestError(f"the model's chat template refuses these messages: {error}") from error


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


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by name or place, as transformers has it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - likewise
) -> str:
    # jinja2's own filter escapes HTML, which no template expects.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_string: str) -> str:
    return datetime.now().astimezone().strftime(format_string)
