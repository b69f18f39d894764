"""Shell completion, as shells ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.cli.runner import COMMAND, DEADLINE, REPOSITORY, run_inside, run_process

HEAVY = frozenset({"torch", "transformers", "textual", "tokenizers", "safetensors", "jinja2", "huggingface_hub", "tomlkit", "filelock"})


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


def asked(words: tuple[str, ...], **more: str) -> dict[str, str]:
    """The environment in which the last word is to be completed."""
    return environment(_CHATPAGED_COMPLETE="zsh_complete", COMP_WORDS=" ".join(("chatpaged", *words)), COMP_CWORD=str(len(words)), **more)


def complete(*words: str, **more: str) -> list[str]:
    """What is offered for the last word, asked as zsh does."""
    done = subprocess.run(
        COMMAND,
        capture_output=True,
        check=False,
        timeout=DEADLINE,
        cwd=REPOSITORY,
        env=asked(words, **more),
    )
    assert (done.returncode, done.stderr) == (0, b""), done
    # Three lines an item: type, value, help. Nothing is an empty line.
    return done.stdout.decode().rstrip("\n").split("\n")[1::3]


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """A machine with a model of each kind, some of them partly fetched, a lock and the directories of helpers."""
    cache = tmp_path / "cache"
    for name in ("SmolLM2-135M-Instruct", ".partial", "gguf/tiny-1", "gguf/.partial-tiny", "tokenizers/x"):
        (cache / "chatpaged/models" / name).mkdir(parents=True)
    (cache / "chatpaged/models/.lock").touch()
    (cache / "chatpaged/models/SmolLM2-135M-Instruct/config.json").write_text("{}")
    (cache / "chatpaged/models/gguf/tiny-1/chatpaged.json").write_text('{"name": "Tiny", "source": "/x/Tiny.gguf"}')
    snapshot = cache / "huggingface/hub/models--Org--One/snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("c" * 40)
    (tmp_path / "data/chatpaged").mkdir(parents=True)
    (tmp_path / "data/chatpaged/model-aliases.json").write_text('{"own": "/x/y"}')
    return {"XDG_CACHE_HOME": str(cache), "XDG_DATA_HOME": str(tmp_path / "data"), "HF_HOME": "", "HF_HUB_CACHE": ""}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["as"], ["ask"]),
        (["con"], ["config"]),
        (["--ver"], ["--version"]),
        (["ask", "--temper"], ["--temperature"]),
        (["ask", "--device", "c"], ["cpu", "cuda"]),
        (["config", "se"], ["set"]),
        (["config", "set", "engine.kv"], ["engine.kv_dtype", "engine.kv_blocks", "engine.kv_memory"]),
        (["config", "unset", "mod"], ["model"]),
        (["config", "show", "output."], ["output.thinking", "output.color"]),
        (["completion", "f"], ["fish"]),
        (["nope", "x"], []),
    ],
)
def test_words(words: list[str], expected: list[str]) -> None:
    assert complete(*words) == expected


@pytest.mark.parametrize(
    "words", [("ask", "--model"), ("ask", "-m"), ("models", "show"), ("models", "rm"), ("models", "pull")], ids=" ".join
)
def test_models(words: tuple[str, ...], models: dict[str, str]) -> None:
    assert complete(*words, "", **models) == ["starter", "Org/One", "SmolLM2-135M-Instruct", "Tiny", "own"]
    assert complete(*words, "T", **models) == ["Tiny"]
    assert complete(*words, "./x", **models) == ["./x"]  # of type file: the shell goes on


def test_models_where_there_are_none_or_files_are_broken(models: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data/chatpaged/model-aliases.json").write_text("[")
    assert "own" not in complete("ask", "-m", "", **models)
    nothing = str(tmp_path / "nothing")
    assert complete("ask", "-m", "", **models | {"XDG_CACHE_HOME": nothing, "XDG_DATA_HOME": nothing}) == ["starter"]


def test_broken_settings_are_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "chatpaged").mkdir()
    (tmp_path / "chatpaged/config.toml").write_text("[")
    assert complete("ask", "--temper", XDG_CONFIG_HOME=str(tmp_path), CHATPAGED_NOPE="1") == ["--temperature"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, tmp_path: Path) -> None:
    result = run_inside("completion", shell)
    assert (result.status, result.err) == (0, "")
    assert f"_CHATPAGED_COMPLETE={shell}_complete" in result.out
    # The same where no shell can be found to ask for its version.
    alone = run_process("completion", shell, env={**environment(), "PATH": str(tmp_path)})
    assert (alone.status, alone.out, alone.err) == (0, result.out, "")
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=result.out.encode(), check=True, timeout=DEADLINE)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_script_in_bash(tmp_path: Path) -> None:
    wrapper = tmp_path / "chatpaged"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m chatpaged "$@"\n')
    wrapper.chmod(0o700)
    script = """
    eval "$(chatpaged completion bash)"
    COMP_WORDS=(chatpaged config set sampling.to); COMP_CWORD=3; COMP_LINE="${COMP_WORDS[*]}"
    _chatpaged_completion chatpaged
    printf '%s\\n' "${COMPREPLY[@]}"
    complete -p chatpaged
    """
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
        cwd=REPOSITORY,
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[:2] == ["sampling.top_p", "sampling.top_k"]
    assert "-F _chatpaged_completion chatpaged" in done.stdout


@pytest.mark.parametrize("words", [("",), ("ask", "--"), ("ask", "-m", ""), ("models", "show", ""), ("config", "set", "")], ids=" ".join)
def test_completing_loads_nothing_heavy_and_is_quick(words: tuple[str, ...]) -> None:
    env = asked(words)
    command = [sys.executable, "-X", "importtime", "-m", "chatpaged"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=REPOSITORY)
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "click" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert len(done.stdout) > 0
    # The processor time of the child, so that other work on the machine does not count.
    seconds = []
    for _ in range(3):
        before = os.times()
        subprocess.run(COMMAND, capture_output=True, check=True, env=env, cwd=REPOSITORY)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert median(seconds) < 0.3
