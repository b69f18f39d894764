"""Commands in the prompt: what a text means."""

from __future__ import annotations

import pytest

from chatpaged.slash_commands import COMMANDS, Invocation, PlainText, Refused, find_command, near_commands, parse_line


def test_names_are_told_apart() -> None:
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))
    assert all(command.help.endswith(".") and "\n" not in command.help for command in COMMANDS)


@pytest.mark.parametrize("text", ["hello", "q", "exit", "quit", "h", " /help", "a /help", "\n/help", ""])  # I10
def test_what_does_not_begin_with_a_slash_is_text(text: str) -> None:
    assert parse_line(text) == PlainText(text)


@pytest.mark.parametrize(("text", "sent"), [("//usr/bin/env", "/usr/bin/env"), ("//", "/"), ("///", "//"), ("//help\nx", "/help\nx")])
def test_two_slashes_send_one(text: str, sent: str) -> None:
    assert parse_line(text) == PlainText(sent)


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/help ", "help", ""),
        ("/HELP", "help", ""),
        ("/?", "help", ""),
        ("/temp 0.5", "temp", "0.5"),
        ("/temperature   0.5  ", "temp", "0.5"),
        ("/rename two words", "rename", "two words"),
        ("/system one\ntwo\n", "system", "one\ntwo"),
        ("/system\none", "system", "one"),
        ("/alternatives 3 why\nnot?", "alternatives", "3 why\nnot?"),
        ("/tree\n\n", "tree", ""),
    ],
)
def test_commands(text: str, name: str, argument: str) -> None:
    assert parse_line(text) == Invocation(next(command for command in COMMANDS if command.name == name), argument)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/usr/bin/env what is this", ("unknown command /usr/bin/env;", "// sends it as text")),  # I10
        ("/nosuch", ("unknown command /nosuch", "//")),
        ("/exprt x", ("/export", "//")),
        ("/", ("unknown command /;",)),
        ("/ is a slash", ("unknown command /;",)),
        ("/* a comment */\nint main", ("unknown command /*;",)),
        ("/quit now", ("/quit takes no argument", "//")),
        ("/temp 1\nand then", ("/temp takes one line only", "//")),
        ("/rename", ("/rename needs more: /rename NAME",)),
    ],
)
def test_refused(text: str, parts: tuple[str, ...]) -> None:
    refused = parse_line(text)
    assert isinstance(refused, Refused)
    assert all(part in refused.message for part in parts)
    assert "\n" not in refused.message


def test_near_commands() -> None:
    assert near_commands("sys") == ("system",)
    assert near_commands("exprt")[0] == "export"
    assert near_commands("regen")[0] == "regenerate"
    assert near_commands("usr/bin/env") == ()
    assert near_commands("") == ()
    assert find_command("nosuch") is None
