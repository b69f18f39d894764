"""`ask` as a shell starts it, with the real model. Each run imports torch and takes some seconds: few runs, many questions."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.runner import COMMAND, DEADLINE, REPOSITORY, killed_when_stuck, run_shell

pytestmark = pytest.mark.starter


@pytest.fixture(autouse=True)
def _model(starter_model: Path) -> None:
    """The starter is there."""


def test_output_into_files(tmp_path: Path) -> None:  # G1
    script = f'cd {tmp_path}; "$@" >o 2>e; echo "$?"; grep -c $\'\\x1b\' o e'
    assert run_shell(script, "ask", "--max-tokens", "8", "hi").out == "0\no:0\ne:0\n"
    answer, errors = (tmp_path / "o").read_text(), (tmp_path / "e").read_text()
    assert errors == ""
    assert answer.strip()
    assert answer == answer.rstrip("\n") + "\n"


def test_reader_that_wants_one_letter() -> None:  # G3
    result = run_shell('"$@" | head -c 1; echo " ${PIPESTATUS[0]}"', "ask", "--seed", "1", "--max-tokens", "2000", "Write a long story.")
    assert result.err == ""
    assert result.out[1:] == " 141\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(number: signal.Signals, status: int) -> None:  # G5
    # A hot answer seldom ends by itself. Tests may run where SIGINT is ignored, and that would be inherited.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = [*COMMAND, "ask", "--seed", "1", "--temperature", "5", "--max-tokens", "4000", "Write a long story."]
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, bufsize=0
        )
    finally:
        signal.signal(signal.SIGINT, handler)
    assert process.stdout is not None
    with killed_when_stuck(process):
        first = process.stdout.read(1)
        process.send_signal(number)
        out, err = process.communicate()
    text = (first + out).decode()
    assert (process.returncode, err) == (status, b"")
    assert len(text.strip()) > 0
    assert text == text.rstrip("\n") + "\n"


def test_nothing_lies_in_the_home_directory(tmp_path: Path, starter_model: Path) -> None:  # K2
    home = tmp_path / "home"
    home.mkdir()
    places = {f"XDG_{name}_HOME": str(tmp_path / name.lower() / "deep") for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    models = tmp_path / "cache/deep/chatpaged/models"
    models.mkdir(parents=True)
    (models / starter_model.name).symlink_to(starter_model)
    done = subprocess.run(
        [*COMMAND, "ask", "--max-tokens", "2", "--json", "hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=DEADLINE,
        cwd=tmp_path,
        env={"HOME": str(home), "PATH": os.environ["PATH"], **places},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(home.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data", "home", "state"]
    assert [path.name for path in (tmp_path / "state/deep/chatpaged").iterdir()] == ["model-usage.json"]
    assert [path.name for path in models.iterdir()] == [starter_model.name]
