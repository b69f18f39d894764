"""What libraries print is kept, in memory and in a file, and is never more than text."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from chatpaged.ui import log_lines
from chatpaged.ui.log_lines import LogLine, LogLines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "log.txt"


@pytest.fixture
def lines(path: Path) -> LogLines:
    return LogLines(path)


def texts(lines: LogLines) -> list[tuple[str, str]]:
    return [(line.source, line.text) for line in lines.lines]


def test_text_becomes_lines_however_it_is_cut(lines: LogLines) -> None:
    for piece in ("one\ntw", "o\r", "\n\n", "  three"):
        lines.feed("stderr", piece)
    lines.feed("stdout", "between\n")
    lines.feed("stderr", "apart\n", writer=1)
    assert texts(lines) == [("stderr", "one"), ("stderr", "two"), ("stdout", "between"), ("stderr", "apart")]
    lines.flush()
    lines.flush()
    assert texts(lines)[4:] == [("stderr", "  three")]


def test_of_a_progress_bar_the_last_state_is_kept(lines: LogLines) -> None:
    for percent in range(101):
        lines.feed("stderr", f"\r{percent:3d}% |{'#' * percent}|")
        assert len(lines._begun["stderr", 0]) < log_lines.LONGEST_LINE + 200
    lines.feed("stderr", "\n")
    assert texts(lines) == [("stderr", f"100% |{'#' * 100}|")]


def test_control_characters_become_visible(lines: LogLines) -> None:
    lines.add("stderr", "\x1b[31mred\x1b[0m \x1b]0;title\x07bell\x07 tab\tend \x9b2Jclear \u202eturned")
    (line,) = lines.lines
    assert line.text.startswith("red bell\u2407 tab    end clear ")
    assert not {"\x1b", "\x9b", "\u202e", "\x07", "\t"} & {*line.text}


def test_only_the_last_lines_are_kept_and_long_ones_are_cut(lines: LogLines, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(log_lines.MOST_LINES + 5):
        lines.add("stdout", f"line {i}")
    assert len(lines.lines) == log_lines.MOST_LINES
    assert lines.lines[0].text == "line 5"
    lines.add("stdout", "x" * 10_000)
    lines.feed("stdout", "y" * 10_000)
    lines.flush()
    assert [len(line.text) for line in lines.lines[-2:]] == [log_lines.LONGEST_LINE + 1, log_lines.LONGEST_LINE]


def test_listeners_hear_of_lines_until_they_have_enough(lines: LogLines) -> None:
    heard: list[str] = []

    def listener(line: LogLine) -> None:
        heard.append(line.text)
        lines.add("stdout", f"heard {line.text}")  # kept, but not told again

    def gone(_: LogLine) -> None:
        raise RuntimeError("the loop is closed")

    lines.subscribe(gone)
    unsubscribe = lines.subscribe(listener)
    lines.add("stderr", "a\nb")
    unsubscribe()
    unsubscribe()
    lines.add("stderr", "c")
    assert heard == ["a", "b"]
    assert [text for _, text in texts(lines)] == ["a", "b", "heard a", "heard b", "c"]


def test_threads_may_print_at_the_same_time(lines: LogLines) -> None:
    def work(name: str) -> None:
        for i in range(200):
            for piece in (name, f" {i}", "\n"):
                lines.feed("stdout", piece, writer=threading.get_ident())

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("t0", "t1", "t2", "t3"):
        assert [text for _, text in texts(lines) if text.startswith(name)] == [f"{name} {i}" for i in range(200)]


def test_lines_go_to_a_file_of_the_user_that_does_not_grow_without_end(
    lines: LogLines, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "LARGEST_FILE", 1000)
    for i in range(40):
        lines.add("stderr", f"line {i} {'.' * 20}")
    kept = path.read_text().splitlines()
    assert kept[-1].endswith("stderr: line 39 " + "." * 20)
    old = path.with_name("log.txt.1")
    assert old.read_text().splitlines()[-1].split()[4] == str(int(kept[0].split()[4]) - 1)
    for file in (path, old):
        assert file.stat().st_size <= 1000
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lines = LogLines(tmp_path / "file" / "log.txt")
    lines.add("stderr", "kept")
    assert texts(lines) == [("stderr", "kept")]
