"""A quantizer of our own, small and real: linear layers of 8-bit numbers with a scale a row, registered with transformers as others are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

METHOD = "rows8"
SETTINGS: dict[str, Any] = {"quant_method": METHOD, "bits": 8}
_base: Any = HfQuantizer
_config_base: Any = QuantizationConfigMixin


def rows8(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Packs a weight of `[out, in]`; see `packed_checkpoints`."""
    scale = weight.float().abs().amax(1) / 127
    numbers = (weight.float() / scale.unsqueeze(1)).round().to(torch.int8)
    return {f"{name}.numbers": numbers, f"{name}.scale": scale}, numbers.float() * scale.unsqueeze(1)


class Rows8Linear(nn.Module):
    """Keeps what it has in buffers, as layers of GPTQ do."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("numbers", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scale", torch.zeros(out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.numbers, torch.Tensor)
        assert isinstance(self.scale, torch.Tensor)
        return F.linear(x, self.numbers.to(x.dtype) * self.scale.to(x.dtype).unsqueeze(1))


class Rows8Config(_config_base):  # type: ignore[misc] # without useful types
    def __init__(self, bits: int = 8, **others: object) -> None:
        self.quant_method = METHOD
        self.bits = bits


class Rows8Quantizer(_base):  # type: ignore[misc]
    requires_calibration = True

    def _process_model_before_weight_loading(self, model: Any, **_: object) -> Any:
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and ".layers." in name:
                with torch.device("meta"):
                    model.set_submodule(name, Rows8Linear(module.in_features, module.out_features))
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


@contextmanager
def registered(
    validate: Callable[[], None] = lambda: None, wanted: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype
) -> Iterator[None]:
    """Lets transformers know the quantizer for a while.

    Args:
        validate: what it does to see whether it can run.
        wanted: the type of activations that it makes of the one that was asked for.
    """
    kind = type(
        "Rows8Quantizer",
        (Rows8Quantizer,),
        {"validate_environment": lambda self, **_: validate(), "update_dtype": lambda self, dtype: wanted(dtype)},
    )
    auto.register_quantization_config(METHOD)(Rows8Config)
    auto.register_quantizer(METHOD)(kind)
    try:
        yield
    finally:
        del auto.AUTO_QUANTIZER_MAPPING[METHOD], auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD]
