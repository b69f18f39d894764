"""How answers are shown: while they grow or at their end, with their reasoning or without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chatpaged.cli.answers import Answers
from chatpaged.cli.code_blocks import first_code_block
from chatpaged.cli.setting_options import add_options, setting_option
from chatpaged.cli.terminal import AnswerWriter, ReasoningWriter, Status, styled
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.engine.outputs import Completion, Delta

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of text."),
    click.option("-x", "--extract", is_flag=True, help="Write only the first code block of the answer; all of it if there is none."),
    click.option("--raw", is_flag=True, help="Write the answer's own characters only: no newline at its end but its own."),
    setting_option("output.thinking"),
    setting_option("output.color"),
    click.option("-q", "--quiet", is_flag=True, help="Write nothing but answers and errors."),
    click.option("--dry-run", is_flag=True, help="Show the rendered prompt, with --json its token ids too; run nothing."),
    click.option("--stats", is_flag=True, help="Write figures to standard error."),
)


def view_options(function: F) -> F:
    """Adds the options that `ViewOptions.take` takes."""
    return add_options(function, _OPTIONS)


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What is written, and where."""

    as_json: bool
    extract: bool
    raw: bool
    thinking: str
    no_color: bool
    quiet: bool
    dry_run: bool
    stats: bool

    @classmethod
    def take(cls, options: dict[str, Any]) -> ViewOptions:
        """Takes them out of a command's parameters.

        Raises:
            InvalidRequestError: they contradict each other.
        """
        taken = cls(**{field.name: options.pop(field.name) for field in fields(cls)})
        if taken.as_json and (taken.extract or taken.raw):
            raise InvalidRequestError(f"--json and {'--extract' if taken.extract else '--raw'} exclude each other")
        return taken


class AnswerView:
    """Shows the answers of one request on standard output."""

    def __init__(self, options: ViewOptions, num_answers: int, *, prefill: str = "") -> None:
        """Makes a view.

        Args:
            options: what is written.
            num_answers: how many answers will come; a single one is shown while it grows.
            prefill: the beginning of the answer, which the model does not repeat.
        """
        self._options = options
        self._num_answers = num_answers
        self._streams = num_answers == 1 and not (options.as_json or options.extract)
        self._writer = AnswerWriter(sys.stdout, raw=options.raw)
        self._prefill = prefill
        shows_reasoning = options.thinking == "show" and not options.quiet and num_answers == 1
        self._reasoning = ReasoningWriter(sys.stderr, dim=styled(sys.stderr, no_color=options.no_color)) if shows_reasoning else None

    def show(self, delta: Delta) -> None:
        """Shows what an answer has gained."""
        if self._reasoning is not None and not self._options.as_json:
            self._reasoning.write(delta.reasoning)
            if delta.text:
                self._reasoning.end()
        if self._streams:
            if self._options.thinking == "stdout":
                self._writer.write_reasoning(delta.reasoning)
            if delta.text:
                self._writer.write(self._prefill + delta.text)
                self._prefill = ""

    def finish(self, answers: Answers) -> None:
        """Shows what is left to show."""
        if self._reasoning is not None:
            self._reasoning.end()
        if self._streams:
            self._writer.write(self._prefill)
            self._writer.end()
            return
        for done in answers.completions:
            if self._num_answers > 1:
                self._writer.write(f"--- {done.index + 1} of {self._num_answers} ---\n")
            self._write_whole(done)
            self._writer.end()

    def _write_whole(self, done: Completion) -> None:
        code = first_code_block(done.text) if self._options.extract else None
        if self._options.thinking == "stdout" and code is None:
            self._writer.write_reasoning(done.reasoning or "")
        self._writer.write(done.text if code is None else code)


def tell_about(answers: Answers, status: Status, *, stops_on_repeat: bool) -> None:
    """Says what a reader of the answers should know about them."""
    if any(not done.reasoning_closed for done in answers.completions) and answers.interrupted_by is None:
        status.note("the answer ended while the model was still thinking; a larger --max-tokens lets it come to the answer")
    if stops_on_repeat and any(done.finish_reason.value == "repetition" for done in answers.completions):
        status.note("the answer went round in circles and was ended (--stop-on-repeat)")
    elif answers.repeats:
        status.note(f"the answer went round in circles ({answers.repeats} times); --stop-on-repeat ends such answers")
