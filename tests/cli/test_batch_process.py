"""`batch` as processes that are killed; the model is scripted, so that they start at once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.runner import DEADLINE, REPOSITORY, killed_when_stuck
from tests.cli.scripted_model import DELAY, make_model

COMMAND = (sys.executable, "-m", "tests.cli.scripted_model", "batch", "--temperature", "0", "--max-num-seqs", "4")
NUM_ROWS = 200
NUM_KILLS = 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "tiny")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"custom_id": f"id-{i}", "prompt": f"question {i}"} if i % 40 else {"custom_id": f"id-{i}"}) for i in range(NUM_ROWS)
    ]
    path.write_text("\n".join(lines))
    return path


def start(*arguments: object, delay: float = 0.0, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    environment = os.environ | {DELAY: str(delay), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, env=environment
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out.decode(), err.decode()


def answers(text: str) -> dict[str, str | None]:
    """The text of each row, or None where it failed. No row is there twice."""
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        row = json.loads(line)
        assert row["custom_id"] not in found
        found[row["custom_id"]] = row["response"] and row["response"]["body"]["choices"][0]["message"]["content"]
    return found


def whole_lines(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1]


@pytest.mark.parametrize("order", [(), ("--ordered",)], ids=["as done", "ordered"])
def test_killed_at_any_moment_it_goes_on(model: Path, rows: Path, tmp_path: Path, order: tuple[str, ...]) -> None:  # H2
    begun = time.monotonic()
    status, out, _ = finish(start("-m", model, rows, *order))
    duration = time.monotonic() - begun
    expected = answers(out)
    assert (status, len(expected), sum(text is None for text in expected.values())) == (6, NUM_ROWS, 5)
    output = tmp_path / "out"
    moments = random.Random(20)
    done = ""
    num_midway = 0
    for number in range(NUM_KILLS):
        process = start("-m", model, rows, "-o", output, "--resume", *order, delay=0.004)
        with killed_when_stuck(process):
            begun = time.monotonic()
            # Half of them at any moment; the others within the work, however long starting takes today.
            patience = moments.uniform(0.0, 4 * duration) if number % 2 else DEADLINE
            wait = moments.uniform(0.0, 0.25)
            while process.poll() is None and whole_lines(output) == done and time.monotonic() - begun < patience:
                time.sleep(0.01)
            time.sleep(wait)
            process.kill()
            process.communicate()
        assert process.returncode in (-signal.SIGKILL, 6)
        now = whole_lines(output)
        assert now.startswith(done), "what was finished is still there"
        assert answers(now).items() <= expected.items()
        num_midway += process.returncode == -signal.SIGKILL and now != done
        done = now
        if len(answers(now)) == NUM_ROWS:
            output.unlink()
            done = ""
    assert num_midway >= 5, "too few were killed while they wrote"
    status, _, err = finish(start("-m", model, rows, "-o", output, "--resume", *order))
    assert status == 6, err
    assert answers(output.read_text()) == expected
    if order:
        assert list(answers(output.read_text())) == list(expected)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_end_it_says_how_to_go_on(model: Path, rows: Path, tmp_path: Path, number: signal.Signals, status: int) -> None:  # G5
    output = tmp_path / "out"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # A file as standard input can be resumed as well.
        with rows.open("rb") as file:
            process = start("-m", model, "-o", output, delay=0.01, stdin=file.fileno())
    finally:
        signal.signal(signal.SIGINT, handler)
    with killed_when_stuck(process):
        while process.poll() is None and whole_lines(output).count("\n") < 20:
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == status
    assert err.startswith(b"chatpaged: stopped: ")
    assert err.endswith(b"; the same command with --resume goes on\n")
    text = output.read_text()
    assert text == whole_lines(output)
    assert 20 <= len(answers(text)) < NUM_ROWS
    with rows.open("rb") as file:
        assert finish(start("-m", model, "-o", output, "--resume", stdin=file.fileno()))[0] == 6
    assert len(answers(output.read_text())) == NUM_ROWS


def test_a_reader_that_wants_one_line(model: Path, rows: Path) -> None:  # G3
    process = start("-m", model, rows, delay=0.005)
    assert process.stdout is not None
    with killed_when_stuck(process):
        assert json.loads(process.stdout.readline())["custom_id"]
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.stderr.close()
        process.wait()
    assert (process.returncode, err) == (-signal.SIGPIPE, b"")


def test_a_full_disk_is_told_and_what_was_written_stays_good(model: Path, rows: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    status, _, err = finish(start("-m", model, rows, "-o", "/dev/full"))
    assert status == 1
    assert err.count("\n") == 1
    assert "No space left on device" in err
