"""`ask` on terminals, pipes, full disks, and with a user who has changed his mind: each run is a process of its own."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from chatpaged.cli.terminal import printable
from tests.cli.runner import COMMAND, DEADLINE, REPOSITORY, killed_when_stuck
from tests.model_executor.tiny_models import save_family

STREAMS = ("stdin", "stdout", "stderr")
_LAST = b"<the last>"
COMBINATIONS = [dict(zip(STREAMS, choice, strict=True)) for choice in product(("tty", "pipe"), repeat=3)]
NAMES = ["-".join(combination.values()) for combination in COMBINATIONS]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers at once, with nonsense."""
    return save_family("llama", tmp_path_factory.mktemp("tiny"))


@dataclass
class Terminal:
    """A terminal of 80 columns, and what is written to it."""

    master: int
    slave: int
    settings: list[object]
    written: bytearray = field(default_factory=bytearray)

    def text(self) -> str:
        return self.written.decode(errors="replace").replace("\r\n", "\n")

    def wait_read(self) -> None:
        """Waits for what is still on its way through the kernel."""
        before = bytes(self.written)
        os.write(self.slave, _LAST)
        deadline = time.monotonic() + DEADLINE
        while not self.written.endswith(_LAST):
            assert time.monotonic() < deadline, before
            time.sleep(0.001)
        del self.written[-len(_LAST) :]

    def is_sane(self) -> bool:
        return termios.tcgetattr(self.slave) == self.settings


@contextmanager
def terminal() -> Iterator[Terminal]:
    master, slave = pty.openpty()
    opened = Terminal(master, slave, termios.tcgetattr(slave))

    def read() -> None:
        try:
            while piece := os.read(master, 65536):
                opened.written.extend(piece)
        except OSError:
            pass  # nobody has it open any more

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield opened
    finally:
        os.close(slave)
        reader.join(DEADLINE)
        os.close(master)


def start(arguments: list[str], kinds: dict[str, str], screen: Terminal, *, stdout: int | None = None) -> subprocess.Popen[bytes]:
    """The command with each stream on the terminal or on a pipe."""
    # Tests may run where SIGINT is ignored, and that would be inherited.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    places = [screen.slave if kinds[name] == "tty" else subprocess.PIPE for name in STREAMS]
    try:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=places[0],
            stdout=places[1] if stdout is None else stdout,
            stderr=places[2],
            cwd=REPOSITORY,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"},
        )
    finally:
        signal.signal(signal.SIGINT, handler)


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str
    screen: str


def run(arguments: list[str], kinds: dict[str, str], *, stdin: bytes = b"", stdout: int | None = None) -> Outcome:
    with terminal() as screen:
        process = start(arguments, kinds, screen, stdout=stdout)
        with killed_when_stuck(process):
            out, err = process.communicate(stdin if kinds["stdin"] == "pipe" else None)
        assert screen.is_sane()
        screen.wait_read()
        return Outcome(process.returncode, (out or b"").decode(), (err or b"").decode(), screen.text())


ANSWERED = ["--temperature", "0", "--max-tokens", "6", "--raw", "question"]


@pytest.fixture(scope="module")
def plain_answer(tiny_model: Path) -> str:
    """What goes into pipes."""
    outcome = run(["ask", "-m", str(tiny_model), *ANSWERED], dict.fromkeys(STREAMS, "pipe"))
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out


@pytest.mark.parametrize("kinds", COMBINATIONS, ids=NAMES)
def test_every_combination_of_streams(kinds: dict[str, str], tiny_model: Path, plain_answer: str) -> None:  # G1, G7, G10
    outcome = run(["ask", "-m", str(tiny_model), *ANSWERED], kinds)
    assert outcome.status == 0
    assert "\x1b" not in outcome.out + outcome.err
    shown = outcome.screen.rpartition("\r\x1b[K")[2]  # the status line has gone again
    # The text is the same wherever it goes, less what a terminal would obey.
    if kinds["stdout"] == "pipe":
        assert (outcome.out, shown) == (plain_answer, "")
    else:
        assert shown == printable(plain_answer)
    assert outcome.err == ""


@pytest.mark.parametrize("kinds", COMBINATIONS, ids=NAMES)
def test_failures_are_one_line_in_every_combination(kinds: dict[str, str]) -> None:  # G12
    outcome = run(["ask", "-m", "no-such-model", "question"], kinds)
    assert outcome.status == 3
    told = outcome.err if kinds["stderr"] == "pipe" else outcome.screen.replace("\r\x1b[K", "")
    assert told.startswith("chatpaged: ")
    assert told.count("\n") == 1
    assert outcome.out == ""


def test_full_disk_and_closed_pipe(tiny_model: Path) -> None:
    arguments = ["ask", "-m", str(tiny_model), "--max-tokens", "6", "question"]
    kinds = dict.fromkeys(STREAMS, "pipe")
    full = os.open("/dev/full", os.O_WRONLY)
    outcome = run(arguments, kinds, stdout=full)
    os.close(full)
    assert outcome.status == 1
    assert outcome.err == "chatpaged: cannot write the output: No space left on device\n"
    reading, writing = os.pipe()
    os.close(reading)
    outcome = run(arguments, kinds, stdout=writing)
    os.close(writing)
    assert (outcome.status, outcome.err) == (-signal.SIGPIPE, "")


MOMENTS = 12
_CATCHES_TERM = 1 << (signal.SIGTERM - 1)


def wait_for_program(pid: int) -> None:
    """Until Python has started and the program has begun: what happens before that is not ours."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
        if caught is not None and int(caught[1], 16) & _CATCHES_TERM:
            return
        time.sleep(0.001)
    pytest.fail("the program did not start")


@pytest.mark.starter
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see that the program has started")
def test_ctrl_c_at_random_moments(starter_model: Path) -> None:  # G5
    rng = random.Random(20261130)
    arguments = ["ask", "-m", str(starter_model), "--seed", "1", "--temperature", "5", "--ignore-eos", "--max-tokens", "8000"]
    for moment in (rng.uniform(0, 5) for _ in range(MOMENTS)):
        number, status = rng.choice([(signal.SIGINT, 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
        kinds = rng.choice(COMBINATIONS)
        with terminal() as screen:
            process = start([*arguments, "Write a long story."], kinds, screen)
            wait_for_program(process.pid)
            time.sleep(moment)
            process.send_signal(number)
            with killed_when_stuck(process):
                out, err = process.communicate()
            assert screen.is_sane()
            screen.wait_read()
            shown = b"".join(part for part in (out, err) if part).decode(errors="replace") + screen.text()
        assert process.returncode == status, (moment, shown)
        assert "Traceback" not in shown, (moment, shown)
        assert "Aborted" not in shown
        assert not err, (moment, err)  # None where it is the terminal
        if out:
            assert out.endswith(b"\n"), moment
