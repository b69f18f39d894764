"""Where KV blocks lie on disk: a directory for each model, in it a manifest and the files of its blocks.

```text
<root>/
└── <fingerprint>/            of all that decides the contents of blocks besides tokens, in hexadecimal digits
    ├── manifest.json         for whoever looks into it: which model this is
    └── <2 digits>/           the first of the key
        ├── <key>.kv          one block
        └── unfinished-...    one that is being written, or that was when its writer died
```

Any number of processes use these directories at the same time, and none of them holds a lock: what is looked at may be gone a moment later.
What was not made by us is never counted and never removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chatpaged.paths import private_dir, replace_file

FORMAT = 1
"""Version of directories and files; other versions are removed."""
MANIFEST = "manifest.json"
BLOCK_SUFFIX = ".kv"
UNFINISHED = "unfinished-"
_MODEL = re.compile(r"(?:[0-9a-f]{2}){1,32}")
_SHELF = re.compile(r"[0-9a-f]{2}")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What all blocks of a directory have in common.

    Attributes:
        fingerprint: of all that decides their contents besides tokens.
        block_bytes: bytes of keys and values in a block.
        facts: for people: the model's name, the type of its weights and so on.
    """

    fingerprint: bytes
    block_bytes: int
    facts: Mapping[str, str]


class ManifestError(Exception):
    """A manifest is damaged, of another version of the format, or of another model."""


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a model's directory.

    Raises:
        ManifestError: it is damaged, of another version or of another model.
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    path = directory / MANIFEST
    if path.exists() and not path.is_file():  # opening a pipe would wait for somebody who writes
        raise ManifestError(f"{path} is no file")
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES)
    try:
        fields = json.loads(text)
        is_ours = fields["format"] == FORMAT and isinstance(fields["block_bytes"], int) and isinstance(fields["facts"], dict)
        facts = {str(name): str(value) for name, value in fields["facts"].items()}
        manifest = Manifest(bytes.fromhex(fields["fingerprint"]), fields["block_bytes"], facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path} is damaged") from error
    if not is_ours or manifest.fingerprint.hex() != directory.name:
        raise ManifestError(f"{path} is of another version, or of another model")
    return manifest


def open_directory(root: Path, manifest: Manifest) -> Path:
    """Makes the directory of a model, or takes the one that is there. Blocks that do not fit the manifest are removed.

    Raises:
        OSError: it cannot be made, read or written.
    """
    directory = private_dir(root / manifest.fingerprint.hex())
    try:
        there = read_manifest(directory)
    except FileNotFoundError:  # files tell themselves what they hold
        pass
    except ManifestError:
        remove_blocks(directory)
    else:
        if there == manifest:
            return directory
        if there.block_bytes != manifest.block_bytes:
            remove_blocks(directory)
    fields = {
        "format": FORMAT,
        "fingerprint": manifest.fingerprint.hex(),
        "block_bytes": manifest.block_bytes,
        "facts": dict(manifest.facts),
    }
    replace_file(directory / MANIFEST, json.dumps(fields, indent=1) + "\n")
    return directory


def block_path(directory: str, key: bytes) -> str:
    """Where a block lies. Texts, as this is asked thousands of times in a row."""
    name = key.hex()
    return f"{directory}/{name[:2]}/{name}{BLOCK_SUFFIX}"


def model_directories(root: Path) -> list[Path]:
    """The directories of all models, in order; none if there is no root.

    Raises:
        OSError: the root cannot be read.
    """
    return [root / name for name in sorted(_names(root, _MODEL))]


def block_entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The files of a model's blocks, unfinished ones too. Each may be gone when it is looked at.

    Raises:
        OSError: a directory cannot be read.
    """
    for name in _names(directory, _SHELF):
        with contextlib.suppress(FileNotFoundError), os.scandir(directory / name) as entries:
            for entry in entries:
                if entry.name.endswith(BLOCK_SUFFIX) or is_unfinished(entry.name):
                    yield entry


def is_unfinished(name: str) -> bool:
    """Whether a file is one that was being written."""
    return name.startswith(UNFINISHED)


def remove_blocks(directory: Path) -> list[Path]:
    """Removes what we have made in a model's directory, or what is in its place, and the directory itself if that was all.

    Returns:
        What cannot be removed.
    """
    try:
        found = [Path(entry.path) for entry in block_entries(directory)]
    except OSError:
        return [directory]
    return [path for path in found if not remove_whatever(path)] + remove_directory(directory)


def remove_directory(directory: Path) -> list[Path]:
    """Removes the directory of a model without blocks. What else is in there keeps the directory.

    Returns:
        What of ours cannot be removed.
    """
    for name in _names(directory, _SHELF):
        remove_empty(f"{directory}/{name}")
    left = [path for path in (*directory.glob(f".{MANIFEST}.*"), directory / MANIFEST) if not remove_whatever(path)]
    remove_empty(str(directory))
    return left


def remove_whatever(path: Path) -> bool:
    """Removes a file, a link or a whole directory; what a link leads to stays. Returns whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:  # a directory, or not ours
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def remove_empty(directory: str) -> None:
    """Removes a directory if there is nothing in it."""
    with contextlib.suppress(OSError):  # there is
        Path(directory).rmdir()


def _names(directory: Path, kind: re.Pattern[str]) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if kind.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
