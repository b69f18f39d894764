"""What may be proposed while a prompt is typed: commands, their arguments, files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from chatpaged.setting_groups import SamplingSettings
from chatpaged.slash_commands import COMMANDS, Completes, find_command

MOST_SHOWN = 200
_MOST_READ = 20_000
_COMMAND = re.compile(r"/([^\s/]*)\Z")
_ARGUMENT = re.compile(r"/(\S+) +(\S*)\Z")
_BEFORE_FILE = " \t\n([{<"
_LONGEST_NAME = 500
_FILE = re.compile(r'(?:^|[\s(\[{<])@(?:"(?P<quoted>[^"]*)|(?P<plain>[^\s@"]*))\Z')


class Choices(Protocol):
    """Where names come from. Each is a name and a few words about it. They may be slow: they are not asked on an application's loop."""

    def presets(self) -> Sequence[tuple[str, str]]:
        """The presets there are."""

    def models(self) -> Sequence[tuple[str, str]]:
        """The models on this machine."""

    def themes(self) -> Sequence[tuple[str, str]]:
        """The themes of the application."""


class NoChoices:
    """No names at all."""

    def presets(self) -> Sequence[tuple[str, str]]:
        """None."""
        return ()

    models = themes = presets


@dataclass(frozen=True, slots=True)
class Proposals:
    """What is wanted of a completion.

    Attributes:
        completes: what kind of thing.
        start: the column where the typed beginning starts.
        typed: that beginning.
        optional: nothing need be chosen, as what is typed is whole already.
        mention: it is a file with an `@` before it.
    """

    completes: Completes
    start: int
    typed: str
    optional: bool = False
    mention: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that may be chosen.

    Attributes:
        text: what takes the place of what was typed.
        label: what is shown.
        help: a few words about it.
        goes_on: more of it can be completed at once, as in a directory.
    """

    text: str
    label: str
    help: str = ""
    goes_on: bool = False


def proposals_at(before: str, *, first_line: bool) -> Proposals | None:
    """What may be completed where the cursor stands.

    Args:
        before: the line up to the cursor.
        first_line: whether it is the first line; a command can only be there.
    """
    if first_line and (match := _COMMAND.match(before)):
        return Proposals(Completes.COMMAND, 0, match[1])
    if first_line and (match := _ARGUMENT.match(before)):
        command = find_command(match[1])
        if command is not None and command.completes is not Completes.NOTHING:
            return Proposals(command.completes, match.start(2), match[2], optional=not command.needs_argument and not match[2])
    skipped = max(0, len(before) - _LONGEST_NAME)
    if match := _FILE.search(before, skipped):
        typed = match["quoted"] if match["quoted"] is not None else match["plain"]
        return Proposals(Completes.FILE, match.end() - len(match[0].lstrip(_BEFORE_FILE)), typed, optional=not typed, mention=True)
    return None


def candidates(wanted: Proposals, choices: Choices, directory: Path) -> list[Candidate]:
    """What fits, the best first.

    Args:
        wanted: see `proposals_at`.
        choices: where names come from.
        directory: where relative file names begin.
    """
    if wanted.completes is Completes.FILE:
        return _files(wanted, directory)
    if wanted.completes is Completes.COMMAND and wanted.start == 0:
        return _commands(wanted.typed)
    match wanted.completes:
        case Completes.PRESET:
            names = choices.presets()
        case Completes.MODEL:
            names = choices.models()
        case Completes.THEME:
            names = choices.themes()
        case Completes.SETTING:
            names = [(field.name, field.metadata["text"]) for field in fields(SamplingSettings)]
        case _:
            names = [(command.name, command.help) for command in COMMANDS]
    return [Candidate(name, name, text) for name, text in _fitting(names, wanted.typed)]


def _commands(typed: str) -> list[Candidate]:
    """Commands by name, then by alias."""
    typed = typed.lower()
    by_name = [command for command in COMMANDS if command.name.startswith(typed)]
    others = [command for command in COMMANDS if command not in by_name and any(name.startswith(typed) for name in command.aliases)]
    return [
        Candidate(f"/{command.name} " if command.usage else f"/{command.name}", command.line, command.help, goes_on=bool(command.usage))
        for command in (*by_name, *others)
    ]


def _fitting(names: Iterable[tuple[str, str]], typed: str) -> list[tuple[str, str]]:
    """Names that begin with what is typed, then those that have it somewhere."""
    typed = typed.lower()
    fitting = [(name, text) for name, text in names if typed in name.lower()]
    return sorted(fitting, key=lambda entry: not entry[0].lower().startswith(typed))[:MOST_SHOWN]


def _files(wanted: Proposals, directory: Path) -> list[Candidate]:
    """Files and directories; hidden ones once a dot is typed."""
    parent, slash, beginning = wanted.typed.rpartition("/")
    parent += slash
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(directory / Path(parent or ".").expanduser()) as entries:
            for _, entry in zip(range(_MOST_READ), entries, strict=False):
                if entry.name.lower().startswith(beginning.lower()) and (beginning.startswith(".") or not entry.name.startswith(".")):
                    found.append((entry.is_dir(), entry.name))
    except (OSError, RuntimeError, ValueError):
        return []
    found = [(is_dir, name) for is_dir, name in found if not {*name} & {*'"\n'} and name.isprintable()]
    found.sort(key=lambda entry: (not entry[0], entry[1].lower()))
    return [_file(parent + name, name, is_dir=is_dir, mention=wanted.mention) for is_dir, name in found[:MOST_SHOWN]]


def _file(path: str, name: str, *, is_dir: bool, mention: bool) -> Candidate:
    label = f"{name}/" if is_dir else name
    text = f"{path}/" if is_dir else path
    if mention:
        quoted = any(character.isspace() or character == "@" for character in text)
        text = f'@"{text}' if quoted and is_dir else f'@"{text}"' if quoted else f"@{text}"
    return Candidate(text, label, goes_on=is_dir)
