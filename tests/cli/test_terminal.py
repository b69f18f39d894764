"""What reaches a terminal, and what a file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from chatpaged.cli.terminal import AnswerWriter, ReasoningWriter, Status, configure_streams, printable, styled
from tests.cli.runner import COMMAND, REPOSITORY, Stream, killed_when_stuck, read_terminal, run_inside


def on_terminal(*arguments: str) -> tuple[int, str, str]:
    """Runs the command with a terminal for standard output. Returns status, what it showed, and standard error."""
    master, slave = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, cwd=REPOSITORY)
    os.close(slave)
    with killed_when_stuck(process):
        shown = read_terminal(master)
        _, err = process.communicate()
    return process.returncode, shown, err.decode()


# --- printable text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a␛[31mb"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\rb\bc\x7f\0", "a␍b␈c␡␀"),
        ("line\n\ttab", "line\n\ttab"),
        ("\x9b31m\x85", "\ufffd31m\ufffd"),  # the eight-bit form of an escape sequence
        ("abc\u202etxt.exe\u2066", "abc\ufffdtxt.exe\ufffd"),
        ("Grüße 日本語 😀 👩\u200d💻", "Grüße 日本語 😀 👩\u200d💻"),
    ],
)
def test_control_characters_become_symbols(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_character_is_forgotten() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) == "Cc" and character not in "\n\t":
            assert printable(character) != character, hex(code)
        if unicodedata.bidirectional(character) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}:
            assert printable(character) != character, hex(code)


# --- the writer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "written"),
    [
        ([], "\n"),
        ([""], "\n"),
        (["Hello"], "Hello\n"),
        (["Hello\n"], "Hello\n"),
        (["Hello", "\n", "\n\n"], "Hello\n"),
        (["Hello\n", "\nWorld"], "Hello\n\nWorld\n"),
        (["\n\nHello"], "\n\nHello\n"),  # E16
        (["a\r\n"], "a\r\n"),
        (["  spaces  "], "  spaces  \n"),
    ],
)
def test_answer_ends_with_one_newline(pieces: list[str], written: str) -> None:
    stream = Stream()
    writer = AnswerWriter(stream)
    for piece in pieces:
        writer.write(piece)
    writer.end()
    assert stream.text() == written


@pytest.mark.parametrize("text", ["", "a", "a\n", "\n\na\n\n"])
def test_raw_answers_keep_their_own_newlines(text: str) -> None:
    stream = Stream()
    writer = AnswerWriter(stream, raw=True)
    for character in text:
        writer.write(character)
    writer.end()
    assert stream.text() == text


def test_reasoning_is_marked() -> None:
    stream = Stream()
    writer = AnswerWriter(stream)
    writer.write_reasoning("hm")
    writer.write_reasoning(", so")
    writer.write("42\n")
    writer.end()
    assert stream.text() == "<think>\nhm, so\n</think>\n\n42\n"
    writer.write_reasoning("no end")
    writer.end()
    assert stream.text().endswith("42\n<think>\nno end\n</think>\n")


def test_reasoning_on_a_terminal() -> None:
    stream = Stream(terminal=True)
    stream.reconfigure(encoding="utf-8")
    writer = ReasoningWriter(stream, dim=True)
    for piece in ("a\x1b", "b"):
        writer.write(piece)
    writer.end()
    writer.end()
    assert stream.text() == "\x1b[2ma␛\x1b[0m\x1b[2mb\x1b[0m\n\n"
    plain = Stream(terminal=True)
    ReasoningWriter(plain, dim=False).write("a")
    assert plain.text() == "a"
    nobody = Stream()
    ReasoningWriter(nobody, dim=True).write("a")
    assert nobody.text() == ""


def test_who_gets_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Stream(terminal=True)
    assert styled(terminal, no_color=False)
    assert not styled(terminal, no_color=True)
    assert not styled(Stream(), no_color=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not styled(terminal, no_color=False)
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not styled(terminal, no_color=False)


def test_each_piece_is_there_at_once() -> None:
    stream = Stream()
    writer = AnswerWriter(stream)
    writer.write("Hel")
    assert stream.bytes.getvalue() == b"Hel"
    writer.write("lo\n")
    assert stream.bytes.getvalue() == b"Hello"


def test_symbols_are_for_terminals_only() -> None:
    terminal, pipe = Stream(terminal=True), Stream()
    for stream in (terminal, pipe):
        stream.reconfigure(encoding="utf-8")
        writer = AnswerWriter(stream)
        writer.write("\x1b[2J")
        writer.end()
    assert terminal.text() == "␛[2J\n"
    assert pipe.text() == "\x1b[2J\n"


def test_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, pipe = Stream(terminal=True), Stream()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", pipe)
    configure_streams()
    for stream in (terminal, pipe):
        stream.write("ü")
    # A terminal that knows no ü must not end the program; a file gets UTF-8 whatever the locale says.
    assert terminal.text() == "?"
    assert pipe.text() == "ü"


def test_status_line_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Stream()
    monkeypatch.setattr(sys, "stderr", pipe)
    status = Status()
    status.show("loading")
    status.clear()
    assert pipe.text() == ""

    terminal = Stream(terminal=True)
    terminal.reconfigure(encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", terminal)
    status = Status()
    status.show("loading \x1b[2J")
    status.show("reading")
    status.clear()
    shown = terminal.text()
    assert "loading ␛[2J" in shown
    assert shown.endswith("\r\x1b[K")


# --- real terminals ------------------------------------------------------------------------------------------------------


@pytest.mark.starter
def test_terminal_shows_symbols(starter_model: Path) -> None:
    status, shown, err = on_terminal("ask", "--dry-run", "a\x1b[31mb\x07")
    assert (status, err) == (0, "")
    assert "\x1b" not in shown
    assert "a␛[31mb␇<|im_end|>" in shown


@pytest.mark.starter
def test_terminal_gets_the_same_text_as_a_pipe(starter_model: Path) -> None:  # G10
    arguments = ("ask", "--seed", "3", "--temperature", "1", "--max-tokens", "40", "Write a list of three things.")
    status, shown, err = on_terminal(*arguments)
    assert (status, err) == (0, "")
    assert "\n" in shown.strip(), "an answer of one line would prove little"
    assert shown.replace("\r\n", "\n") == run_inside(*arguments).out
