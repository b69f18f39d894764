"""A model without its weights: shows whether weights and configuration fit together before any memory is spent on them."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping

from chatpaged.engine.model_executor.models.attention_hook import ATTENTION_NAME, register_attention
from chatpaged.engine.model_executor.models.support import config_error
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import Shape, WeightFiles
from chatpaged.errors import ModelError

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_FEW_LAYERS = 500  # take no time to build; which of their weights are missing is found out when they are loaded
_LEAST_QUANTIZED = 1 / 8  # bytes of a parameter: what quantized ones take depends on the method, no method takes less


def check_layers(directory: Path, files: WeightFiles) -> None:
    """Refuses more layers than there are tensors: building them, even without weights, would take all memory.

    Raises:
        ModelError: there are more.
    """
    config = read_json(directory / "config.json")
    for part in (config, config.get("text_config")):
        for name in _LAYERS:
            count = part.get(name) if isinstance(part, dict) else None
            if isinstance(count, int) and count > max(len(files.shapes), _FEW_LAYERS):
                raise _misfit(directory, f"{name} is {count:,}, and the files hold {len(files.shapes):,} tensors in all")


def build_without_weights(config: Any, remote_class: Any, directory: Path) -> Any:
    """The model on torch's meta device, which has shapes and no memory.

    Args:
        config: the model's.
        remote_class: what code that comes with the model defines; None is transformers' own class.
        directory: the model, for messages.

    Raises:
        ModelError: no model can be built from the configuration.
    """
    register_attention()
    build: Any = remote_class._from_config if remote_class is not None else transformers.AutoModelForCausalLM.from_config  # noqa: SLF001 - as the public one does
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about sizes of zero
            # What layers store does not depend on the type; without memory behind it, experts' matrix product knows this one only.
            return build(config, attn_implementation=ATTENTION_NAME, dtype=torch.bfloat16).eval()
    except Exception as error:  # whatever a class makes of a configuration that somebody else wrote
        raise config_error(directory, error) from error


def check_fit(model: Any, directory: Path, files: WeightFiles) -> None:
    """Compares shapes of weights in the files with those that the configuration asks for.

    Only what has the same name in both, and is not converted by transformers, is compared; it finds the rest when it loads.

    Args:
        model: without weights.
        directory: where it lies.
        files: its weights.

    Raises:
        ModelError: names the first tensor that differs.
    """
    if _is_quantized(model):
        return  # packed: shapes differ from those of the layers
    converted = [re.compile(pattern) for change in get_model_conversion_mapping(model) for pattern in change.source_patterns]
    for name, parameter in model.named_parameters():
        stored, wanted = files.shapes.get(name), tuple(parameter.shape)
        if stored is not None and stored != wanted and not any(pattern.search(name) for pattern in converted):
            raise shape_error(directory, name, stored, wanted)


def shape_error(directory: Path, name: str, stored: Shape, wanted: Shape) -> ModelError:
    """The error for a tensor of another shape than the configuration asks for."""
    return _misfit(directory, f"{name} has the shape {_text(stored)} in the files, and {_text(wanted)} by the configuration")


def needed_bytes(model: Any, dtype: torch.dtype, *, packed: bool = False) -> int:
    """Bytes that the parameters of a model without weights will take at least; `packed` are those that stay as they were quantised."""
    size: float = _LEAST_QUANTIZED if packed else dtype.itemsize
    count: int = sum(math.prod(parameter.shape) for parameter in model.parameters())
    return math.ceil(count * size)


def _is_quantized(model: Any) -> bool:
    return getattr(model.config, "quantization_config", None) is not None


def _misfit(directory: Path, reason: str) -> ModelError:
    return ModelError(f"config.json of {directory} does not fit the weights: {reason}; download the model again")


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "of a single number"
