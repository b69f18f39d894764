"""Files that a prompt names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chatpaged.attachments import Expansion, attach_files, may_attach
from chatpaged.errors import InvalidRequestError
from chatpaged.prompt_draft import Pasted, PromptDraft


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("my notes\n")
    (tmp_path / "with spaces.txt").write_text("spaces")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("print()")
    (tmp_path / "Makefile").write_text("all:")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "latin.txt").write_bytes("café crème".encode("latin-1"))
    return tmp_path


def expanded(text: str, directory: Path) -> str:
    return attach_files(PromptDraft.of(text), directory).text


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("sum up @notes.txt", "my notes\n\nsum up notes.txt"),
        ("@notes.txt", "my notes"),
        ("what is @notes.txt, please?", "my notes\n\nwhat is notes.txt, please?"),
        ("(see @notes.txt.)", "my notes\n\n(see notes.txt.)"),
        ('sum up @"with spaces.txt"!', "spaces\n\nsum up with spaces.txt!"),
        ("@Makefile?", "all:\n\nMakefile?"),
        ("a @notes.txt b @src/main.py", "--- notes.txt ---\nmy notes\n\n--- src/main.py ---\nprint()\n\na notes.txt b src/main.py"),
        ("@notes.txt and @notes.txt", "my notes\n\nnotes.txt and notes.txt"),
        ("@notes.txt\n@src/main.py", "--- notes.txt ---\nmy notes\n\n--- src/main.py ---\nprint()"),
    ],
)
def test_files_go_before_the_prompt(directory: Path, text: str, sent: str) -> None:
    assert expanded(text, directory) == sent


def test_home_and_absolute_names(directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(directory))
    assert expanded("x @~/notes.txt", tmp_path / "src") == "my notes\n\nx ~/notes.txt"
    assert expanded(f"x @{directory}/notes.txt", Path()).startswith("my notes\n\nx ")


@pytest.mark.parametrize(
    "text",
    [
        "mail a@b.c and me@notes.txt",
        "hello @someone and @all",
        "@ alone",
        '@app.get("/x")\ndef f(): ...',
        '@pytest.mark.parametrize("a", [1])',
        "`@notes.txt` in code",
        "```\n@notes.txt\n@src/missing.py\n```",
        r"\@ifstar stays",
        '@"',
        "@src",
    ],
)
def test_these_are_text(directory: Path, text: str) -> None:
    assert attach_files(PromptDraft.of(text), directory) == Expansion(text)


def test_a_backslash_makes_text_of_a_file(directory: Path) -> None:
    assert expanded(r"write \@notes.txt here", directory) == "write @notes.txt here"
    assert expanded(r"write \@no/such here", directory) == "write @no/such here"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@src/missing.py", "there is no file @src/missing.py"),
        ("@missing.txt!", "there is no file @missing.txt;"),
        ('@"not there"', 'there is no file @"not there"'),
        ("@src/", "is a directory"),
        ("@picture.png", "picture.png is a PNG image"),
        ("@noise.bin", "noise.bin is not text but binary data; save it as UTF-8 text"),
        ("@empty.txt", "@empty.txt is empty"),
        ("@~nobody-here/x", "there is no file"),
        ("@" + "x/" * 3000, "cannot read"),
    ],
)
def test_what_cannot_be_attached_is_named_in_one_line(directory: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        expanded(text, directory)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "--encoding" not in str(raised.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(directory: Path) -> None:
    os.mkfifo(directory / "pipe.fifo")
    with pytest.raises(InvalidRequestError, match="no regular file"):
        expanded("@pipe.fifo", directory)


def test_a_guessed_encoding_is_told(directory: Path) -> None:
    expansion = attach_files(PromptDraft.of("@latin.txt"), directory)
    assert expansion.text == "café crème"
    assert expansion.names == ("latin.txt",)
    assert expansion.notes == ("latin.txt was read as cp1252",)


def test_pasted_pieces_attach_nothing(directory: Path) -> None:
    draft = PromptDraft(("look ", Pasted("@notes.txt @no/such")))
    assert attach_files(draft, directory).text == "look @notes.txt @no/such"
    assert not may_attach(draft)
    assert may_attach(PromptDraft.of("a@b"))
    both = PromptDraft(("@notes.txt", Pasted("x")))
    assert attach_files(both, directory).text == "my notes\n\nnotes.txtx"
