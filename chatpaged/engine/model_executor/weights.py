"""Which number type weights are stored in, and which one they are loaded as."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
SHORT_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
_HALF = {"F16": torch.float16, "BF16": torch.bfloat16}


def stored_dtype(name: str) -> torch.dtype:
    """The type to load weights as that safetensors names `F16`, `BF16` or otherwise; what is no half type is float32."""
    return _HALF.get(name, torch.float32)


def choose_dtype(name: str, device: torch.device, stored: torch.dtype) -> torch.dtype:
    """The type of weights and KV.

    Automatic is float32 on a CPU, where half types are slow, and the stored type elsewhere; MPS has no fast bfloat16.
    """
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if device.type == "mps" else stored
