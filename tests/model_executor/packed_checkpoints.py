"""Tiny checkpoints whose weights are packed by hand, as the documents of each method lay them out, and what they are worth unpacked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FP8_BLOCK = 32
_FP8_MAX = 448.0
Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


def _grouped(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four-bit numbers of `[in, out]`, zeros and scales of `[groups, out]`: a weight is `(number - zero) * scale`."""
    rows = weight.t().float().reshape(-1, GROUP, len(weight))
    low, high = rows.amin(1), rows.amax(1)
    scale = ((high - low) / 15).half().float().clamp_min(1e-4)
    zero = (-low / scale).round().clamp(1, 15)  # GPTQ keeps one less, and has no -1
    numbers = (rows / scale.unsqueeze(1) + zero.unsqueeze(1)).round().clamp(0, 15)
    return numbers.flatten(0, 1).int(), zero.int(), scale.half()


def _unpacked(numbers: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    groups = torch.arange(len(numbers)) // GROUP
    return ((numbers - zero[groups]) * scale.float()[groups]).t().contiguous()


def _eight_in_one(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight columns side by side in one int32, the one that `order` names first in the lowest bits."""
    columns = numbers.long().reshape(len(numbers), -1, 8)
    word = sum(columns[..., column] << 4 * place for place, column in enumerate(order))
    assert isinstance(word, torch.Tensor)
    return torch.where(word >= 2**31, word - 2**32, word).int()


def gptq(name: str, weight: torch.Tensor) -> Packed:
    """GPTQ: packed along the inputs; zeros are kept less one."""
    numbers, zero, scale = _grouped(weight)
    tensors = {
        f"{name}.qweight": _eight_in_one(numbers.t()).t().contiguous(),
        f"{name}.qzeros": _eight_in_one(zero - 1),
        f"{name}.scales": scale,
        f"{name}.g_idx": (torch.arange(len(numbers)) // GROUP).int(),
    }
    return tensors, _unpacked(numbers, zero, scale)


def awq(name: str, weight: torch.Tensor) -> Packed:
    """AWQ: packed along the outputs, even ones first."""
    numbers, zero, scale = _grouped(weight)
    tensors = {f"{name}.qweight": _eight_in_one(numbers, _AWQ_ORDER), f"{name}.qzeros": _eight_in_one(zero, _AWQ_ORDER)}
    return {**tensors, f"{name}.scales": scale}, _unpacked(numbers, zero, scale)


def fp8(name: str, weight: torch.Tensor) -> Packed:
    """FP8 with a scale for each square block."""
    down, across = (size // _FP8_BLOCK for size in weight.shape)
    blocks = weight.float().reshape(down, _FP8_BLOCK, across, _FP8_BLOCK)  # [rows, block, columns, block]
    scale = blocks.abs().amax((1, 3)) / _FP8_MAX
    wide = scale[:, None, :, None]
    numbers = (blocks / wide).to(torch.float8_e4m3fn)
    unpacked = (numbers.float() * wide).flatten(2, 3).flatten(0, 1)
    return {f"{name}.weight": numbers.flatten(2, 3).flatten(0, 1), f"{name}.weight_scale_inv": scale}, unpacked


def rows(name: str, weight: torch.Tensor) -> Packed:
    """compressed-tensors' `int-quantized`: 8-bit numbers with a scale a row."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    numbers = (weight.float() / scale).round().to(torch.int8)
    return {f"{name}.weight": numbers, f"{name}.weight_scale": scale}, numbers.float() * scale


_ROWS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
        }
    },
}
SETTINGS: dict[str, tuple[Callable[[str, torch.Tensor], Packed], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False, "checkpoint_format": "gptq"}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "compressed-tensors": (rows, _ROWS),
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [_FP8_BLOCK, _FP8_BLOCK], "activation_scheme": "dynamic"}),
}


def save_packed(method: str, plain: Path, packed: Path, unpacked: Path) -> None:
    """Packs the linear layers of a model, and saves it both ways: packed, and with the numbers that packing has left."""
    pack, settings = SETTINGS[method]
    save_with(pack, settings, plain, packed, unpacked)


def save_with(pack: Callable[[str, torch.Tensor], Packed], settings: dict[str, Any], plain: Path, packed: Path, unpacked: Path) -> None:
    """The same with a way of packing of one's own."""
    tensors = {name: tensor.half() for name, tensor in load_file(plain / "model.safetensors").items()}
    theirs, ours = dict(tensors), dict(tensors)
    for name in _linear(tensors):
        module = name.removesuffix(".weight")
        del theirs[name]
        parts, worth = pack(module, tensors[name])
        theirs |= parts
        ours[name] = worth
    for directory, contents in ((packed, theirs), (unpacked, ours)):
        shutil.copytree(plain, directory)
        whole = {name: tensor.contiguous() for name, tensor in contents.items()}
        save_file(whole, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


def _linear(tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    return (name for name, tensor in tensors.items() if tensor.dim() == 2 and ".layers." in name)
