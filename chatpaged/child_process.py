"""Python modules in a process of their own: for what takes much memory once, or imports what this process does not want."""

from __future__ import annotations

import subprocess
import sys

from chatpaged.errors import MemoryBudgetError, ModelError


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module in a Python of its own, which imports nothing from the current directory (-P) and asks nothing."""
    command = [sys.executable, "-P", "-m", name, *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )


def failure_reason(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a failed process wrote to standard error: of a traceback, the error."""
    lines = (line.strip() for line in reversed(done.stderr.splitlines()))
    return next(filter(None, lines), f"exit status {done.returncode}")


def fail(done: subprocess.CompletedProcess[str], what: str) -> ModelError | MemoryBudgetError:
    """The error to raise for a process that did not succeed."""
    kind = MemoryBudgetError if done.returncode == MemoryBudgetError.exit_code else ModelError
    return kind(f"{what}: {failure_reason(done)}")
