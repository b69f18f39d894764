"""GGUF files as models: converted once to a model directory in the cache, and again when the file has changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from chatpaged.child_process import fail, run_module
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import NOTE
from chatpaged.errors import ModelError
from chatpaged.paths import models_dir, private_dir

_PARTIAL = ".partial-"
_VERSION = "1"


def convert_gguf(source: Path, target: Path) -> None:
    """Converts a GGUF file to a model directory, in a process of its own: it takes much memory, for a short time.

    Raises:
        ModelError: the file cannot be converted, or the disk is too full.
        MemoryBudgetError: not enough memory.
    """
    done = run_module("chatpaged.engine.model_executor.convert_gguf", str(source), str(target))
    if done.returncode != 0:
        raise fail(done, f"cannot convert {source.name}")


def conversions_dir() -> Path:
    """Where conversions lie, each in a directory of its own with a note about it."""
    return models_dir() / "gguf"


def converted_directory(source: Path) -> Path:
    """Where a GGUF file's conversion lies or would lie. The name changes with the file's place, size and time of change.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        place = source.resolve(strict=True)
        facts = place.stat()
    except OSError as error:
        raise ModelError(f"cannot read {source}: {error.strerror or error}") from error
    key = f"{_VERSION}\0{place}\0{facts.st_size}\0{facts.st_mtime_ns}"
    digest = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=4).hexdigest()
    return conversions_dir() / f"{source.stem}-{digest}"


def gguf_directory(source: Path, name: str, tell: Callable[[str], None]) -> Path:
    """The model directory of a GGUF file, converted the first time.

    Args:
        source: the file.
        name: what the model is called; kept for lists.
        tell: hears about the conversion.

    Raises:
        ModelError: the file cannot be read or converted, or the disk is too full.
        MemoryBudgetError: not enough memory.
    """
    target = converted_directory(source)
    if (target / NOTE).is_file():
        return target
    try:
        private_dir(target.parent)
        with filelock.FileLock(target.parent / ".lock"):
            if not (target / NOTE).is_file():  # another process may have been faster
                tell(f"converting {source.name} (once)")
                _convert(source, name, target)
    except OSError as error:
        raise ModelError(f"cannot store the conversion of {source.name} in {target.parent}: {error.strerror or error}") from error
    return target


def _convert(source: Path, name: str, target: Path) -> None:
    for left in target.parent.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)  # by a process that was killed: who has the lock is alone
    work = target.parent / f"{_PARTIAL}{target.name}"
    (work / "source").mkdir(parents=True, mode=0o700)
    try:
        # Alone in a directory: transformers would read a config.json that lies beside the file.
        alone = work / "source" / source.name
        alone.symlink_to(source.resolve())
        convert_gguf(alone, work / "converted")
        note: dict[str, Any] = read_json(work / "converted" / NOTE)
        note |= {"name": name, "source": str(source.absolute())}
        (work / "converted" / NOTE).write_text(json.dumps(note), encoding="utf-8")
        _forget_older(source, target)
        (work / "converted").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _forget_older(source: Path, target: Path) -> None:
    """Removes conversions of what the file was before it changed: they are large, and nobody would find them again."""
    for note in target.parent.glob(f"*/{NOTE}"):
        if note.parent != target and read_json(note).get("source") == str(source.absolute()):
            shutil.rmtree(note.parent, ignore_errors=True)
