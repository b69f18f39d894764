"""What is set, and where: files, environment, defaults.

```text
flag  >  preset (-p NAME)  >  environment (CHATPAGED_*)  >  project file (chatpaged.toml)  >  user file (config.toml)  >  default
```

Flags belong to the command line (`cli/setting_options.py`). Which settings there are says `setting_groups.py`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from chatpaged.errors import SettingsError
from chatpaged.paths import project_settings_file, user_settings_file
from chatpaged.setting_groups import EXCLUSIVE, PREFIX, Setting, Settings, all_settings
from chatpaged.setting_kinds import Value
from chatpaged.settings_file import SettingsFile, read_settings_file

# Kubernetes sets these in every container beside a service that is called chatpaged.
IGNORED_VARIABLES = ("CHATPAGED_SERVICE_", "CHATPAGED_PORT")
# What runs code that came with a model is decided each time, by the one who types the command.
PRESETS = "presets"
"""The table of presets in a file, which are no settings (`presets.py`)."""
FLAG_ONLY = {"trust_remote_code": "--trust-remote-code"}


def setting(key: str) -> Setting:
    """The setting of this key.

    Raises:
        SettingsError: there is none; near ones are named.
    """
    found = all_settings().get(key)
    if found is None:
        raise SettingsError(_unknown(key))
    return found


def parse_value(entry: Setting, text: str, *, name: str = "") -> Value:
    """The value of a setting that a text stands for. `name` is what the text is called in an error, when not the setting's key.

    Raises:
        SettingsError: the setting takes no such value.
    """
    try:
        return entry.kind.parse(text)
    except ValueError as error:
        raise SettingsError(f"{name or entry.key} {error}") from error


def _refuse(error: SettingsError) -> None:
    raise error


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from.

    Attributes:
        kind: `preset`, `environment`, `project file`, `user file` or `default`.
        place: the preset, the variable or the path; empty for a default.
        line: the line in the file, where it is known.
    """

    kind: str
    place: str = ""
    line: int | None = None

    def __str__(self) -> str:
        line = f":{self.line}" if self.line is not None else ""
        return f"{self.kind} {self.place}{line}".rstrip()


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The values that hold, and their origins by key. A setting without an origin has its default."""

    values: Settings
    origins: Mapping[str, Origin]

    def value(self, key: str) -> Value | None:
        """The value of a setting."""
        found: Any = self.values
        for part in key.split("."):
            found = getattr(found, part)
        value: Value | None = found
        return value

    def origin(self, key: str) -> Origin:
        """Where the value of a setting comes from."""
        return self.origins.get(key, Origin("default"))


def resolve_settings(
    environ: Mapping[str, str],
    directory: Path,
    *,
    preset: tuple[str, Mapping[str, Value]] | None = None,
    with_lines: bool = False,
    on_problem: Callable[[SettingsError], None] = _refuse,
) -> ResolvedSettings:
    """The settings that hold for a command.

    Args:
        environ: the environment.
        directory: where the command is run; the project file is looked for from here.
        preset: the name and the values of the preset that the command line asks for; they rank before the environment.
        with_lines: find out the lines of values in files, for those who want to see them.
        on_problem: is told what is wrong, and may go on without it; else it is raised.

    Raises:
        SettingsError: a file or variable is wrong.
    """
    values: dict[str, Value] = {}
    origins: dict[str, Origin] = {}
    for kind, path in (("user file", user_settings_file()), ("project file", project_settings_file(directory))):
        file = _read(path, on_problem) if path is not None else None
        if file is not None:
            found = dict(_from_file(file, on_problem))
            lines = {key: file.line(key) for key in found} if with_lines else {}
            places = {key: Origin(kind, str(file.path), lines.get(key)) for key in found}
            _put(values, origins, _without_rivals(found, places, on_problem), places)
    found = dict(_from_environment(environ, on_problem))
    places = {key: Origin("environment", setting(key).variable) for key in found}
    _put(values, origins, _without_rivals(found, places, on_problem), places)
    if preset is not None:
        _put(values, origins, preset[1], dict.fromkeys(preset[1], Origin("preset", preset[0])))
    return ResolvedSettings(_filled(Settings(), values, ""), origins)


def _read(path: Path, on_problem: Callable[[SettingsError], None]) -> SettingsFile | None:
    try:
        return read_settings_file(path)
    except SettingsError as error:
        on_problem(error)
        return None


def _without_rivals(found: dict[str, Value], places: Mapping[str, Origin], on_problem: Callable[[SettingsError], None]) -> dict[str, Value]:
    """The values of one place, less those that contradict each other."""
    rivals = [key for key in found if EXCLUSIVE.get(key) in found]
    if rivals:
        on_problem(SettingsError(f"{places[rivals[0]]}: {' and '.join(rivals)} say the same thing in two ways; keep one of them"))
    return {key: value for key, value in found.items() if key not in rivals}


def _put(values: dict[str, Value], origins: dict[str, Origin], found: Mapping[str, Value], places: Mapping[str, Origin]) -> None:
    """Puts values over those that rank lower."""
    for key, value in found.items():
        for lower in (key, EXCLUSIVE.get(key, key)):
            values.pop(lower, None)
            origins.pop(lower, None)
        values[key], origins[key] = value, places[key]


def _filled(group: Any, values: Mapping[str, Value], prefix: str) -> Any:
    """The group with the values put in, and its own groups likewise."""
    changes: dict[str, Any] = {}
    for entry in fields(group):
        default = getattr(group, entry.name)
        if is_dataclass(default):
            changes[entry.name] = _filled(default, values, f"{prefix}{entry.name}.")
        elif prefix + entry.name in values:
            changes[entry.name] = values[prefix + entry.name]
    return replace(group, **changes)


def _from_file(file: SettingsFile, on_problem: Callable[[SettingsError], None]) -> Iterator[tuple[str, Value]]:
    groups = {entry.group for entry in all_settings().values()}
    for key, value in file.values():
        if key.partition(".")[0] == PRESETS or (value == {} and key in groups):
            continue  # somebody else's, or a head without a body
        try:
            checked = checked_value(key, value)
        except SettingsError as error:
            on_problem(SettingsError(f"{file.path}:{file.line(key)}: {error}"))
            continue
        yield key, seen_from(file.path.parent, checked) if key == "model" else checked


def seen_from(directory: Path, model: Value) -> Value:
    """A model's name as it is meant in a file of a directory."""
    return os.path.normpath(directory / str(model)) if is_relative(model) else model


