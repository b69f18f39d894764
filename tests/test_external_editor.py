"""Prompts written in an editor."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatpaged.errors import ChatpagedError
from chatpaged.external_editor import edit_in_editor, editor_command, run_in_terminal


def test_the_setting_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    assert editor_command(None) == ["vi"]
    monkeypatch.setenv("EDITOR", "nano")
    assert editor_command(None) == ["nano"]
    monkeypatch.setenv("VISUAL", "code --wait")
    assert editor_command(" ") == ["code", "--wait"]
    assert editor_command("'my editor' -x") == ["my editor", "-x"]
    with pytest.raises(ChatpagedError, match="no command"):
        editor_command("'open")


def test_the_text_goes_there_and_back_privately() -> None:
    seen: list[tuple[str, int, Path]] = []

    def run(command: Sequence[str]) -> int:
        file = Path(command[-1])
        seen.append((file.read_text(), stat.S_IMODE(file.stat().st_mode), file))
        file.write_bytes("new\r\ntext é\n".encode())
        return 0

    assert edit_in_editor("old", "ed -x", run) == "new\ntext é"
    text, mode, file = seen[0]
    assert (text, mode) == ("old", 0o600)
    assert not file.parent.exists()


def test_failures() -> None:
    with pytest.raises(ChatpagedError, match="cannot run the editor 'no-such-editor'"):
        edit_in_editor("x", "no-such-editor")
    with pytest.raises(ChatpagedError, match="ended with 1"):
        edit_in_editor("x", "false")

    def spoil(command: Sequence[str]) -> int:
        Path(command[-1]).write_bytes(b"\xff\xfe\xff")
        return 0

    with pytest.raises(ChatpagedError, match="cannot read what the editor"):
        edit_in_editor("x", "ed", spoil)
    assert run_in_terminal(["true"]) == 0
