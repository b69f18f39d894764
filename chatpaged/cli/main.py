"""The `chatpaged` command: finds the subcommand, and turns every way of failing into one line and an exit code."""

from __future__ import annotations

import difflib
import importlib
import itertools
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from chatpaged import __version__
from chatpaged.cli.signals import INTERRUPTED, Interrupted, leave_at_once, raise_interrupted
from chatpaged.cli.terminal import printable
from chatpaged.errors import ChatpagedError, MemoryBudgetError

USAGE = 2

# Name: (module, one line of help). Modules are imported only when their command is called.
COMMANDS = {
    "run": ("chatpaged.cli.run", "Chat in the terminal, many chats at once."),
    "ask": ("chatpaged.cli.ask", "Answer one prompt on standard output."),
    "batch": ("chatpaged.cli.batch", "Answer many prompts from a file or a pipe."),
    "presets": ("chatpaged.cli.presets", "List, show and edit presets of settings."),
    "config": ("chatpaged.cli.config", "Show and change settings."),
    "completion": ("chatpaged.cli.completion", "Print a shell's completion script."),
    "models": ("chatpaged.cli.models", "List, fetch, inspect and remove models."),
    "cache": ("chatpaged.cli.cache", "Show, clear and verify the cache of prompts on disk."),
    "sessions": ("chatpaged.cli.sessions", "List, show, search, export and import conversations."),
    "bench": ("chatpaged.cli.bench", "Measure the engine, alone or beside others."),
}


class ReaderGone(BaseException):
    """Nobody reads standard output any more."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Imports a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        _accept_debug(command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that is called. Of one that there is not, near ones are named."""
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, COMMANDS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin so; click's own would import every command for its help."""
        commands = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that was asked for."""
        raise_interrupted()
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error  # click would take the error for its own, and end with status 1

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Writes the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


_DEBUG_HELP = "Show the traceback of an error."


def _accept_debug(command: click.Command) -> None:
    """Lets --debug stand behind the name of a command as well, and of the commands in it."""
    if not any("--debug" in param.opts for param in command.params):
        command.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help=_DEBUG_HELP))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _accept_debug(inner)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True, subcommand_metavar="COMMAND ..."
)
@click.version_option(__version__, prog_name="chatpaged")
# Nothing takes its value: main() reads it from the command line, since it has to know before anything can fail.
@click.option("--debug", is_flag=True, expose_value=False, help=_DEBUG_HELP)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Chat with a language model on your own machine.

    Without --model a small starter model is fetched and used.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


def main() -> NoReturn:
    """Runs the command line and ends the process."""
    # Python has None for a stream that was closed before the start.
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.exit(_fail("standard output is closed", 1))
    leave_at_once()
    try:
        status = _run()
        sys.stdout.flush()
        leave_at_once()  # an interpreter that comes to its end must not be disturbed
    except (BrokenPipeError, ReaderGone):
        _end_by_broken_pipe()
    except OSError as error:  # a full disk shows when the last output is written
        status = _fail(f"cannot write the output: {error.strerror or error}", 1)
    sys.exit(status)


def _run() -> int:
    try:
        # An early exit comes back as its status, else it is what the command returns: nothing.
        status = int(cli.main(prog_name="chatpaged", standalone_mode=False) or 0)
    except click.ClickException as error:
        status = _fail_usage(error)
    except ChatpagedError as error:
        status = _fail(str(error), error.exit_code)
    except Interrupted as error:
        status = error.status
    except click.exceptions.Abort:  # the end of the input where a question was asked
        status = INTERRUPTED
    except OSError as error:
        what = f"access {error.filename}" if error.filename else "write the output"
        status = _fail(f"cannot {what}: {error.strerror or error}", 1)
    except MemoryError as error:
        told = f" ({error})" if str(error) else ""
        status = _fail(f"out of memory{told}; free some, or raise this process's limit (ulimit -v)", MemoryBudgetError.exit_code)
    except Exception as error:  # noqa: BLE001 - the top of the command line: one clear line, the traceback on request
        status = _fail(f"unexpected error: {type(error).__name__}: {error}; --debug shows the traceback", 1)
    return status


def _fail_usage(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context is not None else ""
    return _fail(error.format_message().rstrip(".") + hint, USAGE)


def _fail(message: str, status: int) -> int:
    if "--debug" in itertools.takewhile(lambda argument: argument != "--", sys.argv[1:]):
        traceback.print_exc()
    try:
        # One line, whatever the message is made of.
        sys.stderr.write(f"chatpaged: {printable(' '.join(message.split()))}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nowhere left to say it
    return status


def _end_by_broken_pipe() -> NoReturn:
    """Ends as the system's own tools do when nobody reads their output: by the signal, without a word (status 141)."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(1)
