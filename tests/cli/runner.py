"""Runs the command line: in this process, which is fast, or as the process that a shell would start."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chatpaged.cli.main import main

DEADLINE = 120.0  # seconds; generous, a test that hits it has failed
COMMAND = (sys.executable, "-m", "chatpaged")
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON line on standard output."""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def failed(self, status: int, *parts: str) -> None:
        """Asserts that one clear line was written, and nothing else."""
        assert (self.status, self.out) == (status, ""), self
        assert self.err.startswith("chatpaged: "), self
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err
        assert "unexpected error" not in self.err, self
        for part in parts:
            assert part in self.err, self


class Stream(io.TextIOWrapper):
    """Standard output or error as Python opens it where the locale says nothing: the program has to ask for UTF-8."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.bytes = io.BytesIO()
        self._terminal = terminal
        super().__init__(self.bytes, encoding="ascii", errors="strict", newline="")

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.flush()
        return self.bytes.getvalue().decode("utf-8")


def run_inside(*arguments: str, stdin: bytes | None = b"", out: Stream | None = None) -> Result:
    """The command in this process. `stdin` None is a closed one."""
    with pytest.MonkeyPatch.context() as patch:
        out, err = out if out is not None else Stream(), Stream()
        patch.setattr(sys, "argv", ["chatpaged", *arguments])
        patch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            with pytest.raises(SystemExit) as end:
                main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        assert isinstance(end.value.code, int)
        return Result(end.value.code, out.text(), err.text())


@contextmanager
def killed_when_stuck(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process that hangs ends its reader's wait instead of the whole test run."""
    timer = threading.Timer(DEADLINE, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_terminal(master: int) -> str:
    """What is written to a terminal until nobody has it open any more; closes it."""
    shown = b""
    try:
        while piece := os.read(master, 4096):
            shown += piece
    except OSError as error:
        if error.errno != errno.EIO:  # Linux says so when the other side has closed
            raise
    finally:
        os.close(master)
    return shown.decode()


def run_process(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
    """The command as a process of its own."""
    done = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, check=False, timeout=DEADLINE, env=env, cwd=REPOSITORY)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_shell(script: str, *arguments: str, timeout: float = DEADLINE) -> Result:
    """A line for bash in which `"$@"` is the command with these arguments."""
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=timeout,
        cwd=REPOSITORY,
        env={**os.environ, "LC_ALL": "C"},
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
