"""The block files on this machine, for people: what there is, is it whole, away with it.

Others may write and remove files meanwhile; what is gone when it is looked at was never there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatpaged.engine.block_directories import (
    MANIFEST,
    Manifest,
    ManifestError,
    block_entries,
    block_path,
    is_unfinished,
    model_directories,
    read_manifest,
    remove_blocks,
    remove_empty,
    remove_whatever,
)
from chatpaged.engine.block_files import BlockFileError, BlockFileMissingError, read_block_file
from chatpaged.engine.file_access import FileAccess

MODEL_FACT = "model"
"""The fact of a manifest that is the model's name."""
_SHORTEST_FINGERPRINT = 4
_SHOWN_EACH = 64


@dataclass(frozen=True, slots=True)
class CachedModel:
    """The blocks of one model.

    Attributes:
        directory: where they lie.
        facts: what the manifest tells of the model.
        num_blocks: how many have a file.
        num_bytes: bytes of these files.
        last_used: when one of them was used last, in seconds since 1970.
        problem: what is wrong with the directory, if anything.
    """

    directory: Path
    facts: Mapping[str, str]
    num_blocks: int
    num_bytes: int
    last_used: float | None
    problem: str | None

    @property
    def fingerprint(self) -> str:
        """Of all that decides the contents of the blocks besides tokens, in hexadecimal digits."""
        return self.directory.name

    @property
    def name(self) -> str | None:
        """The model's name; None if nothing tells it."""
        return self.facts.get(MODEL_FACT)


@dataclass(slots=True)
class Verdict:
    """What was found out about the files of one model.

    Attributes:
        model: whose they are.
        num_whole: files that hold what they say.
        num_damaged: files that did not, and are gone; a damaged manifest counts too.
        num_unreadable: files and directories that could not be read, or not be removed.
    """

    model: CachedModel
    num_whole: int = 0
    num_damaged: int = 0
    num_unreadable: int = 0


def cached_models(root: Path) -> list[CachedModel]:
    """All models that have blocks in the cache, by name.

    Raises:
        OSError: the root cannot be read.
    """
    models = [_look_at(directory) for directory in model_directories(root)]
    return sorted(models, key=lambda model: (model.name is None, model.name, model.fingerprint))


def models_called(models: Sequence[CachedModel], name: str) -> list[CachedModel]:
    """Those models that have this name, else those whose fingerprint begins so; with four digits of it at least."""
    named = [model for model in models if model.name == name]
    if named or len(name) < _SHORTEST_FINGERPRINT:
        return named
    return [model for model in models if model.fingerprint.startswith(name.lower())]


def clear_models(models: Sequence[CachedModel]) -> list[Path]:
    """Removes all blocks of some models, and whatever is in the place of one. Returns what cannot be removed."""
    left: list[Path] = []
    for model in models:
        left += remove_blocks(model.directory)
        remove_empty(str(model.directory.parent))
    return left


def verify_models(models: Iterable[CachedModel], show: Callable[[str], None]) -> list[Verdict]:
    """Reads every file, and removes those that are damaged or lie where they do not belong.

    Args:
        models: whose files.
        show: told from time to time what is being looked at.
    """
    verdicts = []
    for model in models:
        verdict = Verdict(model)
        verdicts.append(verdict)
        try:
            _verify(model.directory, verdict, show)
        except OSError:
            verdict.num_unreadable += 1
    return verdicts


def _look_at(directory: Path) -> CachedModel:
    num_blocks, num_bytes, last_used = 0, 0, None
    facts: Mapping[str, str] = {}
    problem = None
    try:
        for entry in block_entries(directory):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                num_bytes += status.st_size
                if not is_unfinished(entry.name):
                    num_blocks += 1
                    last_used = max(last_used or 0.0, status.st_mtime)
        facts = read_manifest(directory).facts
    except FileNotFoundError:
        problem = "no manifest"
    except ManifestError:
        problem = "damaged manifest"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    return CachedModel(directory, facts, num_blocks, num_bytes, last_used, problem)


def _verify(directory: Path, verdict: Verdict, show: Callable[[str], None]) -> None:
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(directory)
    except FileNotFoundError:  # the files tell themselves what they hold
        pass
    except ManifestError:
        remove_whatever(directory / MANIFEST)
        verdict.num_damaged += 1
    for entry in block_entries(directory):
        if not is_unfinished(entry.name):
            if verdict.num_whole % _SHOWN_EACH == 0:
                show(f"verifying {verdict.model.name or directory.name}: {verdict.num_whole} blocks")
            _verify_file(Path(entry.path), manifest, verdict)


def _verify_file(path: Path, manifest: Manifest | None, verdict: Verdict) -> None:
    directory = path.parent.parent
    try:
        contents = read_block_file(str(path), manifest.block_bytes if manifest is not None else None, FileAccess())
        if contents.fingerprint.hex() == directory.name and block_path(str(directory), contents.key) == str(path):
            verdict.num_whole += 1
            return
        path.unlink(missing_ok=True)
    except BlockFileMissingError:
        return
    except BlockFileError:
        pass
    if (path.is_symlink() or not path.is_file()) and os.path.lexists(path):
        remove_whatever(path)  # not ours, but in the place of a block, which could never be written
    if os.path.lexists(path):
        verdict.num_unreadable += 1
    else:
        verdict.num_damaged += 1
