"""`chatpaged completion`: scripts that let a shell complete commands, options, models, conversations and settings."""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from chatpaged import paths

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CHATPAGED_COMPLETE"
_MOST_OFFERED = 200


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


def complete_sessions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of conversations, newest first, and names that users have given. What is begun may be the end of an id as well."""
    del ctx, param
    from chatpaged.errors import ChatpagedError
    from chatpaged.store import Store

    try:
        with Store(create=False) as store:
            sessions = store.sessions(_MOST_OFFERED)
    except ChatpagedError:
        return []
    items = [CompletionItem(session.id, help=session.title) for session in sessions if session.id.startswith(incomplete)]
    items += [CompletionItem(session.name) for session in sessions if session.name and session.name.startswith(incomplete)]
    return items or [
        CompletionItem(session.id, help=session.title) for session in sessions if incomplete and session.id.endswith(incomplete)
    ]
