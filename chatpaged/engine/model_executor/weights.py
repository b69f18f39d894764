"""Checking a model directory before it is loaded: is everything there, whole, and small enough?"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import ModelError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
_HALF = {"F16": torch.float16, "BF16": torch.bfloat16}
_MAX_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The safetensors files of a model.

    Attributes:
        paths: the files.
        num_parameters: elements of all tensors.
        stored_dtype: type of most elements.
        digest: changes with names, shapes, types and sizes of the files.
    """

    paths: tuple[Path, ...]
    num_parameters: int
    stored_dtype: torch.dtype
    digest: bytes

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of all weights in a type."""
        return self.num_parameters * dtype.itemsize


def inspect_weights(directory: Path) -> WeightFiles:
    """Reads the headers of all weight files; no tensor is loaded.

    Raises:
        ModelError: there are none, a shard is missing, or one is cut short.
    """
    paths = _weight_paths(directory)
    digest = hashlib.blake2b(digest_size=16)
    counts: Counter[str] = Counter()
    for path in paths:
        size = path.stat().st_size
        header, elements = _header(path, size)
        digest.update(f"{path.name}\0{size}\0".encode() + json.dumps(header, sort_keys=True).encode())
        counts += elements
    if not counts:
        raise ModelError(f"the safetensors files in {directory} hold no tensors")
    stored = max(counts, key=lambda name: counts[name])
    return WeightFiles(paths, sum(counts.values()), _HALF.get(stored, torch.float32), digest.digest())


def _weight_paths(directory: Path) -> tuple[Path, ...]:
    index = read_json(directory / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict):
        paths = tuple(directory / name for name in sorted(set(index.values())))
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise ModelError(f"{directory} is incomplete: missing {', '.join(missing)}; download the model again")
        return paths
    paths = tuple(sorted(directory.glob("*.safetensors")))
    if not paths:
        raise ModelError(f"no safetensors weights in {directory} (pickle files such as pytorch_model.bin are never read)")
    return paths


def _header(path: Path, size: int) -> tuple[dict[str, Any], Counter[str]]:
    """The header of a safetensors file, and how many elements of each type it names.

    It is 8 bytes of length, then JSON with type, shape and place of each tensor.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            # A length beyond the file leaves a text that is cut off, which JSON refuses.
            header = json.loads(file.read(min(length, size, _MAX_HEADER)))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        elements: Counter[str] = Counter()
        for tensor in tensors:
            elements[tensor["dtype"]] += math.prod(tensor["shape"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a whole safetensors file ({error}); download the model again") from error
    if size < end:
        raise ModelError(f"{path} is cut short: {size:,} of {end:,} bytes; download the model again")
    return header, elements


def choose_dtype(name: str, device: torch.device, stored: torch.dtype) -> torch.dtype:
    """The type of weights and KV.

    Automatic is float32 on a CPU, where half types are slow, and the stored type elsewhere; MPS has no fast bfloat16.
    """
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if device.type == "mps" else stored
