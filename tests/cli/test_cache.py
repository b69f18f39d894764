"""`chatpaged cache`."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from chatpaged import block_cache, paths
from chatpaged.cli.cache import complete_cached_models
from chatpaged.engine.block_directories import block_entries
from chatpaged.engine.block_files import BlockFiles
from chatpaged.engine.block_pool import BlockPrefix, chain
from tests.cli.runner import COMMAND, REPOSITORY, Result, Stream, run_inside, run_process
from tests.cli.test_models import on_terminal
from tests.fake_hub import environment

BLOCK_BYTES = 1 << 16
BLOCKS = [chain(b"root", (number,), number) for number in range(3)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything under one directory."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def cache(*arguments: str, out: Stream | None = None) -> Result:
    return run_inside("cache", *arguments, out=out)


def fill(name: str, fingerprint: bytes, blocks: list[BlockPrefix] = BLOCKS) -> BlockFiles:
    facts = {"model": name, "weights": "int4", "kv": "fp16"}
    files = BlockFiles(paths.blocks_dir(), fingerprint=fingerprint, block_bytes=BLOCK_BYTES, facts=facts)
    for prefix in blocks:
        files.write(prefix, bytes(BLOCK_BYTES))
    return files


def damage(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)


# --- nothing there -------------------------------------------------------------------------------------------------------


def test_a_machine_without_a_cache(home: Path) -> None:
    root = paths.blocks_dir()
    assert cache("show") == Result(0, f"nothing in {root}\n", "")
    assert cache("show", "--json").json == {"directory": str(root), "blocks": 0, "bytes": 0, "models": []}
    assert cache("clear") == Result(0, f"nothing in {root}\n", "")
    assert cache("verify") == Result(0, f"0 blocks of 0 models whole in {root}\n", "")
    assert cache("verify", "--json").json["models"] == []
    cache("clear", "x").failed(3, "no blocks of 'x' in the cache", "none")
    assert list(home.iterdir()) == [], "looking makes nothing"


def test_a_cache_that_cannot_be_read(home: Path) -> None:
    paths.cache_dir().mkdir(parents=True)
    paths.blocks_dir().write_text("")
    for arguments in (["show"], ["show", "--json"], ["clear"], ["clear", "--yes"], ["verify"]):
        cache(*arguments).failed(1, f"cannot access {paths.blocks_dir()}: Not a directory")


def test_nothing_heavy_is_loaded() -> None:
    fill("Tiny", bytes(16))
    heavy = {"torch", "transformers", "textual", "numpy", "tokenizers", "huggingface_hub", "tomlkit"}
    code = (
        "import sys\nfrom chatpaged.cli.main import cli\ncli.main(['cache', 'show'], standalone_mode=False)\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([COMMAND[0], "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.splitlines()[-1] == "[]"


# --- show ----------------------------------------------------------------------------------------------------------------


def test_show(home: Path) -> None:
    fill("Tiny", bytes(16), BLOCKS[:1])
    fill("Large", b"\xab" * 16)
    shown = cache("show")
    assert (shown.status, shown.err) == (0, "")
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["MODEL", "FINGERPRINT", "BLOCKS", "SIZE", "LAST", "USED", "MADE", "WITH"]
    assert lines[1] == ["Large", "ab" * 6, "3", "0.2", "MB", "just", "now", "weights", "int4,", "kv", "fp16"]
    assert lines[2][:5] == ["Tiny", "00" * 6, "1", "0.1", "MB"]
    assert shown.out.splitlines()[3] == f"4 blocks of 2 models (0.3 MB) in {paths.blocks_dir()}"


def test_show_as_json() -> None:
    files = fill("Tiny", bytes(16))
    size = sum(files.path(prefix.key).stat().st_size for prefix in BLOCKS)
    os.utime(files.path(BLOCKS[1].key), (2e9, 2e9))
    told = cache("show", "--json").json
    assert (told["blocks"], told["bytes"]) == (3, size)
    (model,) = told["models"]
    assert model["model"] == "Tiny"
    assert model["fingerprint"] == "00" * 16
    assert model["facts"] == {"model": "Tiny", "weights": "int4", "kv": "fp16"}
    assert (model["blocks"], model["bytes"], model["problem"]) == (3, size, None)
    assert model["last_used"] == "2033-05-18T03:33:20+00:00"


def test_names_are_shown_harmlessly() -> None:
    fill("a\x1b[31mb", bytes(16))
    shown = cache("show", out=Stream(terminal=True))
    assert "\x1b" not in shown.out
    status, asked = on_terminal("cache", "clear", keys="n\n")
    assert status == 130
    assert "a␛[31mb" in asked
    assert "\x1b[31m" not in asked


def test_what_others_have_put_there(home: Path) -> None:
    files = fill("Tiny", bytes(16))
    root, directory = paths.blocks_dir(), paths.blocks_dir() / ("00" * 16)
    (root / "foreign").mkdir()
    (root / "foreign.txt").touch()
    (directory / "foreign.txt").touch()
    files.path(BLOCKS[0].key).with_name("foreign.txt").touch()
    assert cache("show", "--json").json["blocks"] == 3
    assert cache("verify", "--json").json["whole"] == 3
    assert cache("clear", "--yes").status == 0
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["foreign.txt"] * 3


@pytest.mark.parametrize(("text", "problem"), [(None, "no manifest"), ("{", "damaged manifest")])
def test_models_that_nothing_tells_of(text: str | None, problem: str) -> None:
    fill("Tiny", bytes(16))
    manifest = paths.blocks_dir() / ("00" * 16) / "manifest.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    assert cache("show").out.splitlines()[1].split(None, 5)[0] == "-"
    assert problem in cache("show").out
    (model,) = cache("show", "--json").json["models"]
    assert (model["model"], model["blocks"], model["problem"]) == (None, 3, problem)
    cache("clear", "x").failed(3, "there are those of: 00000000")
    assert cache("clear", "0000", "--yes").out == "removed 3 blocks of 000000000000 (0.2 MB)\n"


def unreadable(directory: Path) -> Iterator[os.DirEntry[str]]:
    if directory.name.startswith("00"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    return block_entries(directory)


def test_models_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fill("Tiny", bytes(16))
    fill("Large", b"\xab" * 16)
    monkeypatch.setattr(block_cache, "block_entries", unreadable)
    shown = cache("show")
    assert shown.status == 0
    assert "cannot be read: Permission denied" in shown.out
    assert "Large" in shown.out
    verified = cache("verify")
    assert verified.status == 1
    assert verified.out.startswith("3 blocks of 2 models whole")
    assert "1 file that cannot be read" in verified.err


def test_files_that_vanish_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    files = fill("Tiny", bytes(16))
    found = list(block_entries(paths.blocks_dir() / ("00" * 16)))
    files.remove(BLOCKS[1].key)
    monkeypatch.setattr(block_cache, "block_entries", lambda _: iter(found))
    assert cache("show", "--json").json["blocks"] == 2
    assert cache("verify") == Result(0, f"2 blocks of 1 model whole in {paths.blocks_dir()}\n", "")


# --- clear ---------------------------------------------------------------------------------------------------------------


def test_clear_needs_a_yes() -> None:
    files = fill("Tiny", bytes(16))
    cache("clear").failed(2, "there are 3 blocks of Tiny (0.2 MB); say --yes to remove them")
    assert files.has(BLOCKS[0].key)
    assert cache("clear", "-y") == Result(0, "removed 3 blocks of Tiny (0.2 MB)\n", "")
    assert not paths.blocks_dir().exists()


def test_clear_one_model() -> None:
    tiny, large, other = fill("Tiny", bytes(16)), fill("org/large", b"\xab" * 16), fill("org/large", b"\xac" * 16)
    cache("clear", "aba", "--yes").failed(3, "no blocks of 'aba'", "those of: Tiny, org/large")
    assert cache("clear", "ABAB", "--yes").status == 0
    assert [files.has(BLOCKS[0].key) for files in (tiny, large, other)] == [True, False, True]
    assert cache("clear", "org/large", "--yes").out == "removed 3 blocks of org/large (0.2 MB)\n"
    assert [files.has(BLOCKS[0].key) for files in (tiny, large, other)] == [True, False, False]


def test_clear_a_model_by_its_alias(home: Path) -> None:
    files = fill("mine", bytes(16))
    (home / "mine").mkdir()
    (home / "mine/config.json").write_text("{}")
    assert run_inside("models", "alias", "own", str(home / "mine")).status == 0
    assert cache("clear", "own", "--yes").status == 0
    assert not files.has(BLOCKS[0].key)


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 130), ("\n", 130)])
def test_clear_asks_on_a_terminal(answer: str, status: int) -> None:
    fill("Tiny", bytes(16))
    ended, shown = on_terminal("cache", "clear", keys=answer)
    assert "remove 3 blocks of Tiny (0.2 MB)? [y/N]:" in shown
    assert ended == status
    assert paths.blocks_dir().exists() == (status != 0)


# --- verify --------------------------------------------------------------------------------------------------------------


def test_verify_removes_what_is_damaged() -> None:
    files = fill("Tiny", bytes(16))
    fill("Large", b"\xab" * 16)
    damage(files.path(BLOCKS[1].key))
    verified = cache("verify")
    root = paths.blocks_dir()
    assert verified.status == 1
    assert verified.out == f"5 blocks of 2 models whole in {root}\n"
    assert verified.err == f"chatpaged: 1 damaged file removed, in {root}; what is missing is computed again\n"
    assert [files.has(prefix.key) for prefix in BLOCKS] == [True, False, True]
    assert cache("verify") == Result(0, f"5 blocks of 2 models whole in {root}\n", "")


def test_verify_as_json() -> None:
    files = fill("Tiny", bytes(16))
    for prefix in BLOCKS[:2]:
        damage(files.path(prefix.key))
    verified = cache("verify", "--json")
    assert verified.status == 1
    assert verified.err.count("\n") == 1
    assert verified.json == {
        "directory": str(paths.blocks_dir()),
        "whole": 1,
        "damaged": 2,
        "unreadable": 0,
        "models": [{"model": "Tiny", "fingerprint": "00" * 16, "whole": 1, "damaged": 2, "unreadable": 0}],
    }


def test_verify_removes_what_lies_where_it_does_not_belong() -> None:
    files, others = fill("Tiny", bytes(16)), fill("Large", b"\xab" * 16, [])
    others.path(BLOCKS[0].key).parent.mkdir()
    files.path(BLOCKS[0].key).rename(others.path(BLOCKS[0].key))
    files.path(BLOCKS[1].key).rename(files.path(BLOCKS[1].key).with_name(f"{'0' * 32}.kv"))
    assert cache("verify", "--json").json["damaged"] == 2
    assert cache("show", "--json").json["blocks"] == 1


@pytest.mark.parametrize("text", ["{", json.dumps({"format": 1, "fingerprint": "11", "block_bytes": 1, "facts": {}})])
def test_verify_removes_a_damaged_manifest_and_keeps_the_blocks(text: str) -> None:
    fill("Tiny", bytes(16))
    manifest = paths.blocks_dir() / ("00" * 16) / "manifest.json"
    manifest.write_text(text)
    verified = cache("verify", "--json")
    assert (verified.json["whole"], verified.json["damaged"]) == (3, 1)
    assert not manifest.exists()
    assert cache("verify").status == 0


def test_verify_tells_what_cannot_be_read() -> None:
    files = fill("Tiny", bytes(16))
    files.path(BLOCKS[0].key).unlink()
    files.path(BLOCKS[0].key).mkdir()
    files.path(BLOCKS[1].key).with_name("unfinished-0").touch()
    verified = cache("verify")
    assert verified.status == 1
    assert "1 damaged file removed, in" in verified.err


def test_clear_takes_what_is_in_the_place_of_blocks() -> None:
    files = fill("Tiny", bytes(16))
    place = files.path(BLOCKS[0].key)
    place.unlink()
    place.mkdir()
    (place / "more").write_text("more")
    manifest = place.parent.parent / "manifest.json"
    manifest.unlink()
    manifest.mkdir()
    assert cache("clear", "--yes").status == 0
    assert not place.parent.parent.exists()


# --- the rest ------------------------------------------------------------------------------------------------------------


def test_names_are_completed() -> None:
    fill("Tiny", bytes(16))
    fill("Tall", b"\xab" * 16)
    offered = run_process(
        env={**os.environ, "_CHATPAGED_COMPLETE": "zsh_complete", "COMP_WORDS": "chatpaged cache clear Ti", "COMP_CWORD": "3"}
    )
    assert offered.out.splitlines()[1::3] == ["Tiny"]


def test_nothing_is_completed_where_nothing_can_be_read() -> None:
    paths.cache_dir().mkdir(parents=True)
    paths.blocks_dir().touch()
    assert complete_cached_models(click.Context(click.Command("x")), click.Argument(["name"]), "") == []


def test_group_without_a_command() -> None:
    shown = run_process("cache", "--help")
    assert shown.status == 0
    assert [line.split()[0] for line in shown.out.partition("Commands:\n")[2].splitlines()] == ["clear", "show", "verify"]
