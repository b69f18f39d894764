"""Options that say what the model is asked, and the prompt they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chatpaged.cli.completion import complete_model_names
from chatpaged.cli.presets import complete_presets
from chatpaged.cli.setting_options import add_options, preset_option, setting_option
from chatpaged.cli.truncation import PLACES
from chatpaged.documents import join_documents, read_documents
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.chat_template import ChatTemplate
    from chatpaged.engine.tokenizer import Tokenizer
    from chatpaged.messages import ChatMessage, RenderedPrompt
    from chatpaged.session import SessionOptions

F = TypeVar("F", bound=Callable[..., Any])
_MODEL_NAME = (
    click.option(
        "-m",
        "--model",
        shell_complete=complete_model_names,
        help="A model directory, GGUF file, hub id (org/name), alias, or 'starter'.  [default: the starter model]",
    ),
    preset_option(complete_presets),
)
_MODEL = (*_MODEL_NAME, setting_option("system", "-s"))
_DOCUMENTS = (
    click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Put a file before the prompt; - is standard input."),
    click.option("--encoding", metavar="NAME", help="Encoding of files and standard input.  [default: found out]"),
)
_TEMPLATE = (
    click.option("--template", type=click.Path(path_type=Path), help="A chat template to use in place of the model's."),
    click.option(
        "--template-arg", "template_args", multiple=True, metavar="NAME=VALUE", help="Give the template a value, as enable_thinking=false."
    ),
    click.option("--raw-prompt", is_flag=True, help="Give the text to the model as it is, without a chat template."),
)
_ONE_ANSWER = (
    click.option("--prefill", default="", metavar="TEXT", help="Begin the answer with this text."),
    click.option("--truncate", type=click.Choice(PLACES), help="Leave out this part of a prompt that does not fit."),
)


def model_name_options(function: F) -> F:
    """Adds those that say which model is used, and a preset."""
    return add_options(function, _MODEL_NAME)


def model_options(function: F) -> F:
    """Adds those that say whom a conversation is held with: the model, a preset, the system prompt."""
    return add_options(function, _MODEL)


def prompt_options(function: F) -> F:
    """Adds the options that `PromptOptions.take` takes."""
    return add_options(function, (*_MODEL, *_DOCUMENTS, *_TEMPLATE, *_ONE_ANSWER))


def rows_prompt_options(function: F) -> F:
    """Adds those of them that make sense for many prompts; `PromptOptions.take_for_rows` takes them."""
    return add_options(function, (*_MODEL, *_TEMPLATE))


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """What the model is asked, and how it is told.

    A system prompt may come from the settings, so `--raw-prompt` leaves it out without a word.
    """

    model: str | None
    system: str | None
    files: tuple[str, ...]
    encoding: str | None
    template: Path | None
    template_args: tuple[str, ...]
    raw_prompt: bool
    prefill: str
    truncate: str | None

    @classmethod
    def take(cls, options: dict[str, Any]) -> PromptOptions:
        """Takes them out of a command's parameters.

        Raises:
            InvalidRequestError: they contradict each other.
        """
        taken = cls(**{field.name: options.pop(field.name) for field in fields(cls)})
        useless = {"template": taken.template, "template-arg": taken.template_args, "prefill": taken.prefill}
        named = [f"--{name}" for name, value in useless.items() if value]
        if taken.raw_prompt and named:
            raise InvalidRequestError(f"--raw-prompt takes the text as it is; {named[0]} has no place in it")
        for text in (taken.system or "", taken.prefill, *taken.template_args):
            check_text(text)
        return taken

    @classmethod
    def take_for_rows(cls, options: dict[str, Any]) -> PromptOptions:
        """Takes them where there are no documents and no single answer. See `take`."""
        options |= {"files": (), "encoding": None, "prefill": "", "truncate": None}
        return cls.take(options)

    def text(self, words: tuple[str, ...]) -> tuple[str, list[str]]:
        """The user's text: documents first, so that whatever is asked about them, their blocks are shared; then the question.

        Returns:
            The text, and notes about how documents were read.

        Raises:
            InvalidRequestError: there is nothing in it, or a file cannot be read.
        """
        documents = read_documents(self.files, self.encoding)
        text = "\n\n".join(part for part in (join_documents(documents) if documents else "", " ".join(words)) if part)
        if not text:
            raise InvalidRequestError("empty prompt; give one as an argument or pipe it in")
        check_text(text)
        return text, [f"{document.name} was read as {document.encoding}" for document in documents if document.encoding]

    def chat_template(self, directory: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template that is used: the one given, else the model's."""
        from chatpaged.chat_template import ChatTemplate

        if self.template is not None:
            return ChatTemplate.from_file(Path(os.path.expanduser(self.template)), tokenizer)
        return ChatTemplate.from_directory(directory, tokenizer)

    def session_options(self) -> SessionOptions:
        """What holds for every prompt of a conversation."""
        from chatpaged.session import SessionOptions
        from chatpaged.template_language import parse_template_argument

        return SessionOptions(arguments=dict(parse_template_argument(argument) for argument in self.template_args))

    def render_messages(self, messages: Sequence[ChatMessage], tokenizer: Tokenizer, template: ChatTemplate | None) -> RenderedPrompt:
        """A conversation as a prompt. The system prompt stands at its beginning, where it has none of its own. Errors as for `render`."""
        from chatpaged.engine.prompts import render_prompt
        from chatpaged.messages import ChatMessage
        from chatpaged.template_language import parse_template_argument

        if self.system is not None and messages[0].role != "system":
            messages = [ChatMessage("system", self.system), *messages]
        arguments = dict(parse_template_argument(argument) for argument in self.template_args)
        return render_prompt(messages, tokenizer, template, arguments=arguments, prefill=self.prefill)


def check_text(text: str) -> None:
    """Refuses what arguments on a command line that are not UTF-8 become.

    Raises:
        InvalidRequestError: the text is not valid.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequestError("the prompt is not valid UTF-8 text")
