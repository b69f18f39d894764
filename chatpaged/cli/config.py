"""`chatpaged config`: what is set, where it is set, and setting it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from chatpaged import paths
from chatpaged.cli.setting_options import working_directory
from chatpaged.cli.terminal import configure_streams, printable
from chatpaged.errors import SettingsError
from chatpaged.setting_groups import EXCLUSIVE, Setting, all_settings
from chatpaged.settings import ResolvedSettings, is_relative, parse_value, resolve_settings, setting
from chatpaged.settings_file import PRIVATE, read_settings_file, write_setting

_SHARED = 0o644  # a project file goes into a repository


def complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The settings whose keys begin so."""
    del ctx, param
    return [CompletionItem(key, help=entry.text) for key, entry in all_settings().items() if key.startswith(incomplete)]


_PROJECT = click.option("--project", is_flag=True, help=f"Change the project's file ({paths.PROJECT_FILE}) instead of the user's.")


@click.group("config")
def command() -> None:
    """Show and change settings.

    A flag ranks before a preset (-p NAME), that before an environment variable (CHATPAGED_...), that before the project's file
    (chatpaged.toml in the current directory, or above it up to the root of the repository), that before the user's file, that before the
    default. Nothing but 'config set', 'config unset' and 'presets edit' ever writes settings.
    """
    configure_streams()


# --- looking ---------------------------------------------------------------------------------------------------------


@command.command("show")
@click.argument("key", required=False, shell_complete=complete_keys)
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object; null is not set.")
def show(*, key: str | None, with_origin: bool, as_json: bool) -> None:
    """Show the settings that hold here.

    KEY is a setting, such as sampling.top_p, or a group, such as sampling; the value of one setting is written alone. What is wrong in
    a file or variable is left out and told on standard error, with exit status 2.
    """
    entries = _chosen(key)
    problems: list[SettingsError] = []
    resolved = resolve_settings(os.environ, working_directory(), with_lines=with_origin, on_problem=problems.append)
    if as_json:
        _print(json.dumps(_as_json(entries, resolved, key, with_origin=with_origin), ensure_ascii=False))
    elif key in all_settings():
        _print(_single(entries[0], resolved, with_origin=with_origin))
    else:
        for entry in entries:
            _print(_line(entry, resolved, with_origin=with_origin))
    for problem in problems:
        sys.stderr.write(f"chatpaged: {printable(str(problem))}\n")
    if problems:
        raise click.exceptions.Exit(SettingsError.exit_code)


def _chosen(key: str | None) -> list[Setting]:
    if key is None:
        return list(all_settings().values())
    return [entry for entry in all_settings().values() if entry.group == key and key] or [setting(key)]


def _single(entry: Setting, resolved: ResolvedSettings, *, with_origin: bool) -> str:
    value = resolved.value(entry.key)
    text = "" if value is None else _text(entry, value)
    return f"{text}  # {resolved.origin(entry.key)}" if with_origin else text


def _text(entry: Setting, value: str | float) -> str:
    plain = entry.kind.plain(value)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _line(entry: Setting, resolved: ResolvedSettings, *, with_origin: bool) -> str:
    """The setting as a line of TOML; one that is not set is a comment."""
    value = resolved.value(entry.key)
    if value is None:
        return f"# {entry.key} is not set: {entry.unset}"
    plain = entry.kind.plain(value)
    # JSON's texts are TOML's too, but for one character.
    toml = json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{entry.key} = {toml}" + (f"  # {resolved.origin(entry.key)}" if with_origin else "")


def _as_json(entries: list[Setting], resolved: ResolvedSettings, key: str | None, *, with_origin: bool) -> Any:
    def shown(entry: Setting) -> Any:
        value = resolved.value(entry.key)
        return {"value": value, "origin": str(resolved.origin(entry.key))} if with_origin else value

    if key in all_settings():
        return shown(entries[0])
    result: dict[str, Any] = {}
    for entry in entries:
        place = result.setdefault(entry.group, {}) if entry.group else result
        place[entry.name] = shown(entry)
    return result


@command.command("path")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
def path(*, as_json: bool) -> None:
    """List every file and directory that is used, whether it exists or not.

    Nothing lies directly in the home directory; XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME and XDG_CACHE_HOME are respected.
    """
    project = paths.project_settings_file(working_directory())
    places = {
        "user_settings": paths.user_settings_file(),
        "project_settings": project,
        "config": paths.config_dir(),
        "data": paths.data_dir(),
        "state": paths.state_dir(),
        "cache": paths.cache_dir(),
        "models": paths.models_dir(),
    }
    if as_json:
        found = {name: {"path": str(place), "exists": _exists(place)} if place is not None else None for name, place in places.items()}
        _print(json.dumps(found, ensure_ascii=False))
        return
    for name, place in places.items():
        note = "" if place is not None and _exists(place) else "  (does not exist)"
        _print(f"{name:<18}{place if place is not None else paths.PROJECT_FILE}{note}")


def _exists(place: Path) -> bool:
    return os.path.exists(place)  # pathlib's own raises where looking is not allowed


# --- changing --------------------------------------------------------------------------------------------------------


@command.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value
@click.argument("key", shell_complete=complete_keys)
@click.argument("value")
@_PROJECT
def set_(*, key: str, value: str, project: bool) -> None:
    """Set KEY to VALUE, for all later runs.

    The file keeps its comments. The user's file can be read by its owner only. Write -- before a VALUE that begins with a dash.
    """
    entry = setting(key)
    target = _target(project=project)
    checked = parse_value(entry, value)
    if key == "model" and is_relative(checked):
        # Seen from here now, from the file later; the user's file is for all directories.
        place = working_directory() / value
        checked = f"./{os.path.relpath(place, target.parent)}" if project else os.path.normpath(place)
    rival = EXCLUSIVE.get(key)
    file = read_settings_file(target)
    if rival is not None and file is not None and rival in dict(file.values()):
        raise SettingsError(f"{target} sets {rival}, which says the same thing in another way; 'chatpaged config unset {rival}' first")
    write_setting(target, key, entry.kind.plain(checked), mode=_SHARED if project else PRIVATE)
    _tell_what_overrides(entry, target, project=project)


@command.command("unset")
@click.argument("key", shell_complete=complete_keys)
@_PROJECT
def unset(*, key: str, project: bool) -> None:
    """Take KEY out of the file, so that the next place or the default decides.

    A KEY that is no setting can be taken out as well.
    """
    target = _target(project=project)
    file = read_settings_file(target)
    if file is not None and key in dict(file.values()):
        write_setting(target, key, None, mode=_SHARED if project else PRIVATE)
        return
    setting(key)
    _note(f"{key} was not set in {target}")


def _target(*, project: bool) -> Path:
    if not project:
        return paths.user_settings_file()
    directory = working_directory()
    if not directory.is_dir():
        raise SettingsError("the current directory does not exist any more; change to the project's")
    return paths.project_settings_file(directory) or directory / paths.PROJECT_FILE


def _tell_what_overrides(entry: Setting, target: Path, *, project: bool) -> None:
    """Says so when the new value does not hold here and now."""
    if os.environ.get(entry.variable):
        _note(f"environment variable {entry.variable} ranks before {target}")
    elif not project:
        place = paths.project_settings_file(working_directory())
        file = read_settings_file(place) if place is not None else None
        if file is not None and entry.key in dict(file.values()):
            _note(f"project file {place} ranks before {target}")


def _note(text: str) -> None:
    sys.stderr.write(f"chatpaged: note: {printable(text)}\n")


def _print(line: str) -> None:
    sys.stdout.write((printable(line) if sys.stdout.isatty() else line) + "\n")
