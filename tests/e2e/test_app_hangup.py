"""The terminal goes away while the app is open: its window is closed, or a connection breaks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from chatpaged.store import Store
from tests.cli.runner import DEADLINE


@pytest.mark.parametrize("ignores_hangup", [False, True])
def test_the_app_ends_with_its_terminal(tmp_path: Path, ignores_hangup: bool) -> None:
    """Also where the signal is ignored, as under nohup: then the end of the input says so, and must not be asked for again and again."""
    ours, theirs = pty.openpty()
    environment = (
        os.environ | {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("DATA", "STATE", "CONFIG")} | {"TERM": "xterm-256color"}
    )
    before = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " if ignores_hangup else ""
    script = f"{before}import sys; sys.argv = ['chatpaged', 'run', '--demo']; from chatpaged.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    while b"demo is ready" not in seen:
        seen += os.read(ours, 65536)
    os.write(ours, b"Tell me something long\r")
    while b"writing" not in seen:
        seen += os.read(ours, 65536)
    os.close(ours)
    try:
        process.wait(DEADLINE)
    finally:
        process.kill()
    with Store(tmp_path / "DATA/chatpaged/conversations.db") as store:
        [info] = store.sessions()
        question, answer = store.load(info.id).path()
    assert question.content == "Tell me something long"
    assert answer.content
