"""Presets: values of settings under a name, such as a system prompt with its model and sampling, kept in the files of settings.

```toml
[presets.german]
system = "Answer in German"
sampling.temperature = 0.2
pin = true  # no setting: keep the system prompt in the engine's memory
```
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatpaged.errors import SettingsError
from chatpaged.paths import project_settings_file, user_settings_file
from chatpaged.setting_groups import EXCLUSIVE
from chatpaged.setting_kinds import Flag, Value
from chatpaged.settings import PRESETS, checked_value, seen_from
from chatpaged.settings_file import SettingsFile, flat_values, read_settings_file

PIN = "pin"
"""The key of a preset, and of presets only, that has its system prompt kept in the engine's memory."""
_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class Preset:
    """Values under a name.

    Attributes:
        name: what it is called.
        path: the file it stands in.
        values: by keys of settings.
        pin: whether the KV blocks of its system prompt stay in the engine's pool, once they are there.
    """

    name: str
    path: Path
    values: dict[str, Value]
    pin: bool = False

    @property
    def model(self) -> str | None:
        """The model it is made for, if it names one."""
        value = self.values.get("model")
        return str(value) if value is not None else None

    def system(self, default: str | None) -> str | None:
        """The system prompt of chats that are begun with it; `default` where it names none."""
        value = self.values.get("system")
        return str(value) if value is not None else default


def all_presets(directory: Path) -> dict[str, Preset]:
    """The presets that can be used in a directory, by name; one of the project's file goes before one of the user's.

    Raises:
        SettingsError: a file or a preset in it is wrong.
    """
    found: dict[str, Preset] = {}
    for path in (user_settings_file(), project_settings_file(directory)):
        file = read_settings_file(path) if path is not None else None
        if file is not None:
            found |= {preset.name: preset for preset in _presets_in(file)}
    return found


def find_preset(name: str, directory: Path) -> Preset:
    """The preset of this name.

    Raises:
        SettingsError: there is none; near ones are named.
    """
    presets = all_presets(directory)
    if name in presets:
        return presets[name]
    near = difflib.get_close_matches(name, presets)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(presets)}" if presets else "there are none yet"
    raise SettingsError(f"no preset {name!r}; {hint}; 'chatpaged presets edit {name}' makes one")


def check_name(name: str) -> None:
    """Refuses names that would need quotes in a file.

    Raises:
        SettingsError: the name is none.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{name!r} is no name for a preset; letters, digits, - and _ make one")


def read_preset(name: str, path: Path, tables: dict[str, Any], where: str) -> Preset:
    """A preset from its tables, checked.

    Args:
        name: what it is called.
        path: the file it stands in; a model's relative path is seen from its directory.
        tables: as TOML gives them.
        where: what to call the place in an error.

    Raises:
        SettingsError: a key is no setting, its value is none of those it takes, or two values exclude each other.
    """
    values: dict[str, Value] = {}
    for key, value in flat_values(tables):
        try:
            checked = _checked(key, value)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from error
        values[key] = seen_from(path.parent, checked) if key == "model" else checked
    rivals = [key for key in values if EXCLUSIVE.get(key) in values]
    if rivals:
        raise SettingsError(f"{where}: {' and '.join(rivals)} say the same thing in two ways; keep one of them")
    pin = bool(values.pop(PIN, False))
    return Preset(name, path, values, pin)


def _checked(key: str, value: object) -> Value:
    if key == PIN:
        try:
            return Flag().check(value)
        except ValueError as error:
            raise SettingsError(f"{PIN} {error}") from error
    if difflib.get_close_matches(key, (PIN,)):
        raise SettingsError(f"there is no setting {key!r}; did you mean {PIN}?")
    return checked_value(key, value)


def _presets_in(file: SettingsFile) -> Iterator[Preset]:
    tables = file.tables.get(PRESETS, {})
    if not isinstance(tables, dict):
        raise SettingsError(f"{file.path}: {PRESETS} must be tables, such as [{PRESETS}.german]")
    for name, table in tables.items():
        where = f"{file.path}: preset {name!r}"
        if not isinstance(table, dict):
            raise SettingsError(f"{where} must be a table, such as [{PRESETS}.{name}]")
        yield read_preset(name, file.path, table, where)
