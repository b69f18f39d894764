"""`chatpaged completion`: scripts that let a shell complete commands, options, models and settings."""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from chatpaged import paths

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CHATPAGED_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(*, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  echo 'eval "$(chatpaged completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(chatpaged completion zsh)"' >> ~/.zshrc      (after compinit)
    fish:  chatpaged completion fish > ~/.config/fish/completions/chatpaged.fish
    """  # noqa: D301 - click wants the character itself, before lines that it must not fill
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click does not know {shell}")
    script = kind(click.Command("chatpaged"), {}, "chatpaged", VARIABLE)
    # The base class's own: bash's version would run a bash to ask for its version, and there may be none here.
    sys.stdout.write(ShellComplete.source(script).strip() + "\n")


def complete_model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models on this machine, from the names of directories alone; what looks like a path is left to the shell."""
    del ctx, param
    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    names = ["starter", *local_model_names()]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def local_model_names() -> list[str]:
    """Names of the model directories in the cache, in order; none if it cannot be read."""
    try:
        with os.scandir(paths.models_dir()) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError:
        return []
