"""`ask` and the memory below the pool: block files that the next run finds, what keeps them away, and disks that refuse."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from chatpaged import paths
from chatpaged.engine.block_files import BlockFiles
from tests.cli.runner import Result, run_inside

pytestmark = pytest.mark.starter
OPTIONS = ("--temperature", "0", "--max-tokens", "4")
COUNT = "Count on: " + " ".join(map(str, range(60)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_model: Path) -> Path:
    """A cache of its own, in which nothing lies but the models; a store of its own as well. The cache of blocks is on."""
    assert starter_model.exists()
    place = tmp_path / "cache/chatpaged"
    place.mkdir(parents=True)
    (place / "models").symlink_to(paths.models_dir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.parent))
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("CHATPAGED_ENGINE_DISK_CACHE")
    return place


def ask(*arguments: str, prompt: str = COUNT) -> Any:
    result = run_inside("ask", "--json", *OPTIONS, *arguments, prompt)
    assert (result.status, result.err) == (0, "")
    return result.json


def cached(*arguments: str, prompt: str = COUNT) -> int:
    count: int = ask(*arguments, prompt=prompt)["usage"]["cached_tokens"]
    return count


def files(cache: Path) -> set[Path]:
    return set((cache / "blocks").rglob("*.kv"))


def test_the_next_run_finds_what_this_one_has_computed(cache: Path) -> None:
    first = ask()
    assert first["usage"]["cached_tokens"] == 0
    assert files(cache)
    second = ask()
    assert second["usage"]["cached_tokens"] >= 128
    assert second["text"] == first["text"]
    assert second["engine"]["swap_in"] == second["usage"]["cached_tokens"] // 16
    assert second["engine"]["swap_out"] == 0


def test_a_private_answer_leaves_nothing_and_finds_nothing(cache: Path) -> None:
    assert cached("--private") == 0
    assert files(cache) == set()
    ask()
    before = files(cache)
    assert before
    assert cached("--private") == 0
    assert cached("--private", "--no-save") == 0
    assert files(cache) == before


def test_an_answer_that_is_not_saved_finds_blocks_and_leaves_none(cache: Path) -> None:
    assert cached("--no-save") == 0
    assert files(cache) == set()
    ask()
    before = files(cache)
    assert cached("--no-save", prompt=f"{COUNT} {COUNT}") >= 128
    assert files(cache) == before


@pytest.mark.parametrize("way", ["--no-disk-cache", "--disk-cache=0", "file", "variable", "no caching"])
def test_no_files_where_none_are_wanted(cache: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask()
    before = files(cache)
    arguments = [way] if way.startswith("--") else []
    if way == "file":
        paths.private_dir(paths.config_dir())
        paths.user_settings_file().write_text("engine.disk_cache = 0\n")
    elif way == "variable":
        monkeypatch.setenv("CHATPAGED_ENGINE_DISK_CACHE", "0")
    elif way == "no caching":
        arguments = ["--no-prefix-caching"]
    assert cached(*arguments) == 0
    ask(*arguments, prompt=f"Something else. {COUNT}")
    assert files(cache) == before
    if way == "file":
        assert cached("--disk-cache", "1G") >= 128  # an option ranks before the file


def test_files_stay_below_the_limit(cache: Path) -> None:
    ask("--disk-cache", "1M", prompt=f"{COUNT} {COUNT}")
    assert 0 < sum(path.stat().st_size for path in files(cache)) <= 2**20


def test_swap_space() -> None:
    assert ask("--swap-space", "0")["engine"]["swap_out"] == 0
    run_inside("ask", "--swap-space", "1", "hi").failed(2, "a swap space of", "holds no block", "--swap-space")
    run_inside("ask", "--swap-space", "900T", "hi").failed(5, "--swap-space needs 900", "are free")
    run_inside("ask", "--swap-space", "-1", "hi").failed(2, "'-1' is not a size")
    run_inside("ask", "--disk-cache", "much", "hi").failed(2, "'much' is not a size")


@pytest.mark.parametrize("arguments", [("--swap-space", "16M"), ("--swap-space", "16M", "--no-disk-cache")])
def test_swap_space_is_told(arguments: tuple[str, ...]) -> None:
    result = run_inside("ask", "--stats", *OPTIONS, *arguments, "hi")
    assert result.status == 0
    assert "swapped out 0 in 0" in result.err


def warned(result: Result, *parts: str) -> None:
    """There is an answer all the same, and one line says what is wrong."""
    assert result.status == 0, result
    assert result.out.strip()
    assert result.err.startswith("chatpaged: "), result
    assert result.err.count("\n") == 1, result
    for part in parts:
        assert part in result.err


def test_a_cache_that_cannot_be_made_costs_a_line(cache: Path) -> None:
    (cache / "blocks").write_text("in the way")
    warned(run_inside("ask", *OPTIONS, COUNT), "nothing is kept in the cache on disk: ", "blocks")
    assert run_inside("ask", "--quiet", *OPTIONS, COUNT).err == ""
    assert run_inside("ask", "--no-disk-cache", *OPTIONS, COUNT).err == ""


def test_a_full_disk_costs_a_line_for_all_blocks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BlockFiles, "write", refuse)
    warned(run_inside("ask", *OPTIONS, COUNT), "no block can be written to the cache on disk", "No space left on device")
    assert files(cache) == set()


def test_damaged_files_cost_a_line_and_nothing_else(cache: Path) -> None:
    first = ask()
    for path in files(cache):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    result = run_inside("ask", "--json", *OPTIONS, COUNT)
    assert (result.status, result.err.count("\n")) == (0, 1)
    assert result.err.startswith("chatpaged: a block is computed again: ")
    assert result.json["text"] == first["text"]
