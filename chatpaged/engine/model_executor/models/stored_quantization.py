"""Checkpoints whose weights are quantised already: GPTQ, AWQ, bitsandbytes and others, as config.json names them. Without transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from chatpaged.engine.weight_files import WeightFiles
from chatpaged.errors import ModelError

_LABELS = {"gptq": "GPTQ", "awq": "AWQ", "fp8": "FP8", "mxfp4": "MXFP4", "hqq": "HQQ", "aqlm": "AQLM", "eetq": "EETQ"}
_FP8_BLOCK = (128, 128)
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_STORED_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_EIGHT_BIT_FLOATS = frozenset({"F8_E4M3", "F8_E5M2"})
_INTEGERS = frozenset({"BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"})


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """How a checkpoint's weights are quantised.

    Attributes:
        method: as transformers calls it: "gptq", "awq", "bitsandbytes_4bit", "bitsandbytes_8bit", ...
        bits: of a weight; None if the configuration does not say.
        block: rows and columns of weights that have one scale; None if the configuration does not say.
    """

    method: str
    bits: int | None
    block: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """The method, for people: `GPTQ`, `bitsandbytes`."""
        return _LABELS.get(self.method, self.method.removesuffix("_4bit").removesuffix("_8bit"))

    @property
    def weights(self) -> str:
        """Type of the weights, in a word or two: `GPTQ 4 bit`."""
        return self.label if self.bits is None else f"{self.label} {self.bits} bit"

    @property
    def reason(self) -> str:
        """Why no code of our own can read them."""
        return f"its weights are {self.label} already, which transformers reads"


def stored_quantization(config: Mapping[str, Any]) -> StoredQuantization | None:
    """How the weights of a model are quantised, by its config.json; None if they are not.

    Raises:
        ModelError: they are, and it does not say how.
    """
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        settings = part.get("quantization_config")
        if settings is not None:
            return _read(settings)
        if part.get("compression_config") is not None:
            raise ModelError(
                "config.json has compression_config, the old name of quantization_config, which transformers does not read; "
                "look for a newer version of the model"
            )
    return None


def _read(settings: object) -> StoredQuantization:
    if not isinstance(settings, dict):
        raise ModelError(f"quantization_config in the model's config.json is {settings!r}; it has to be a table")
    # As transformers decides, which has one name for two methods of bitsandbytes.
    for name, width in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if settings.get(name):
            return StoredQuantization(f"bitsandbytes_{width}bit", width)
    method = settings.get("quant_method")
    if not isinstance(method, str) or not method:
        raise ModelError("quantization_config in the model's config.json names no quant_method: how its weights are packed is not known")
    bits = next((value for name in ("bits", "w_bit") if isinstance(value := settings.get(name), int)), None)
    return StoredQuantization(method, bits, _block(settings) if method == "fp8" else None)


def _block(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    block = settings.get("weight_block_size", _FP8_BLOCK)
    if isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block):
        return int(block[0]), int(block[1])
    return None


def check_packing(files: WeightFiles) -> None:
    """Refuses weights that need scales, of a model whose config.json does not say that they are quantised.

    Read as they lie, they would be taken for the numbers themselves.

    Raises:
        ModelError: names their type.
    """
    total = sum(files.elements.values())
    packed = {kind: count for kind, count in files.elements.items() if kind in _INTEGERS or kind in _EIGHT_BIT_FLOATS}
    eight_bit = next((kind for kind in packed if kind in _EIGHT_BIT_FLOATS), None)
    matrix = next((files.types[name] for name in _packed_matrices(files)), None)
    if eight_bit is not None or matrix is not None or 2 * sum(packed.values()) > total:
        kind = eight_bit or matrix or max(packed, key=lambda name: packed[name])
        raise ModelError(
            f"the weights are stored as {kind}, which needs scales, and config.json does not say how they are quantised "
            "(quantization_config); download the whole model again, or a version for transformers"
        )


def check_scales(stored: StoredQuantization, files: WeightFiles) -> None:
    """Refuses FP8 weights that transformers would read wrongly: without scales it takes numbers of its own.

    The size of blocks it finds by dividing the weights by their scales: 192 rows in blocks of 128 would be taken for blocks of 96.

    Raises:
        ModelError: names the first.
    """
    if stored.method != "fp8":
        return
    for name in _packed_matrices(files):
        if not any(other in files.types for other in (f"{name}_scale_inv", f"{name}_scale", f"{name.removesuffix('weight')}scale")):
            raise ModelError(
                f"the weights are incomplete: {name} is stored as {files.types[name]}, and there is no {name}_scale_inv for it"
            )
        shape, scales = files.shapes[name][-2:], files.shapes.get(f"{name}_scale_inv", ())[-2:]
        for length, count, size in zip(shape, scales, stored.block or (), strict=False):
            if 1 < count == -(-length // size) and length % size:
                raise ModelError(
                    f"{name} is stored as FP8 in blocks of {size}, and its {length} are no multiple of that: transformers would take "
                    "each number times the wrong scale; look for another version of the model"
                )


def _packed_matrices(files: WeightFiles) -> list[str]:
    """Weights of layers that are no numbers by themselves."""
    kinds = _INTEGERS | _EIGHT_BIT_FLOATS
    return [name for name, kind in files.types.items() if kind in kinds and name.endswith(".weight") and len(files.shapes[name]) > 1]


def packed_bytes(files: WeightFiles, dtype: torch.dtype) -> int:
    """Memory that a quantised checkpoint takes, about: what is packed as in the file, floating-point numbers in the type that they get."""
    return sum(count * (dtype.itemsize if kind in _FLOAT_BYTES else _STORED_BYTES.get(kind, 1)) for kind, count in files.elements.items())


def unpacked_type(files: WeightFiles) -> str:
    """Type of most floating-point numbers in the files, as safetensors names it; of most numbers, if there are none."""
    floating = {kind: count for kind, count in files.elements.items() if kind in _FLOAT_BYTES}
    return max(floating, key=lambda kind: floating[kind]) if floating else files.stored_type


def dtype_name(dtype: torch.dtype) -> str:
    """A type as `--dtype` names it."""
    return str(dtype).removeprefix("torch.")