def is_relative(model: Value) -> bool:
    """Whether a model's name is a path that depends on a directory."""
    return str(model).startswith(("./", "../"))


def checked_value(key: str, value: object) -> Value:
    """A value from a file, as the setting takes it.

    Raises:
        SettingsError: there is no such setting, or it takes no such value.
    """
    try:
        return setting(key).kind.check(value)
    except ValueError as error:
        raise SettingsError(f"{key} {error}") from error


def _from_environment(environ: Mapping[str, str], on_problem: Callable[[SettingsError], None]) -> Iterator[tuple[str, Value]]:
    """An empty variable counts as none."""
    names = {entry.variable: entry for entry in all_settings().values()}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or not text or name.startswith(IGNORED_VARIABLES):
            continue
        entry = names.get(name)
        if entry is None:
            on_problem(SettingsError(f"environment variable {name} {_flag_only(name) or f'is no setting{_near(name, names)}'}"))
            continue
        try:
            value = parse_value(entry, text, name=f"environment variable {name}")
        except SettingsError as error:
            on_problem(error)
            continue
        yield entry.key, value


def _unknown(key: str) -> str:
    refusal = _flag_only(key)
    return f"{key} {refusal}" if refusal else f"there is no setting {key!r}{_near(key, all_settings())}"


def _flag_only(name: str) -> str:
    flag = next((flag for word, flag in FLAG_ONLY.items() if name.lower().endswith(word)), None)
    return f"cannot be set, since it lets code that comes with a model run; give {flag} on the command line" if flag else ""


def _near(name: str, names: Mapping[str, Setting]) -> str:
    """The names that were perhaps meant: those with a like last part in any group, else those that are like it as a whole."""
    last = name.removeprefix(PREFIX).lower().rpartition(".")[2]
    by_last = {entry.name: known for known, entry in names.items()}
    like = [by_last[part] for part in difflib.get_close_matches(last, by_last)] or difflib.get_close_matches(name, names)
    return f"; did you mean {' or '.join(like)}?" if like else "; 'chatpaged config show' lists all"
