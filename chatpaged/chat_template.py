"""Messages to token ids: injection-safe, and append-only for what a model has said itself.

The model's chat template is rendered with marks in place of what must not be mistaken (`prompt_assembly.py`); only then is
text encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chatpaged.engine.reasoning import find_reasoning_markers, split_reasoning
from chatpaged.engine.tokenizer import Tokenizer, read_json
from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.messages import ROLES, ChatMessage, RenderedPrompt
from chatpaged.prompt_rendering import Rendering
from chatpaged.template_language import TemplateProgram

__all__ = ["ROLES", "ChatMessage", "ChatTemplate", "RenderedPrompt"]


class ChatTemplate:
    """A model's chat template together with its tokenizer.

    Attributes:
        source: the template as it is written.
        arguments: names of the arguments that it takes, besides messages and special tokens.
        markers: what marks the model's thinking; None if nothing does.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compiles a template.

        Raises:
            ModelError: the template has a syntax error.
        """
        try:
            self._program = TemplateProgram(source)
        except ValueError as error:
            raise ModelError(f"the model's chat template cannot be used: {error}") from error
        self._tokenizer = tokenizer
        self.source = source
        self.arguments = self._program.arguments
        self.markers = find_reasoning_markers(source, tokenizer)

    @classmethod
    def from_directory(cls, directory: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model directory: `chat_template.jinja`, else the one in its settings; None if it has none.

        Raises:
            ModelError: the template cannot be read or has a syntax error.
        """
        path = directory / "chat_template.jinja"
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ModelError(f"cannot read {path}: {error}") from error
            if text.strip():  # an empty one is none
                return cls(text, tokenizer)
        source = _named_template(tokenizer.settings) or _named_template(read_json(directory / "chat_template.json"))
        return cls(source, tokenizer) if source is not None and source.strip() else None

    @classmethod
    def from_file(cls, path: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """A template that a user gives: a jinja file, or JSON with a `chat_template` in it.

        Raises:
            InvalidRequestError: the file cannot be read, holds no template, or the template has a syntax error.
        """
        try:
            source: str | None = path.read_text(encoding="utf-8-sig")
            if path.suffix == ".json":
                source = _named_template(read_json(path))
        except (OSError, UnicodeDecodeError, ModelError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidRequestError(f"cannot read template {path}: {reason}") from error
        if not source or not source.strip():
            raise InvalidRequestError(f"no chat template in {path}")
        try:
            return cls(source, tokenizer)
        except ModelError as error:
            raise InvalidRequestError(f"template {path}: {error.__cause__}") from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        arguments: Mapping[str, object] | None = None,
        prefill: str = "",
        add_generation_prompt: bool = True,
        keep_reasoning: bool = False,
    ) -> RenderedPrompt:
        """Builds the prompt for the next reply.

        Args:
            messages: the conversation, oldest first.
            arguments: what the template gets besides the messages, such as `enable_thinking`.
            prefill: the beginning of the reply, from outside. A single space at its end is left to the model, whose words begin with it.
            add_generation_prompt: end with the header of an assistant's message.
            keep_reasoning: keep the thinking of earlier replies, also where the template leaves it out.

        Raises:
            InvalidRequestError: there are no messages, the template refuses them (a role it does not know, wrong order) or has no
                such argument.
        """
        if not messages:
            raise InvalidRequestError("no messages")
        if prefill and not add_generation_prompt:
            raise InvalidRequestError("a reply can only begin after its header")
        arguments = arguments or {}
        self._check_arguments(arguments)
        messages = [self._with_ids(message) if keep_reasoning else message for message in messages]
        rendering = Rendering(self._program, self._tokenizer, self.markers, messages, arguments, prefill)
        return rendering.prompt(generation=add_generation_prompt, keep_reasoning=keep_reasoning)

    def reply(self, prompt: RenderedPrompt, token_ids: Sequence[int]) -> ChatMessage:
        """The message that a generated reply is in later prompts.

        Args:
            prompt: what it was generated for.
            token_ids: what was generated, without the end token.
        """
        split = split_reasoning((*prompt.prefill_ids, *token_ids), self.markers, self._tokenizer, inside=prompt.in_reasoning)
        return ChatMessage("assistant", split.text, split.token_ids, split.reasoning, (*prompt.lead_ids, *split.reasoning_ids))

    def _check_arguments(self, arguments: Mapping[str, object]) -> None:
        for name in arguments:
            if name not in self.arguments:
                known = f"it takes {', '.join(self.arguments)}" if self.arguments else "it takes none"
                raise InvalidRequestError(f"this model's chat template has no argument {name!r}; {known}")

    def _with_ids(self, message: ChatMessage) -> ChatMessage:
        """A message whose thinking is kept needs ids for it, since the template would leave its text out."""
        if not message.reasoning or message.token_ids is not None or self.markers is None:
            return message
        # Text and control tokens in turn; each of the two begins and ends with text.
        opening, closing = (self._tokenizer.split_control(text) for text in (self.markers.start, self.markers.end))
        parts = [*opening[:-1], f"{opening[-1]}\n{message.reasoning}\n{closing[0]}", *closing[1:]]
        parts[-1] += "\n\n"
        ids = self._tokenizer.encode_parts(parts)
        return replace(message, token_ids=tuple(self._tokenizer.encode(message.content)), reasoning_ids=tuple(ids))


def _named_template(settings: Mapping[str, Any]) -> str | None:
    source = settings.get("chat_template")
    if isinstance(source, list):  # several under names
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None
