"""`python -m chatpaged.engine.model_executor.describe DIRECTORY [OPTIONS as JSON]`: how a model would run here, as JSON.

The code is chosen as the engine chooses it. A model of transformers is built without its weights, by the same code that would run it;
so what is refused here is what would be refused.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.kv_cache import BlockLayout, choose_num_blocks
from chatpaged.engine.model_executor.memory import free_memory, require_memory
from chatpaged.engine.model_executor.model_runner import choose_device
from chatpaged.engine.model_executor.models.code_path import CodePath, choose_code
from chatpaged.engine.model_executor.models.dense import choose_context, dense_geometry
from chatpaged.engine.model_executor.models.dense_config import DenseConfig
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.native_dense import native_kv_layout
from chatpaged.engine.model_executor.models.stored_quantization import dtype_name, unpacked_type
from chatpaged.engine.model_executor.models.torch_path import choose_attention, choose_ops, quantized_path, torch_kv_layout
from chatpaged.engine.model_executor.native.library import instruction_sets
from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.weight_files import WeightFiles, check_directory, model_name
from chatpaged.errors import ChatpagedError

_ATTENTION_REASONS = {"native": "it reads keys and values where they lie", "torch": "for all that the native one does not do"}


def describe(directory: Path, options: EngineConfig) -> dict[str, Any]:
    """What `chatpaged models show` tells about running a model.

    Args:
        directory: the model.
        options: as the engine would get them.

    Returns:
        Plain values by name; with `supported` false there is a `reason`, and what could not be found out is missing.
    """
    found: dict[str, Any] = {"supported": True}
    try:
        _describe(directory, options, found)
    except ChatpagedError as error:
        found |= {"supported": False, "reason": str(error)}
    return found


@dataclass(frozen=True, slots=True)
class _Shape:
    """What decides how much memory keys and values take.

    Attributes:
        geometry: what each layer stores.
        measured: whether that is certain, not guessed from the configuration.
        context: longest sequence.
    """

    geometry: KVGeometry
    measured: bool
    context: int


def _describe(directory: Path, options: EngineConfig, found: dict[str, Any]) -> None:
    files = check_directory(directory)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device, stored_dtype(unpacked_type(files)))
    found |= {"device": device.type, "dtype": str(dtype).removeprefix("torch.")}
    path = choose_code(directory, files, options, device, dtype)
    is_native = path.kind == "native"
    found |= {
        "weights": path.code("").weights,
        "weights_reason": path.reason if is_native else "",
        "weight_bytes": path.weight_bytes(files),
    }
    if path.config is None:
        path, shape = _universal_shape(directory, files, path, options, found)
    else:
        shape = _dense_shape(path.config, options)
    weights = found["weight_bytes"]
    layout: BlockLayout
    if path.config is not None and is_native:
        layout = native_kv_layout(path.config, options.block_size, path.kv_dtype)
    else:
        path = choose_ops(choose_attention(shape.geometry, path, options, device), device)
        layout = torch_kv_layout(shape.geometry, path, options)
    attention = "native" if is_native else path.attention
    code = path.code(instruction_sets()[0] if attention == "native" else "")
    found |= {
        "code_path": found.get("code_path", code.name),
        "code_reason": "" if is_native else "; ".join(part for part in (path.reason, path.fused_reason) if part),
        "attention": f"{attention}_paged",
        "attention_reason": path.attention_reason or _ATTENTION_REASONS[attention],
        "kv_dtype": code.kv,
        "kv_layers": shape.geometry.num_layers,
        "kv_heads": shape.geometry.kv_heads,
        "kv_head_dim": shape.geometry.head_dim,
        "kv_measured": shape.measured,
        "block_size": layout.block_size,
        "kv_bytes_per_block": layout.block_bytes,
        "kv_bytes_per_token": layout.block_bytes // layout.block_size,
    }
    free = free_memory(device)
    require_memory(f"the model {model_name(directory)}", weights, free, path.advice)
    # By the engine's own rule.
    blocks = choose_num_blocks(layout, options, device, shape.context, available=free - weights)
    found |= {"free_memory": free, "kv_blocks": blocks - 1, "kv_tokens": (blocks - 1) * layout.block_size}


def _dense_shape(config: DenseConfig, options: EngineConfig) -> _Shape:
    return _Shape(dense_geometry(config), measured=True, context=choose_context(config, options.max_model_len))


def _universal_shape(
    directory: Path, files: WeightFiles, path: CodePath, options: EngineConfig, found: dict[str, Any]
) -> tuple[CodePath, _Shape]:
    # Importing transformers takes seconds, which the other paths do not need.
    from chatpaged.engine.model_executor.models.hf import (  # noqa: PLC0415
        HFModel,
        find_quantizer,
        load_checked_config,
        named_context,
        silence_transformers,
    )
    from chatpaged.engine.model_executor.models.meta_model import build_without_weights, check_fit, needed_bytes  # noqa: PLC0415
    from chatpaged.engine.model_executor.models.remote_code import needs_remote_code, remote_model_class  # noqa: PLC0415
    from chatpaged.engine.model_executor.models.support import text_config  # noqa: PLC0415

    silence_transformers()
    remote = needs_remote_code(directory, trusted=options.trust_remote_code)
    config = load_checked_config(directory, files, remote=remote)
    quantizer = find_quantizer(directory, config, choose_device(options.device), path.dtype)
    path = quantized_path(path, quantizer, options)
    model = build_without_weights(config, remote_model_class(config, directory) if remote else None, directory)
    check_fit(model, directory, files)
    if quantizer is not None:
        widened = needed_bytes(model, path.dtype) if quantizer.widens else path.weight_bytes(files)
        found |= {"dtype": dtype_name(path.dtype), "weights": path.code("").weights, "weight_bytes": widened}
    context = options.max_model_len or named_context(config) or 1
    name = type(model).__name__
    found["model_class"] = name
    found["code_path"] = f"{name} of {'the model itself' if remote else 'transformers'}, through AttentionInterface"
    try:
        with torch.inference_mode():
            return path, _Shape(HFModel(model, context).geometry(), measured=True, context=context)
    except ChatpagedError:
        raise
    except Exception:  # noqa: BLE001 - some layers look at values, which a model without weights has not
        text = text_config(config)
        heads = text.num_attention_heads
        dim = getattr(text, "head_dim", None) or text.hidden_size // heads
        softcap = getattr(text, "attn_logit_softcapping", None) is not None
        geometry = KVGeometry(text.num_hidden_layers, getattr(text, "num_key_value_heads", None) or heads, dim, softcap=softcap)
        return path, _Shape(geometry, measured=False, context=context)


def main() -> None:
    """Describes the model that the command line names."""
    options = EngineConfig(**json.loads(sys.argv[2])) if len(sys.argv) > 2 else EngineConfig()
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print
        found = describe(Path(sys.argv[1]), options)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
