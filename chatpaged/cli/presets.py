"""`chatpaged presets`: values of settings under names, usable as `-p NAME`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from chatpaged import paths
from chatpaged.cli.setting_options import working_directory
from chatpaged.cli.terminal import configure_streams, printable
from chatpaged.errors import SettingsError
from chatpaged.presets import PIN, Preset, all_presets, check_name, find_preset, read_preset
from chatpaged.setting_groups import all_settings
from chatpaged.settings import PRESETS, setting
from chatpaged.settings_file import write_table

_COMMON = ("model", "system", "sampling.temperature", "sampling.max_tokens")


def complete_presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The presets whose names begin so; none where a file is wrong."""
    del ctx, param
    try:
        names = all_presets(working_directory())
    except (SettingsError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group("presets")
def command() -> None:
    """List, show and edit presets: settings under a name, used with -p NAME."""
    configure_streams()


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def list_(*, as_json: bool) -> None:
    """List the presets that can be used here."""
    presets = all_presets(working_directory())
    if as_json:
        click.echo(json.dumps({name: _plain(preset) for name, preset in presets.items()}, ensure_ascii=False))
        return
    for name, preset in presets.items():
        facts = [f"{key.rpartition('.')[2]} {value}" for key, value in _plain(preset)["values"].items()]
        facts += ["pinned"] if preset.pin else []
        click.echo(printable(" ".join(f"{name}: {', '.join(facts)}".split())))


@command.command("show")
@click.argument("name", shell_complete=complete_presets)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def show(*, name: str, as_json: bool) -> None:
    """Show a preset as it stands in its file."""
    preset = find_preset(name, working_directory())
    if as_json:
        click.echo(json.dumps(_plain(preset), ensure_ascii=False))
    else:
        click.echo(printable(f"# {preset.path}\n[presets.{name}]\n{_toml(preset)}"), nl=False)


@command.command("edit")
@click.argument("name", shell_complete=complete_presets)
def edit(*, name: str) -> None:
    """Make or change a preset of the user's file, in your editor ($VISUAL or $EDITOR).

    An empty text takes the preset away.
    """
    check_name(name)
    preset = all_presets(working_directory()).get(name)
    path = paths.user_settings_file()
    before = _toml(preset) if preset is not None and preset.path == path else _template()
    after = click.edit(before, extension=".toml")
    if after is None:
        click.echo("nothing was changed", err=True)
        return
    try:
        tables = tomllib.loads(after)
        read_preset(name, path, tables, f"preset {name!r}")
    except (SettingsError, tomllib.TOMLDecodeError) as error:
        kept = _keep(name, after)
        raise SettingsError(f"preset {name!r} was not changed: {error}; what you wrote is in {kept}") from error
    write_table(path, (PRESETS,), name, tables or None)


def _keep(name: str, text: str) -> Path:
    """Puts a text that cannot be used where its writer finds it again."""
    path = paths.state_dir() / f"preset-{name}.toml"
    paths.replace_file(path, text)
    return path


def _template() -> str:
    lines = [f"# {key} = ...    {setting(key).text}" for key in _COMMON]
    lines.append(f"# {PIN} = true    Keep the system prompt's KV blocks in memory, once they are there.")
    return "\n".join(("# Any setting of 'chatpaged config show'; an empty text takes the preset away.", *lines, ""))


def _toml(preset: Preset) -> str:
    # JSON's texts, numbers and booleans are TOML's too.
    values = _plain(preset)["values"] | ({PIN: True} if preset.pin else {})
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


def _plain(preset: Preset) -> dict[str, Any]:
    values = {key: all_settings()[key].kind.plain(value) for key, value in preset.values.items()}
    return {"path": str(preset.path), "values": values, PIN: preset.pin}
