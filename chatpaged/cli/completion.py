"""`chatpaged completion`: scripts that let a shell complete commands, options, models, conversations and settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
    """Models that have a name here, read from small files alone; what looks like a path is left to the shell."""
    del ctx, param
    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in dict.fromkeys(("starter", *local_model_names())) if name.startswith(incomplete)]


def local_model_names() -> list[str]:
    """Names of the starter model if it is here, of aliases, conversions and models in the hub's cache, in order; those that can be read."""
    from chatpaged.hub_cache import cached_names

    names: set[object] = set(_read(paths.aliases_file()))
    try:
        # The starter model lies beside directories of other kinds, each conversion in one with a note.
        starter = next((place.parent.name for place in paths.models_dir().glob("*/config.json")), None)
        notes = [_read(place) for place in paths.models_dir().glob("gguf/*/chatpaged.json")]
        names |= {str(name) for name in cached_names()} | {starter, *(note.get("name") for note in notes)}
    except OSError:
        pass
    return sorted(name for name in names if isinstance(name, str))


def _read(place: Path) -> dict[str, object]:
    try:
        value = json.loads(place.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


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
