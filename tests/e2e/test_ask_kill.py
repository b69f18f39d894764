"""`ask` killed at any moment (`kill -9`): the store opens, and nothing that was finished is lost."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import COMMAND, REPOSITORY, killed_when_stuck, run_inside

pytestmark = pytest.mark.starter
MOMENTS = 12
LETTERS_OF_A_TOKEN = 100  # more than any has; a few that come with no letters may be held back before it


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_model: Path) -> None:
    assert starter_model.exists()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def shown(session_id: str) -> Any:
    return json.loads(run_inside("sessions", "show", session_id, "--json").out)


def listed() -> list[str]:
    result = run_inside("sessions", "list", "--json")
    assert (result.status, result.err) == (0, "")
    return [session["id"] for session in json.loads(result.out)["sessions"]]


def test_killed_at_random_moments() -> None:  # J2
    rng = random.Random(2026)
    finished = run_inside("ask", "--json", "--temperature", "0", "--max-tokens", "8", "Name a fruit.").json
    before = shown(finished["session"])
    began = 0
    for number in range(MOMENTS):
        arguments = [*COMMAND, "ask", "--seed", "1", "--temperature", "5", "--ignore-eos", "--max-tokens", "8000"]
        question = f"Write story number {number}."
        process = subprocess.Popen([*arguments, question], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=REPOSITORY, bufsize=0)
        assert process.stdout is not None
        with killed_when_stuck(process):
            # Half of them before and while the model is loaded, half while the answer grows.
            first = process.stdout.read(1) if number % 2 else b""
            time.sleep(rng.uniform(0, 1.5) if number % 2 else rng.uniform(0.1, 4))
            process.kill()
            out = (first + process.communicate()[0]).decode(errors="replace")
        ids = listed()
        assert finished["session"] in ids
        if out:  # something was shown, so the question had been kept, and the beginning of the answer
            began += 1
            messages = shown(ids[0])["messages"]
            assert [message["role"] for message in messages] == ["user", "assistant"]
            assert (messages[0]["content"], messages[1]["state"]) == (question, "interrupted")
            # What is shown is up to half a second ahead of what is kept. But a token is kept before it is shown, where it is kept at once.
            kept = messages[1]["content"].rstrip("\n\ufffd")
            assert out.startswith(kept) or kept.startswith(out.rstrip("\n\ufffd"))
            assert len(kept) <= len(out) + LETTERS_OF_A_TOKEN
    assert began >= MOMENTS // 2
    assert shown(finished["session"]) == before
    assert run_inside("ask", "-c", "--temperature", "0", "--max-tokens", "4", "Go on.").status == 0
