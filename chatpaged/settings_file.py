"""Reading and writing one TOML file of settings. What the keys mean is no business of this module."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatpaged.errors import ChatpagedError, SettingsError
from chatpaged.paths import private_dir, replace_file, state_dir

PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file as it was read.

    Attributes:
        path: the file.
        text: its contents.
        tables: the same, parsed.
    """

    path: Path
    text: str
    tables: dict[str, Any]

    def values(self) -> Iterator[tuple[str, object]]:
        """Keys with their groups, as in `sampling.top_p`, and values, in the order of the file. A table with nothing in it is a value."""
        return flat_values(self.tables)

    def line(self, key: str) -> int:
        """The line on which the statement that gives `key` its value begins; the number of lines if there is none.

        It comes after the longest beginning of the file that is TOML and does not have the key: that is right for tables, dotted
        keys, inline tables and texts of several lines, without a parser that knows about lines.
        """
        lines = self.text.replace("\r\n", "\n").split("\n")
        before = 0
        for count in range(1, len(lines) + 1):
            try:
                tables = tomllib.loads("\n".join(lines[:count]))
            except tomllib.TOMLDecodeError:
                continue  # within a value of several lines
            if any(known == key for known, _ in flat_values(tables)):
                return before + 1
            before = count
        return len(lines)


def flat_values(tables: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Values of nested tables, by their dotted keys."""
    for name, value in tables.items():
        key = prefix + (f'"{name}"' if "." in name else name)  # a quoted name with a dot is another name than a dotted one
        if isinstance(value, dict) and value:
            yield from flat_values(value, f"{key}.")
        else:
            yield key, value


def read_settings_file(path: Path) -> SettingsFile | None:
    """Reads a file; None if there is none.

    Raises:
        SettingsError: it is not TOML.
        OSError: it cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return SettingsFile(path, text, tomllib.loads(text))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not a TOML file: {error}") from error


def write_setting(path: Path, key: str, value: str | float | None, *, mode: int = PRIVATE) -> None:
    """Puts a value into a file, or takes it out (None). Comments and order stay. The file is replaced at once or not at all.

    Args:
        path: the file. One that is missing is made, and its directory for the owner alone.
        key: the setting with its group.
        value: what to write.
        mode: permissions of the file; when others may read it, one that exists keeps its own.

    Raises:
        SettingsError: the file is not TOML, or has something else where the setting's group belongs.
        ChatpagedError: the file cannot be written.
    """
    *groups, name = key.split(".")
    _change(path, tuple(groups), name, value, mode)


def write_table(path: Path, groups: tuple[str, ...], name: str, tables: dict[str, Any] | None, *, mode: int = PRIVATE) -> None:
    """Puts a table into a file, or takes it out (None); arguments and errors are those of `write_setting`."""
    _change(path, groups, name, tables, mode)


def _change(path: Path, groups: tuple[str, ...], name: str, value: str | float | dict[str, Any] | None, mode: int) -> None:
    import filelock  # noqa: PLC0415 - only writing needs it

    try:
        private_dir(state_dir())
        # Between reading and writing nobody else may write: his change would be lost.
        with filelock.FileLock(state_dir() / ".settings.lock", mode=PRIVATE):
            before = read_settings_file(path)
            text = _changed(path, before.text if before is not None else "", (*groups, name), value)
            _replace(path, text, mode)
    except OSError as error:
        raise ChatpagedError(f"cannot write the settings to {path}: {error.strerror or error}") from error


def _changed(path: Path, before: str, keys: tuple[str, ...], value: str | float | dict[str, Any] | None) -> str:
    """The text of a file with a value put in or taken out."""
    import tomlkit  # noqa: PLC0415 - only writing needs it
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    *groups, name = keys
    key = ".".join(keys)
    try:
        document = tomlkit.parse(before)
        table: Any = document
        for group in groups:
            if group not in table and value is not None:
                # A table of tables needs no head of its own.
                table[group] = tomlkit.table(is_super_table=isinstance(value, dict))
            table = table[group]
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
        text = document.as_string()
        tomllib.loads(text)
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError) as error:
        raise SettingsError(f"cannot change {key} in {path}: {error}; edit the file by hand") from error
    return text


def _replace(path: Path, text: str, mode: int) -> None:
    path = path.resolve()  # a link, as dotfile managers make them, stays one
    if path.exists() and mode != PRIVATE:
        mode = path.stat().st_mode & 0o777
    replace_file(path, text, mode)
