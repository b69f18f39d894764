"""transformers' quantizers: whether one can read a checkpoint here, and what it makes of it. Found out before anything is loaded."""

from __future__ import annotations

import copy
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.quantizers.auto import AutoHfQuantizer, AutoQuantizationConfig

from chatpaged.engine.model_executor.models.stored_quantization import StoredQuantization
from chatpaged.engine.model_executor.models.support import text_config, why
from chatpaged.errors import ModelError

# Those of the methods that are tested; of others transformers' own message says what is missing, one after the other.
_PACKAGES = {
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel",),
    "bitsandbytes_4bit": ("bitsandbytes",),
    "bitsandbytes_8bit": ("bitsandbytes",),
    "compressed-tensors": ("compressed_tensors",),
}
_SETTLED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_LOGS_TO_OUTPUT = frozenset({"gptq", "awq"})
_AUTO: Any = AutoHfQuantizer  # its functions have no types
_DOWNLOADS_CODE = frozenset({"eetq"})
_INSTALL = re.compile(r"pip install [^`'\")]+")


@dataclass(frozen=True, slots=True)
class Quantizer:
    """What a quantizer makes of a checkpoint.

    Attributes:
        stored: how it is quantised.
        dtype: type of activations; of weights too where they are widened.
        widens: its weights are widened while they are loaded, and take as much memory as if they had never been quantised.
    """

    stored: StoredQuantization
    dtype: torch.dtype
    widens: bool


def prepare_quantizer(config: Any, stored: StoredQuantization, device: torch.device, dtype: torch.dtype) -> Quantizer:
    """Asks transformers' quantizer whether it can read a model here.

    Weights of methods that transformers can widen while it loads them (FP8, MXFP4, compressed-tensors) are widened: it would run the first
    two by kernels that it downloads when they are needed, and the last are unpacked by their first use anyway.

    Args:
        config: the model's, as transformers understands it. What the quantizer needs to know is written into it.
        stored: how its weights are quantised.
        device: where it shall run.
        dtype: type of activations.

    Raises:
        ModelError: it cannot, with the reason: an unknown method, a package that is missing, a device that is not the right one.
    """
    kind = f"this model's weights are {stored.label}"
    if stored.method in _DOWNLOADS_CODE:
        raise ModelError(f"{kind}, whose kernels transformers downloads when they are needed; code from elsewhere is not run here")
    missing = [name for name in _PACKAGES.get(stored.method, ()) if not getattr(transformers.utils, f"is_{name}_available")()]
    if missing:
        raise ModelError(_needs(kind, missing))
    _quiet(stored.method)
    settings = _settings(config)
    if not _AUTO.supports_quant_method(settings):
        raise ModelError(f"{kind}, which transformers {transformers.__version__} does not know; look for another version of the model")
    try:
        with contained_packages():
            return _ask(settings, stored, device, dtype)
    except ImportError as error:
        install = _INSTALL.search(str(error))
        advice = f": {install.group().strip()}" if install is not None else f" ({why(error)})"
        raise ModelError(f"{kind}, and a package that transformers reads them with is missing{advice}") from error
    except Exception as error:  # whatever a quantizer makes of settings that somebody else wrote, and of this machine
        raise ModelError(f"{kind}, which transformers cannot run on {device.type} here ({why(error)})") from error


def _ask(settings: dict[str, Any], stored: StoredQuantization, device: torch.device, dtype: torch.dtype) -> Quantizer:
    """What the quantizer says; errors are its own."""
    found: Any = AutoQuantizationConfig.from_dict(copy.deepcopy(settings))
    widens = hasattr(found, "dequantize")
    if widens:
        found.dequantize = settings["dequantize"] = True
    quantizer: Any = _AUTO.from_config(found, pre_quantized=True)
    quantizer.validate_environment(device_map={"": str(device)}, weights_only=True)
    return Quantizer(stored, quantizer.update_dtype(dtype), widens)


def settle_types(model: Any, kinds: Mapping[str, type], dtype: torch.dtype) -> None:
    """Gives all weights that are not quantised the type that they should have.

    transformers leaves some of them as they are stored: whatever bears a name that quantised weights have too. Weights in another type
    make activations in another type, and keys and values with them.

    Args:
        model: loaded.
        kinds: classes of its modules by their names, before a quantizer exchanged some.
        dtype: of activations.
    """
    strict = tuple(model._keep_in_fp32_modules_strict or ())  # noqa: SLF001 - no public way
    wide = strict + tuple(model._keep_in_fp32_modules or ()) if dtype == torch.float16 else strict  # noqa: SLF001
    modules: Iterable[tuple[str, nn.Module]] = model.named_modules()
    for name, module in modules:
        if kinds.get(name) is not type(module):
            continue
        target = torch.float32 if dtype.itemsize < torch.float32.itemsize and any(part in name.split(".") for part in wide) else dtype
        for weight in module.parameters(recurse=False):
            if type(weight) is nn.Parameter and weight.dtype in _SETTLED and weight.dtype != target:
                weight.data = weight.data.to(target)


@contextmanager
def contained_packages() -> Iterator[None]:
    """Around all that runs code of quantizers and of the packages they use.

    Hides the package `kernels`, by which they fetch code when they are imported or load a model; what they print goes to standard error.
    """
    modules: dict[str, Any] = sys.modules
    hidden = {name: modules[name] for name in modules if name.partition(".")[0] == "kernels"}
    modules |= dict.fromkeys((*hidden, "kernels"))  # None: cannot be imported
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        del modules["kernels"]
        modules |= hidden


def _quiet(method: str) -> None:
    """Keeps advice and progress of the packages that read a method's weights off the terminal, where answers are written."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if method in _LOGS_TO_OUTPUT:
        with suppress(ImportError, AttributeError):  # it is not there, or not what it was
            import logbar  # noqa: PLC0415 - the package gptqmodel brings it

            logbar.LogBar.shared().setLevel(logging.ERROR)


def _needs(kind: str, missing: list[str]) -> str:
    names = [name.replace("_", "-") for name in missing]
    packages = f"package{'s' if len(names) > 1 else ''} {' and '.join(names)}"
    return f"{kind}, which transformers reads with the {packages}: pip install {' '.join(names)}"


def _settings(config: Any) -> dict[str, Any]:
    """The table of the configuration that says how weights are quantised; the same one that transformers will read."""
    found: dict[str, Any] = getattr(config, "quantization_config", None) or text_config(config).quantization_config
    return found
