"""`ask` keeps what is said, and goes on with it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import COMMAND, DEADLINE, REPOSITORY, killed_when_stuck, run_inside

pytestmark = pytest.mark.starter
GREEDY = ("--temperature", "0", "--max-tokens", "6")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_model: Path) -> Path:
    """A store of its own."""
    assert starter_model.exists()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data/chatpaged"


def ask(*arguments: str) -> Any:
    result = run_inside("ask", "--json", *GREEDY, *arguments)
    assert (result.status, result.err) == (0, "")
    return result.json


def prompt_of(*arguments: str) -> str:
    prompt: str = run_inside("ask", "--dry-run", *arguments).out
    return prompt


def sessions() -> list[Any]:
    listed: list[Any] = json.loads(run_inside("sessions", "list", "--json").out)["sessions"]
    return listed


def test_a_conversation_goes_on_from_its_ids() -> None:
    first = ask("My name is Ada.")
    second = ask("-c", "What is my name?")
    assert second["session"] == first["session"]
    # Nothing but the glue and the new question is new: the ids are those of the first turn.
    dry = json.loads(run_inside("ask", "--dry-run", "--json", "-c", "x").out)["token_ids"]
    ids = first["answers"][0]["token_ids"]
    assert any(dry[i : i + len(ids)] == ids for i in range(len(dry)))
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + len(ids)
    assert [entry["id"] for entry in sessions()] == [first["session"]]


def test_other_conversations_and_branches() -> None:
    fruit, colour = ask("Name a fruit."), ask("Name a colour.")
    assert fruit["session"] != colour["session"]
    run_inside("sessions", "rename", fruit["session"], "fruits")
    assert "Name a fruit." in prompt_of("--session", "fruits", "Another?")
    assert "Name a colour." in prompt_of("-c", "Another?")
    ask("--session", "fruits", "Another one, please.")
    branch = prompt_of("--reply-to", fruit["messages"][1], "And a third?")
    assert "Name a fruit." in branch
    assert "Another one" not in branch
    run_inside("ask", "-c", "--session", "fruits", "x").failed(2, "-c and --session")
    run_inside("ask", "--session", "friuts", "x").failed(2, "friuts", "fruits")


def test_nothing_is_kept_unless_wanted(place: Path) -> None:
    assert ask("--no-save", "hi")["session"] is None
    prompt_of("hi")
    assert not place.exists()
    run_inside("ask", "-c", "hi").failed(2, "no conversation to go on with")


def test_a_system_prompt_stays_with_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    ask("-s", "Be brief", "hi")
    monkeypatch.setenv("CHATPAGED_SYSTEM", "Be long")
    assert "system\nBe brief<" in prompt_of("-c", "x")
    assert "system\nBe long<" in prompt_of("x")
    assert "system\nBe kind<" in prompt_of("-c", "-s", "Be kind", "x")
    assert "system\n<" in prompt_of("-s", "", "x")


def test_a_store_that_cannot_be_written_is_told_and_the_answer_given(place: Path) -> None:
    place.parent.mkdir()
    place.write_text("in the way")
    result = run_inside("ask", *GREEDY, "hi")
    assert result.status == 0
    assert result.out.strip()
    assert result.err.startswith("chatpaged: this conversation is not kept: ")
    assert result.err.count("\n") == 1
    run_inside("ask", "-c", "hi").failed(2, "nothing has been saved yet")


def test_an_interrupted_answer_is_kept(place: Path) -> None:  # G5
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = [*COMMAND, "ask", "--seed", "1", "--temperature", "5", "--max-tokens", "4000", "Write a long story."]
    try:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=REPOSITORY, bufsize=0)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert process.stdout is not None
    with killed_when_stuck(process):
        shown = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        shown += process.communicate()[0]
    assert process.returncode == 130
    (session,) = sessions()
    messages = json.loads(run_inside("sessions", "show", session["id"], "--json").out)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["finish_reason"] == "cancelled"
    assert messages[1]["content"].rstrip("\n") == shown.decode().rstrip("\n")


def test_eight_at_once(place: Path) -> None:  # J3
    processes = [
        subprocess.Popen([*COMMAND, "ask", "--max-tokens", "2", "--threads", "1", str(i)], stdin=subprocess.DEVNULL, cwd=REPOSITORY)
        for i in range(8)
    ]
    assert [process.wait(DEADLINE) for process in processes] == [0] * 8
    assert len(sessions()) == 8
    with sqlite3.connect(place / "conversations.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}  # K3
    assert os.stat(place).st_mode & 0o777 == 0o700
