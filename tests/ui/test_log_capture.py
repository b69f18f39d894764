"""While the application is on the screen, nothing else gets there; afterwards everything is as it was. (I20)"""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from chatpaged.ui.log_capture import capture_output

REPOSITORY = Path(__file__).parent.parent.parent
LIMIT = 60.0  # seconds; only a broken test waits so long

# An application that draws a word, then waits until all that was printed has come to the log.
PROGRAM = """
import json, logging, os, subprocess, sys, threading, warnings
from pathlib import Path
from textual.app import App
from textual.widgets import Label
from chatpaged.external_editor import run_in_terminal
from chatpaged.ui.log_capture import capture_output

early = logging.StreamHandler()  # as libraries make them: it keeps the stream of this moment
words = ["print", "error", "warn", "log", "handler", "bare-out", "bare-err", "child", "thread", "late"]


class Shown(App):
    def compose(self):
        yield Label("drawn-label", markup=False)

    def on_mount(self):
        log.take_prints()
        print("word-print")
        sys.stderr.write("word-error\\n")
        warnings.warn("word-warn")
        logging.warning("word-log")
        library = logging.getLogger("library")
        library.propagate = False
        library.addHandler(early)
        library.warning("word-handler")
        os.write(1, b"word-bare-out\\n")
        os.write(2, b"word-bare-err\\n")
        subprocess.run(["sh", "-c", "echo word-child; head -c 300000 /dev/zero | tr '\\\\0' x; echo"])
        threading.Thread(target=print, args=("word-thread",)).start()
        self.set_interval(0.01, self.look)

    def look(self):
        if all(f"word-{word}" in str(log.lines.lines) for word in words[:-1]):
            with self.suspend():
                run_in_terminal(["sh", "-c", "echo editor-words"])
                print("suspended-words")
            CRASH
            self.exit()


before = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, warnings.showwarning, logging.getLogger().handlers[:])
places = [os.fstat(i).st_ino for i in (1, 2)]
open_before = sorted(os.listdir("/proc/self/fd"))
with capture_output(Path(sys.argv[1])) as log:
    Shown().run()
    print("word-late", end="")
after = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, warnings.showwarning, logging.getLogger().handlers[:])
assert before == after
assert places == [os.fstat(i).st_ino for i in (1, 2)]
assert threading.active_count() == 1, threading.enumerate()
print("restored-out")
os.write(2, b"restored-err\\n")
Path(sys.argv[2]).write_text(json.dumps([[line.source, line.text] for line in log.lines.lines]))
"""


def screen_of(program: str, directory: Path, *, stderr: int | None = None) -> tuple[str, list[list[str]]]:
    """Runs a program in a terminal. Returns what was written to it, and the lines of the log."""
    (directory / "program.py").write_text(program)
    master, slave = pty.openpty()
    written = bytearray()

    def read() -> None:
        try:
            while piece := os.read(master, 65536):
                written.extend(piece)
        except OSError:
            pass  # nobody has it open any more

    process = subprocess.Popen(
        [sys.executable, "program.py", "log.txt", "lines.json"],
        cwd=directory,
        stdin=slave,
        stdout=slave,
        stderr=slave if stderr is None else stderr,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(slave)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        status = process.wait(LIMIT)
    finally:
        process.kill()
        reader.join(LIMIT)
        os.close(master)
    screen = written.decode(errors="replace")
    assert status == 0, screen[-3000:]
    return screen, json.loads((directory / "lines.json").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_all_that_is_printed_ends_in_the_log_and_the_application_is_drawn(tmp_path: Path) -> None:
    screen, lines = screen_of(PROGRAM.replace("CRASH", "pass"), tmp_path)
    assert "drawn-label" in screen
    assert "word-" not in screen
    assert "xxxxx" not in screen
    for shown in ("editor-words", "suspended-words", "restored-out", "restored-err"):
        assert shown in screen, shown
    by_word = {text.rpartition("word-")[2]: source for source, text in lines if "word-" in text}
    assert by_word == {
        "print": "stdout",
        "error": "stderr",
        "warn": "warnings",
        "log": "logging",
        "handler": "stderr",
        "bare-out": "stdout",
        "bare-err": "stderr",
        "child": "stdout",
        "thread": "stdout",
        "late": "stdout",
    }
    assert not [text for _, text in lines if "-words" in text]
    kept = (tmp_path / "log.txt").read_text()
    assert all(f"word-{word}" in kept for word in ("print", "bare-err", "warn"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_crash_of_the_application_restores_everything_and_is_in_the_log(tmp_path: Path) -> None:
    screen, lines = screen_of(PROGRAM.replace("CRASH", "raise ZeroDivisionError('oh no')"), tmp_path)
    assert "restored-out" in screen
    assert "restored-err" in screen
    assert "oh no" not in screen
    assert any("oh no" in text for source, text in lines if source == "stderr")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_application_is_drawn_on_standard_output_where_errors_go_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "errors.txt").open("wb") as errors:
        screen, _ = screen_of(PROGRAM.replace("CRASH", "pass"), tmp_path, stderr=errors.fileno())
    assert "drawn-label" in screen
    assert (tmp_path / "errors.txt").read_text() == "restored-err\n"


def test_everything_is_restored_after_an_exception(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def state() -> tuple[object, ...]:
        streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, warnings.showwarning, tuple(logging.getLogger().handlers))
        return (*streams, threading.active_count(), *(os.fstat(i).st_ino for i in (1, 2)))

    before = state()
    descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(ZeroDivisionError), capture_output(tmp_path / "log.txt") as log:
        assert os.write(2, b"half a line") // 0
    assert state() == before
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [(line.source, line.text) for line in log.lines.lines] == [("stderr", "half a line")]
    os.write(1, b"back again")
    assert capfd.readouterr().out == "back again"


def test_warnings_and_records_are_told_with_where_they_come_from(tmp_path: Path) -> None:
    elsewhere: list[object] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *arguments: elsewhere.append(arguments[0])
        with capture_output(tmp_path / "log.txt") as log:
            warnings.warn("careful", stacklevel=1)
            try:
                log.lines.lines[99]
            except IndexError:
                logging.getLogger("some.library").exception("failed %d times", 3)
            warnings.showwarning("to a file", UserWarning, "x.py", 3, sys.stdout)
    found = [(line.source, line.text) for line in log.lines.lines]
    assert found[0][0] == "warnings"
    assert found[0][1].startswith("test_log_capture.py:")
    assert found[0][1].endswith("UserWarning: careful")
    assert found[1] == ("logging", "ERROR some.library: failed 3 times")
    assert found[2] == ("logging", "Traceback (most recent call last):")
    assert found[-1] == ("logging", "IndexError: tuple index out of range")
    assert elsewhere == ["to a file"]


def test_libraries_find_no_terminal(tmp_path: Path) -> None:
    with capture_output(tmp_path / "log.txt"):
        assert not sys.stdout.isatty()
        assert (sys.stdout.fileno(), sys.stderr.fileno(), sys.stderr.encoding) == (1, 2, "utf-8")
        assert sys.stdout.writable()
