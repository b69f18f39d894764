"""`chatpaged models`: which models are here, where they come from, how they would run."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from chatpaged.amounts import disk_size
from chatpaged.cli.completion import complete_model_names
from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.setting_options import SettingsCommand
from chatpaged.cli.tables import iso_time, time_ago, write, write_json, write_table
from chatpaged.cli.terminal import Status, configure_streams, printable
from chatpaged.errors import InvalidRequestError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from chatpaged.model_list import ModelEntry
    from chatpaged.model_sources import ModelSource

_SAME = {"ls": "list"}
_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text.")


class _ModelsGroup(click.Group):
    """Knows short forms of commands, which its help does not list."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name or short form."""
        return super().get_command(ctx, _SAME.get(cmd_name, cmd_name))


@click.group("models", cls=_ModelsGroup, context_settings={"max_content_width": 100})
def command() -> None:
    """List, fetch, inspect and remove models.

    A model is a directory (config.json, tokenizer, safetensors), a .gguf file, an id of the Hugging Face Hub such as org/name,
    org/name@revision or org/name:Q4_K_M, an alias, or 'starter'.
    """
    configure_streams()


@command.command("list")
@_json_option
def list_command(*, as_json: bool) -> None:
    """List the models that are here (short: ls).

    These are models in the cache of the Hugging Face Hub, GGUF files that were converted, what aliases name, and the starter model.
    """
    from chatpaged.model_list import list_models

    entries = list_models()
    if as_json:
        write_json({"models": [_entry_json(entry) for entry in entries]})
        return
    head = ("NAME", "FAMILY", "PARAMETERS", "SIZE", "TYPE", "CONTEXT", "LAST USED")
    write_table(head, [_row(entry) for entry in entries])
    for entry in entries:
        if entry.facts.problem and entry.directory is not None:
            sys.stderr.write(f"chatpaged: {printable(entry.name)}: {printable(entry.facts.problem)}\n")


@command.command("pull")
@click.argument("name", shell_complete=complete_model_names)
@click.option("--trust-remote-code", is_flag=True, help="Fetch Python code that comes with the model too.")
@_json_option
def pull_command(*, name: str, trust_remote_code: bool, as_json: bool) -> None:
    """Fetch a model, or what is new of it.

    GGUF files are converted. What was fetched is checked against the hub's checksums. A download that was cut off goes on where it stopped.
    """
    from chatpaged.engine.weight_files import check_directory
    from chatpaged.model_files import fetch_model, find_source

    status = Status()
    source = find_source(name)
    try:
        directory = fetch_model(source, status.tell, show=status.show, trust_remote_code=trust_remote_code, renew=True)
    finally:
        status.clear()
    files = check_directory(directory)
    if as_json:
        write_json({"name": source.name, "directory": str(directory), "parameters": files.num_parameters, "weight_bytes": files.num_bytes})
    else:
        write(f"{source.name}: {_count(files.num_parameters)} parameters, {disk_size(files.num_bytes)} in {directory}")


@command.command("show", cls=SettingsCommand)
@click.argument("name", shell_complete=complete_model_names)
@click.option("--template", "template_only", is_flag=True, help="Write the whole chat template and nothing else.")
@_json_option
@engine_options
def show_command(*, name: str, template_only: bool, as_json: bool, **engine: Any) -> None:
    """Show what a model is and how it would run here."""
    from chatpaged.cli.model_card import card_text, read_card

    config = engine_config(**engine)
    source = _source(name)
    directory = _here(source)
    card = read_card(source, directory, config, run=not template_only)
    if template_only:
        if card["template"] is None:
            raise ModelError(f"no chat template in {source.name}")
        write(card["template"])
    elif as_json:
        write_json(card)
    else:
        write(card_text(card))


@command.command("rm")
@click.argument("name", shell_complete=complete_model_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def remove_command(*, name: str, yes: bool) -> None:
    """Delete a model from the cache. Directories and files of your own are never deleted."""
    from chatpaged.model_aliases import load_aliases
    from chatpaged.model_removal import plan_removal

    source = _source(name)
    aliases = load_aliases()
    if aliases.get(name) is not None and name != source.name:
        raise InvalidRequestError(
            f"{name!r} is an alias of {source.name}; 'chatpaged models alias --remove {name}' removes the alias, "
            f"'chatpaged models rm {source.name}' the model"
        )
    removal = plan_removal(source)
    if not yes:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidRequestError(f"{removal.name} takes {disk_size(removal.size)}; say --yes to delete it")
        click.confirm(f"delete {printable(removal.name)} ({disk_size(removal.size)})?", abort=True, err=True)
    removal.execute()
    write(f"deleted {removal.name} ({disk_size(removal.size)})")


@command.command("alias")
@click.argument("name", required=False)
@click.argument("target", required=False, shell_complete=complete_model_names)
@click.option("--remove", "to_remove", metavar="NAME", help="Remove an alias.")
@_json_option
def alias_command(*, name: str | None, target: str | None, to_remove: str | None, as_json: bool) -> None:
    """Give a model a name of your own: alias NAME MODEL. Without arguments, list the aliases."""
    from chatpaged.model_aliases import load_aliases, remove_alias, set_alias

    if to_remove is not None:
        if name is not None:
            raise InvalidRequestError("--remove takes one name and nothing else")
        remove_alias(to_remove)
    elif name is None:
        aliases = load_aliases()
        if as_json:
            write_json(aliases)
        else:
            for alias, meaning in aliases.items():
                write(f"{alias}  {meaning}")
    elif target is None:
        raise InvalidRequestError(f"what does {name!r} stand for? chatpaged models alias {name} MODEL")
    else:
        source = _source(target)  # refuses what is no model
        meaning = os.path.abspath(source.path) if source.path is not None else source.name
        before = set_alias(name, meaning)
        if before not in {None, meaning}:
            sys.stderr.write(f"chatpaged: {printable(name)} stood for {printable(str(before))} before\n")


# --- parts ---------------------------------------------------------------------------------------------------------------


def _source(name: str) -> ModelSource:
    from chatpaged.model_files import find_source

    return find_source(name)


def _here(source: ModelSource) -> Path:
    from chatpaged.model_names import suggestion
    from chatpaged.model_sources import find_here, known_models

    directory = find_here(source)
    if directory is None:
        raise ModelError(
            f"{source.name} is not on this machine; 'chatpaged models pull {source.path or source.name}' gets it"
            f"{suggestion(source.name, [name for name in known_models() if name != source.name])}"
        )
    return directory


def _row(entry: ModelEntry) -> tuple[str, ...]:
    facts = entry.facts
    names = f"{entry.name} ({', '.join(entry.aliases)})" if entry.aliases else entry.name
    kind = f"{facts.quantization} as {facts.stored_type}" if facts.quantization and facts.stored_type else facts.quantization
    cells = (
        names,
        facts.family,
        _count(facts.parameters),
        disk_size(facts.size) if facts.size is not None else None,
        kind or facts.stored_type,
        f"{facts.context:,}" if facts.context else None,
        time_ago(entry.last_used) if entry.directory else (facts.problem or "-"),
    )
    return tuple(cell or "-" for cell in cells)


def _entry_json(entry: ModelEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "source": entry.source.kind.value,
        "directory": str(entry.directory) if entry.directory is not None else None,
        **asdict(entry.facts),
        "last_used": iso_time(entry.last_used),
        "aliases": list(entry.aliases),
    }


def _count(number: int | None) -> str | None:
    if number is None:
        return None
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
