"""Packed weights on disk: made once, mapped into memory from then on.

A file is in the safetensors format, so that any tool can look into it; its tensors lie on boundaries of 64 bytes. What it was made from
is part of its name: weights that were written again, in whatever way, have another one. Nothing in it is ever needed: it is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch

from chatpaged import paths
from chatpaged.engine.model_executor.native.interface import VERSION
from chatpaged.engine.weight_files import WeightFiles, weight_identity

KEPT_FILES = 8
_BOUNDARY = 64
_UNFINISHED = "unfinished-"
_ABANDONED = 3600.0
"""Seconds after which nobody still writes a file."""
_TYPES = {torch.uint8: "U8", torch.float32: "F32"}


def quantized_file(files: WeightFiles, directory: Path, quantize: str) -> Path:
    """Where the packed weights of a model are kept.

    Args:
        files: its weights; see `weight_identity`.
        directory: the model; its configuration takes part too.
        quantize: how it is packed.
    """
    facts = [repr((VERSION, quantize)).encode(), *weight_identity((*files.paths, directory / "config.json"))]
    digest = hashlib.blake2b(b"".join(facts), digest_size=16).hexdigest()
    return paths.cache_dir() / "quantized" / f"{digest}.safetensors"


def load_quantized(path: Path, sizes: Mapping[str, int]) -> dict[str, torch.Tensor] | None:
    """Maps a file; None if there is none, it is not whole, damaged, or holds something else than was expected.

    Args:
        path: the file.
        sizes: bytes of each tensor, by name. The kernels rely on them.
    """
    if not path.is_file():  # opening a pipe would wait for somebody who writes
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            checksums = file.metadata() or {}
            if not sizes.keys() <= set(file.keys()):
                return None
            tensors = {name: file.get_tensor(name) for name in sizes}
    except (OSError, safetensors.SafetensorError):
        return None
    if any(tensor.numel() * tensor.element_size() != sizes[name] for name, tensor in tensors.items()):
        return None
    if any(checksums.get(name) != _checksum(tensor) for name, tensor in tensors.items()):
        return None
    with contextlib.suppress(OSError):  # the file may be somebody else's
        os.utime(path)  # so that the files that are used are those that are kept
    return tensors


def save_quantized(path: Path, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Writes a file as a whole or not at all, readable for its owner only. Returns whether that was possible.

    Args:
        path: where.
        tensors: uint8 or float32, contiguous.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_others(path)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_UNFINISHED, delete=False) as file:
            try:
                _write(file, tensors)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError:  # no room, no right to write: it is made again next time
        return False
    return True


def _checksum(tensor: torch.Tensor) -> str:
    data: Any = tensor.contiguous().view(torch.uint8).flatten().numpy()  # numpy's arrays are buffers, but are not typed as such
    return f"{zlib.crc32(data):08x}"


def _write(file: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {name: _checksum(tensor) for name, tensor in tensors.items()}}
    end = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
        fill = -end % _BOUNDARY  # the format knows no gaps
        if fill:
            header[f"{name} "] = {"dtype": "U8", "shape": [fill], "data_offsets": [end, end + fill]}
            end += fill
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _BOUNDARY)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        data = tensor.contiguous().view(torch.uint8).flatten()
        file.write(data.numpy().tobytes())
        file.write(bytes(-data.numel() % _BOUNDARY))


def _remove_others(path: Path) -> None:
    """Leaves the files used last, and room for one more; a file that another process has mapped stays valid for it."""
    there = sorted((when, entry) for entry in path.parent.glob("*.safetensors") if entry != path and (when := _last_use(entry)))
    for _, entry in there[: max(0, len(there) - KEPT_FILES + 1)]:
        entry.unlink(missing_ok=True)
    for entry in path.parent.glob(f"{_UNFINISHED}*"):
        if 0 < _last_use(entry) < time.time() - _ABANDONED:  # by a process that was killed
            entry.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    """Seconds; 0 if another process has removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
