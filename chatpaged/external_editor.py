"""Long prompts, written in an editor of the user's."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from chatpaged.errors import ChatpagedError
from chatpaged.pasted_text import clean_text

Runner = Callable[[Sequence[str]], int]
"""Runs a command until it ends, and returns its exit code."""


def run_in_terminal(command: Sequence[str]) -> int:
    """Runs a program that has the terminal for itself, also where what is printed is caught (ui/log_capture.py)."""
    return subprocess.run(command, check=False, stdout=sys.__stdout__, stderr=sys.__stderr__).returncode


def editor_command(setting: str | None) -> list[str]:
    """The editor as a command with its arguments: the one set, else `$VISUAL`, `$EDITOR` or vi.

    Raises:
        ChatpagedError: its quotes do not match.
    """
    chosen = next(name for name in (setting, os.environ.get("VISUAL"), os.environ.get("EDITOR"), "vi") if name and name.strip())
    try:
        return shlex.split(chosen)
    except ValueError as error:
        raise ChatpagedError(f"the editor {chosen!r} is no command: {error}") from error


def edit_in_editor(text: str, setting: str | None, run: Runner = run_in_terminal) -> str:
    """Lets the user change a text. It may take hours: not for the loop of an application.

    Args:
        text: what the editor shows.
        setting: the editor; see `editor_command`.
        run: runs it.

    Returns:
        The text as it was saved, less the newline that ends its last line.

    Raises:
        ChatpagedError: there is no such editor, it has failed, or what it has saved is not UTF-8.
    """
    command = editor_command(setting)
    with tempfile.TemporaryDirectory(prefix="chatpaged-") as directory:  # made with mode 0700
        file = Path(directory) / "prompt.md"
        try:
            with os.fdopen(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
            code = run([*command, str(file)])
        except OSError as error:
            raise ChatpagedError(f"cannot run the editor {command[0]!r}: {error.strerror or error}; set app.editor or $EDITOR") from error
        if code != 0:
            raise ChatpagedError(f"the editor {command[0]!r} ended with {code}; the text stays as it was")
        try:
            return clean_text(file.read_text(encoding="utf-8")).removesuffix("\n")
        except (OSError, UnicodeError) as error:
            raise ChatpagedError(f"cannot read what the editor {command[0]!r} has saved: {error}") from error
