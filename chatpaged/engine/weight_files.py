"""Checking a model directory before it is loaded: is everything there, and whole? Reads headers only, without torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NOTE = "chatpaged.json"  # what is known of a converted model besides its files
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_UNFINISHED = ("*.incomplete", "*.part", "*.crdownload", "*.aria2", ".cache/huggingface/download/*.incomplete")
Shape: TypeAlias = tuple[int, ...]
_MAX_HEADER = 100_000_000
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The safetensors files of a model.

    Attributes:
        paths: the files.
        num_parameters: elements of all tensors.
        num_bytes: size of the files.
        stored_type: type of most elements, as safetensors names it: F32, F16, BF16, ...
        digest: changes with names, shapes, types and sizes of the files.
        shapes: of all tensors, by name.
        elements: how many there are of each type, by its name in safetensors.
        types: of all tensors, by name.
    """

    paths: tuple[Path, ...]
    num_parameters: int
    num_bytes: int
    stored_type: str
    digest: bytes
    shapes: dict[str, Shape]
    elements: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


def check_directory(directory: Path) -> WeightFiles:
    """Checks everything that can be checked in a moment: the configuration, and the headers of all weight files.

    Raises:
        ModelError: names the file that is missing, cut short or damaged.
    """
    if not read_json(directory / "config.json"):
        raise ModelError(f"no config.json in {directory}{_unfinished(directory)}")
    return inspect_weights(directory)


def model_name(directory: Path) -> str:
    """What to call the model in a directory.

    Directories in the hub's cache are named by commits, `models--org--name/snapshots/<commit>`, and conversions have a note.
    """
    if directory.parent.name == "snapshots":
        return directory.parent.parent.name.removeprefix("models--").replace("--", "/")
    try:
        name = read_json(directory / NOTE).get("name")
    except ModelError:
        name = None  # somebody else's file
    return name if isinstance(name, str) else directory.absolute().name


def inspect_weights(directory: Path) -> WeightFiles:
    """Reads the headers of all weight files; no tensor is loaded.

    Raises:
        ModelError: there are none, a shard is missing, one is cut short, or the index does not fit them.
    """
    index = _weight_map(directory)
    paths = _shards(directory, index) if index is not None else (_single_file(directory),)
    digest = hashlib.blake2b(digest_size=16)
    counts: Counter[str] = Counter()
    shapes: dict[str, Shape] = {}
    types: dict[str, str] = {}
    total = 0
    for path in paths:
        size = path.stat().st_size
        header, elements = _header(path, size)
        _check_index(index, path, header)
        digest.update(f"{path.name}\0{size}\0".encode() + json.dumps(header, sort_keys=True).encode())
        counts += elements
        types |= {name: str(tensor["dtype"]) for name, tensor in header.items() if name != "__metadata__"}
        shapes |= {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
        total += size
    if not counts:
        raise ModelError(f"the safetensors files in {directory} hold no tensors")
    stored = max(counts, key=lambda name: counts[name])
    return WeightFiles(paths, sum(counts.values()), total, stored, digest.digest(), shapes, dict(counts), types)


def _weight_map(directory: Path) -> dict[str, str] | None:
    """Which tensor lies in which file, where there is an index."""
    path = directory / INDEX
    index = read_json(path)
    if not index:
        return None
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) and Path(name).name == name for name in names.values()):
        raise ModelError(f"{path} has no weight_map from tensors to files of this directory; download the model again")
    return names


def _shards(directory: Path, index: dict[str, str]) -> tuple[Path, ...]:
    paths = tuple(directory / name for name in sorted(set(index.values())))
    strange = next((path for path in paths if path.exists() and not path.is_file()), None)
    if strange is not None:
        raise ModelError(f"{strange} is {_no_file(strange)}, not a file of weights")
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ModelError(f"{directory} is incomplete: missing {', '.join(missing)}{_unfinished(directory)}; download the model again")
    return paths


def _single_file(directory: Path) -> Path:
    path = directory / SINGLE
    if path.is_file():
        return path
    if path.exists():
        raise ModelError(f"{path} is {_no_file(path)}, not a file of weights")
    if path.is_symlink():
        raise ModelError(f"{path} is a link to a file that is not there{_unfinished(directory)}; download the model again")
    there = sorted(directory.iterdir()) if directory.is_dir() else []
    tensors = [entry.name for entry in there if entry.suffix == ".safetensors"]
    if tensors:
        raise ModelError(f"no {SINGLE} and no {INDEX} in {directory}, only {_few(tensors)}; download the whole model")
    pickles = [entry.name for entry in there if entry.suffix in PICKLES]
    if pickles:
        raise ModelError(
            f"no safetensors weights in {directory}: pickle files such as {pickles[0]} are never read, as they can run any code; "
            "look for a safetensors version of the model, or save it anew with transformers' save_pretrained"
        )
    raise ModelError(f"no safetensors weights in {directory}{_unfinished(directory)}")


def _no_file(path: Path) -> str:
    return "a directory" if path.is_dir() else "a pipe, socket or device"


def _unfinished(directory: Path) -> str:
    """What a download that was cut off has left, as a part of a sentence; empty if there is nothing of the kind."""
    found = sorted(path.name for pattern in _UNFINISHED for path in directory.glob(pattern))
    if directory.parent.name == "snapshots":  # in the hub's cache downloads grow elsewhere
        found += sorted(path.name for path in (directory.parent.parent / "blobs").glob("*.incomplete"))
    return f" (an unfinished download: {_few(found)})" if found else ""


def _few(names: Iterable[str]) -> str:
    first, *more = names
    return f"{first} and {len(more)} more" if more else first


def _header(path: Path, size: int) -> tuple[dict[str, Any], Counter[str]]:
    """The header of a safetensors file, and how many elements of each type it names.

    It is 8 bytes of length, then JSON with type, shape and place of each tensor.
    """
    start = b""
    try:
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
            length = int.from_bytes(start[:8], "little")
            file.seek(8)
            # A length beyond the file leaves a text that is cut off, which JSON refuses.
            header = json.loads(file.read(min(length, size, _MAX_HEADER)))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        elements: Counter[str] = Counter()
        for tensor in tensors:
            elements[tensor["dtype"]] += math.prod(tensor["shape"])
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({_what_it_is(start) or f'{error}; download the model again'})"
        ) from error
    if size < end:
        raise ModelError(f"{path} is cut short: {size:,} of {end:,} bytes; download the model again")
    return header, elements


def _what_it_is(start: bytes) -> str | None:
    """What else lies where weights should be, and what to do; None if that is not known."""
    if not start:
        return "it is empty; download the model again"
    if start == _POINTER:
        return "it is a git-lfs pointer; run git lfs pull"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, as servers send in place of a file that is not there or needs a login; download the model again"
    return None


def _check_index(index: dict[str, str] | None, path: Path, header: dict[str, Any]) -> None:
    if index is None:
        return
    lacking = [tensor for tensor, name in index.items() if name == path.name and tensor not in header]
    if lacking:
        raise ModelError(f"{INDEX} does not fit {path}: the file holds no {_few(lacking)}; download the model again")


def weight_identity(files: Iterable[Path]) -> list[bytes]:
    """Says which files these are, without reading them: weights that were written again, in whatever way, are other ones.

    Their places, sizes and times; the time at which a file was last touched in any way cannot be set back, as that of its contents can.
    """
    stats = [(path.resolve(), path.stat()) for path in files]
    return [repr((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)).encode() for path, stat in stats]
