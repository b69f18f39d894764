"""What all commands share: exit codes, errors of one line, near names, --debug."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import run_inside


@pytest.mark.parametrize(
    ("arguments", "status", "parts"),
    [
        (["ask", "-m", "no-such-model", "hi"], 3, ["no-such-model"]),
        (["ask", "--nope", "hi"], 2, ["--nope", "chatpaged ask --help"]),
        (["ask", "--top_k", "5", "hi"], 2, ["--top_k", "'--top-k'"]),  # A10
        (["ask", "--temprature", "5", "hi"], 2, ["--temprature", "'--temperature'"]),
        (["--debgu", "ask", "hi"], 2, ["--debgu", "'--debug'"]),
        (["aks", "hi"], 2, ["no command 'aks'", "did you mean ask?"]),
        (["completoin"], 2, ["did you mean completion?"]),
        (["What is rain?"], 2, ["no command 'What is rain?'", "there are run, ask, "]),
        (["config", "shwo"], 2, ["shwo", "'show'"]),
        (["config", "show", "--orgin"], 2, ["--orgin", "'--origin'"]),
        (["completion", "powershell"], 2, ["powershell", "bash", "zsh", "fish"]),
    ],
)
def test_errors(arguments: list[str], status: int, parts: list[str]) -> None:  # G12
    run_inside(*arguments).failed(status, *parts)


@pytest.mark.starter
def test_prompt_that_is_too_long(starter_model: Path) -> None:  # G12
    run_inside("ask", "--max-model-len", "16", "hi").failed(4, "16")
    assert run_inside("ask", "--dry-run", "hi").status == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--debug", "ask", "-m", "no-such-model", "hi"], "chatpaged: no model 'no-such-model'"),
        (["ask", "--debug", "-m", "no-such-model", "hi"], "chatpaged: no model 'no-such-model'"),
        (["ask", "-m", "no-such-model", "hi", "--debug"], "chatpaged: no model 'no-such-model'"),
        (["config", "show", "--debug", "nope"], "chatpaged: there is no setting 'nope'"),
        (["config", "--debug", "show", "nope"], "chatpaged: there is no setting 'nope'"),
        (["ask", "--debug", "--nope"], "chatpaged: No such option '--nope'"),
    ],
)
def test_debug_stands_anywhere(arguments: list[str], line: str) -> None:
    result = run_inside(*arguments)
    assert result.status in {2, 3}
    assert result.err.startswith("Traceback (most recent call last):")
    assert f"\n{line}" in result.err
    assert "unexpected error" not in result.err


def test_memory_that_cannot_be_had_is_no_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("chatpaged.model_files.resolve_model", read)
    run_inside("ask", "hi").failed(5, "out of memory", "ulimit -v")


def test_debug_in_a_prompt_is_text() -> None:
    run_inside("ask", "-m", "no-such-model", "--", "--debug").failed(3, "no-such-model")


def test_help_of_every_command_tells_of_debug() -> None:
    for arguments in ([], ["ask"], ["config"], ["config", "set"], ["completion"]):
        result = run_inside(*arguments, "--help")
        assert result.status == 0
        assert result.out.count("--debug") == 1
