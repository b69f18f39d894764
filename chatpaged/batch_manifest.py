"""What a batch's output was made with: written beside it, and compared before more is added to it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from chatpaged.engine.weight_files import inspect_weights
from chatpaged.errors import InvalidRequestError
from chatpaged.paths import replace_file

_VERSION = 1
_ENDS = 2**20
_DESCRIBING = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output lies."""
    return output.with_name(f"{output.name}.manifest.json")


def model_digest(directory: Path) -> str:
    """Tells models apart by the headers and sizes of their weights, and by what describes them. Reads no weights.

    Raises:
        ModelError: its weights are not whole.
    """
    digest = hashlib.blake2b(inspect_weights(directory).digest, digest_size=16)
    for name in _DESCRIBING:
        path = directory / name
        if path.is_file():
            digest.update(f"{name}\0".encode() + hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def input_identity(stream: BinaryIO) -> dict[str, Any] | None:
    """Tells files apart by size and by the first and last MiB; None for a pipe. The stream stays where it is."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    descriptor = stream.fileno()
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    digest = hashlib.blake2b(digest_size=16)
    for place in (0, max(0, status.st_size - _ENDS)):
        digest.update(os.pread(descriptor, _ENDS, place))
    return {"size": status.st_size, "start": start, "digest": digest.hexdigest()}


def make_manifest(model: Mapping[str, Any], source: Mapping[str, Any] | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All of it, as it is written. `source` says where the rows come from; None is a pipe."""
    manifest = {"version": _VERSION, "model": dict(model), "input": dict(source) if source is not None else None}
    # As it will be read again: without tuples.
    whole: dict[str, Any] = json.loads(json.dumps(manifest | {"parameters": dict(parameters)}))
    return whole


def write_manifest(output: Path, manifest: Mapping[str, Any]) -> None:
    """Writes it in one piece, readable by its owner only."""
    replace_file(manifest_path(output), json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")


def check_manifest(output: Path, manifest: Mapping[str, Any]) -> None:
    """Refuses to add to an output that was made with something else.

    Raises:
        InvalidRequestError: names what differs, or says that the manifest is missing or damaged.
    """
    path = manifest_path(output)
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidRequestError(f"cannot resume {output}: there is no {path.name} beside it; --overwrite starts anew") from None
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"cannot resume {output}: {path.name} cannot be read ({error}); --overwrite starts anew") from error
    differences = _differences(old, manifest) if isinstance(old, dict) else ["version"]
    if differences:
        raise InvalidRequestError(f"cannot resume {output}, which was made with other values: {'; '.join(differences)}")


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{prefix}{name}.".replace("parameters.", ""))
        else:
            found.append(f"{prefix}{name} was {_shown(before)} and is {_shown(after)}")
    return found


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
