"""`chatpaged batch`: many prompts from a file or a pipe, one line of JSON for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from chatpaged.cli.ask import load_model, open_model, tell_ignored
from chatpaged.cli.batch_progress import BatchProgress
from chatpaged.cli.engine_notes import engine_notes
from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.prompt_options import PromptOptions, check_text, rows_prompt_options
from chatpaged.cli.sampling_options import effective_sampling, given_sampling, sampling_options, with_defaults
from chatpaged.cli.setting_options import SettingsCommand
from chatpaged.cli.signals import Interrupted
from chatpaged.cli.terminal import Status, configure_streams, printable
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import BatchError, InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.batch_file import FinishedRows, OutputFile
    from chatpaged.batch_rows import BadRow, BatchRow, RowReader
    from chatpaged.batch_run import BatchCounts
    from chatpaged.local_model import LocalModel
    from chatpaged.messages import RenderedPrompt


@click.command("batch", cls=SettingsCommand, context_settings={"max_content_width": 100})
@click.argument("source", metavar="[FILE|-]", type=click.Path(allow_dash=True), default="-")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="Where answers go.  [default: standard output]")
@click.option("--text", is_flag=True, help="Each line of the input is a prompt.")
@click.option("--ordered", is_flag=True, help="Write answers in the order of the input, not as they are done.")
@click.option("--resume", is_flag=True, help="Go on with OUT: rows that are in it are not run again.")
@click.option("--retry-failed", is_flag=True, help="With --resume: run rows again that have failed.")
@click.option("--overwrite", is_flag=True, help="Drop what is in OUT.")
@click.option("--ignore-model", is_flag=True, help="Run rows whatever model they name.")
@click.option("-q", "--quiet", is_flag=True, help="Write nothing but answers and errors.")
@rows_prompt_options
@sampling_options
@engine_options
def command(**options: Any) -> None:
    """Answer many prompts from a file or a pipe, one line of JSON for each.

    A row is a line of JSON: as in OpenAI's Batch API, or {"prompt": ...}, or {"messages": [...]}; with --text it is the prompt.
    Sampling options hold for rows that do not say otherwise.

    Exit codes: 0 ok, 1 failed while running, 2 usage, 3 model, 5 not enough memory, 6 rows have failed, 130 interrupted.
    """
    configure_streams()
    asked = _BatchOptions.take(options)
    prompts = PromptOptions.take_for_rows(options)
    given = given_sampling(options)
    SamplingParams(**given)
    for text in given.get("stop", ()):
        check_text(text)
    config = engine_config(**options)
    with ExitStack() as stack:
        Batch(asked, prompts, given, config, stack).run()


@dataclass(frozen=True, slots=True)
class _BatchOptions:
    """Where rows come from and answers go."""

    source: str
    output: Path | None
    text: bool
    ordered: bool
    resume: bool
    retry_failed: bool
    overwrite: bool
    ignore_model: bool
    quiet: bool

    @classmethod
    def take(cls, options: dict[str, Any]) -> _BatchOptions:
        """Takes them out of a command's parameters.

        Raises:
            InvalidRequestError: they contradict each other.
        """
        taken = cls(**{field.name: options.pop(field.name) for field in fields(cls)})
        for name in ("resume", "overwrite"):
            if getattr(taken, name) and taken.output is None:
                raise InvalidRequestError(f"--{name} needs -o OUT")
        if taken.resume and taken.overwrite:
            raise InvalidRequestError("--resume and --overwrite exclude each other")
        if taken.retry_failed and not taken.resume:
            raise InvalidRequestError("--retry-failed needs --resume")
        if taken.retry_failed and taken.ordered:
            raise InvalidRequestError("--retry-failed and --ordered exclude each other: rows that are run again come last")
        return taken

    def open_input(self, stack: ExitStack) -> BinaryIO:
        """The stream of rows.

        Raises:
            InvalidRequestError: it cannot be read, or would be overwritten.
        """
        if self.source == "-":
            if sys.stdin is None or sys.stdin.isatty():
                raise InvalidRequestError("no rows; give a FILE or pipe them in")
            return sys.stdin.buffer
        path = Path(self.source)
        try:
            stream = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise InvalidRequestError(f"cannot read {path}: {error.strerror}") from error
        if self.output is not None and self.output.exists() and self.output.samefile(path):
            raise InvalidRequestError(f"{path} is both input and output")
        return stream


class Batch:
    """One run of the command."""

    def __init__(self, asked: _BatchOptions, prompts: PromptOptions, given: dict[str, Any], config: EngineConfig, stack: ExitStack) -> None:
        self._asked = asked
        self._prompts = prompts
        self._config = config
        self._stack = stack
        self._status = Status(quiet=asked.quiet)
        self._input = asked.open_input(stack)
        self._model = open_model(prompts, self._status, trust_remote_code=config.trust_remote_code)
        self._defaults = self._model.sampling_defaults()
        self._params = with_defaults(given, self._defaults)
        self._file: OutputFile | None = None
        self._finished: FinishedRows | None = None
        self._identity: dict[str, Any] | None = None

    def run(self) -> None:
        """Runs what is not there yet.

        Raises:
            BatchError: rows have failed.
        """
        from chatpaged.batch_rows import RowReader
        from chatpaged.batch_run import BatchCounts
        from chatpaged.starter_model import STARTER_NAMES

        self._open_output()
        names = () if self._asked.ignore_model else (self._model.name, self._prompts.model or STARTER_NAMES[0])
        reader = RowReader(self._input, text=self._asked.text, raw=self._prompts.raw_prompt, models=names)
        progress = None
        counts = BatchCounts()
        rows = self._missing(reader)
        first = next(rows, None)
        interrupted = None
        if first is not None:  # the model is not loaded for nothing
            tell_ignored(self._defaults, self._status)
            counts, progress, interrupted = self._run_rows(chain((first,), rows))
        self._tell(counts, progress, reader, interrupted)

    def _open_output(self) -> None:
        if self._asked.output is None:
            return
        from chatpaged.batch_file import OutputFile
        from chatpaged.batch_manifest import check_manifest, input_identity, write_manifest

        self._identity = input_identity(self._input)
        path = self._asked.output
        if self._asked.resume and self._identity is None:
            raise InvalidRequestError("--resume needs the rows in a file: those of a pipe cannot be known again")
        self._file = self._stack.enter_context(OutputFile(path, resume=self._asked.resume, overwrite=self._asked.overwrite))
        if not self._file.is_regular:
            if self._asked.resume:
                raise InvalidRequestError(f"--resume needs a file, which {path} is not")
            return
        manifest = self._manifest()
        if self._file.is_empty:
            write_manifest(path, manifest)
        else:
            check_manifest(path, manifest)
            self._finished = self._file.finished(without_failed=self._asked.retry_failed)

    def _manifest(self) -> dict[str, Any]:
        """What decides the answers. How much runs at once does not."""
        from chatpaged.batch_manifest import make_manifest, model_digest

        model = {"name": self._model.name, "digest": model_digest(self._model.directory)}
        prompts = self._prompts
        parameters = {
            "text": self._asked.text,
            "ordered": self._asked.ordered,
            "ignore_model": self._asked.ignore_model,
            "system": prompts.system,
            "template": prompts.template.read_text(encoding="utf-8", errors="replace") if prompts.template is not None else None,
            "template_args": prompts.template_args,
            "raw_prompt": prompts.raw_prompt,
            "dtype": self._config.dtype,
            "quantize": self._config.quantize,
            "kv_dtype": self._config.kv_dtype,
            "max_model_len": self._config.max_model_len,
            "sampling": effective_sampling(self._params) | {"seed": self._params.seed},
        }
        return make_manifest(model, self._identity, parameters)

    def _missing(self, rows: Iterable[BatchRow | BadRow]) -> Iterator[BatchRow | BadRow]:
        finished = self._finished
        return (row for row in rows if finished is None or row.number not in finished)

    def _run_rows(self, rows: Iterable[BatchRow | BadRow]) -> tuple[BatchCounts, BatchProgress, int | None]:
        """Runs rows to their end, or to a signal, whose exit status is given back then."""
        from chatpaged.batch_output import OutputRows
        from chatpaged.batch_run import BatchRun

        model = self._model
        self._stack.enter_context(engine_notes(self._status))
        llm = self._stack.enter_context(load_model(model, self._config, self._status))
        job = BatchRun(
            llm,
            OutputRows(model.name, model.tokenizer),
            self._file.write if self._file is not None else _write_out,
            render=_renderer(self._prompts, model),
            defaults=self._params,
            ordered=self._asked.ordered,
        )
        earlier = self._finished.ok + self._finished.failed if self._finished is not None else 0
        # Where the answers themselves go to the terminal, there is no room for a bar.
        shown = not self._asked.quiet and (self._file is not None or not sys.stdout.isatty())
        progress = BatchProgress(self._input if self._input.seekable() else None, earlier, shown=shown)
        interrupted = None
        try:
            job.run(rows, progress.update)
        except Interrupted as error:
            interrupted = error.status
        finally:
            progress.close()
        return job.counts, progress, interrupted

    # --- what is told ------------------------------------------------------------------------------------------------

    def _tell(self, counts: BatchCounts, progress: BatchProgress | None, reader: RowReader, interrupted: int | None) -> None:
        if reader.num_streams:
            self._status.note(f"stream was ignored in {_rows(reader.num_streams)}: answers of a batch come whole")
        told = f"{counts.ok} ok, {counts.failed} failed"
        failed = counts.failed
        if self._finished is not None:
            told += f" ({self._finished.ok} ok, {self._finished.failed} failed before)"
            failed += self._finished.failed
        if progress is not None:
            told += f"; {progress.summary(counts)}"
        if interrupted is not None:
            self._status.note(f"stopped: {told}; {self._how_to_go_on()}")
            raise click.exceptions.Exit(interrupted)
        if failed:
            raise BatchError(told)
        self._status.note(told)

    def _how_to_go_on(self) -> str:
        if self._file is not None and self._file.is_regular and self._identity is not None:
            return "the same command with --resume goes on"
        return "this cannot be resumed; that takes a FILE and -o OUT"


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"


def _write_out(line: bytes) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(printable(line.decode("utf-8")))
        sys.stdout.flush()
    else:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def _renderer(prompts: PromptOptions, model: LocalModel) -> Callable[[BatchRow], RenderedPrompt]:
    from chatpaged.engine.prompts import render_prompt

    def render(row: BatchRow) -> RenderedPrompt:
        if isinstance(row.prompt, str):
            return render_prompt(row.prompt, model.tokenizer, model.template)
        return prompts.render_messages(row.prompt, model.tokenizer, model.template)

    return render
