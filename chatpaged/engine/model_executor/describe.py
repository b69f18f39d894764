"""`python -m chatpaged.engine.model_executor.describe DIRECTORY [OPTIONS as JSON]`: how a model would run here, as JSON.

The model is built without its weights, by the same code that would run it; so what is refused here is what would be refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.kv_cache import KVLayout, choose_num_blocks
from chatpaged.engine.model_executor.memory import free_memory, require_memory
from chatpaged.engine.model_executor.model_runner import choose_device
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.hf import HFModel, load_checked_config, named_context, silence_transformers
from chatpaged.engine.model_executor.models.meta_model import build_without_weights, check_fit
from chatpaged.engine.model_executor.models.remote_code import needs_remote_code, remote_model_class
from chatpaged.engine.model_executor.models.support import text_config
from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.weight_files import WeightFiles, check_directory, model_name
from chatpaged.errors import ChatpagedError


def describe(directory: Path, options: EngineConfig) -> dict[str, Any]:
    """What `chatpaged models show` tells about running a model.

    Args:
        directory: the model.
        options: as the engine would get them.

    Returns:
        Plain values by name; with `supported` false there is a `reason`, and what could not be found out is missing.
    """
    silence_transformers()
    found: dict[str, Any] = {"supported": True}
    try:
        _describe(directory, options, found)
    except ChatpagedError as error:
        found |= {"supported": False, "reason": str(error)}
    return found


def _describe(directory: Path, options: EngineConfig, found: dict[str, Any]) -> None:
    files = check_directory(directory)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device, stored_dtype(files.stored_type))
    found |= {"device": device.type, "dtype": str(dtype).removeprefix("torch."), "weight_bytes": files.num_parameters * dtype.itemsize}
    remote = needs_remote_code(directory, trusted=options.trust_remote_code)
    config = load_checked_config(directory, files, remote=remote)
    model = build_without_weights(config, remote_model_class(config, directory) if remote else None, directory)
    check_fit(model, directory, files)
    text = text_config(config)
    context = options.max_model_len or named_context(config) or 1
    found |= {
        "model_class": type(model).__name__,
        "code_path": f"{type(model).__name__} of {'the model itself' if remote else 'transformers'}, through AttentionInterface",
        "attention": TorchPagedAttention.__module__.rpartition(".")[2],
        "attention_reason": "the backend for every device; there is no faster one yet",
    }
    geometry, measured = _geometry(HFModel(model, context), text)
    layout = KVLayout(
        num_layers=geometry.num_layers,
        block_size=options.block_size,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        dtype=dtype,
    )
    found |= {
        "kv_layers": geometry.num_layers,
        "kv_heads": geometry.kv_heads,
        "kv_head_dim": geometry.head_dim,
        "kv_measured": measured,
        "block_size": layout.block_size,
        "kv_bytes_per_block": layout.block_bytes,
        "kv_bytes_per_token": layout.block_bytes // layout.block_size,
    }
    found |= _room(directory, files, layout, options, device, context)


def _geometry(model: HFModel, text: Any) -> tuple[KVGeometry, bool]:
    """What each layer stores, and whether that was learnt by running a token."""
    try:
        with torch.inference_mode():
            return model.geometry(), True
    except ChatpagedError:
        raise
    except Exception:  # noqa: BLE001 - some layers look at values, which a model without weights has not
        heads = text.num_attention_heads
        dim = getattr(text, "head_dim", None) or text.hidden_size // heads
        return KVGeometry(text.num_hidden_layers, getattr(text, "num_key_value_heads", None) or heads, dim), False


def _room(
    directory: Path, files: WeightFiles, layout: KVLayout, options: EngineConfig, device: torch.device, context: int
) -> dict[str, Any]:
    """How many blocks and tokens the pool would have here, by the engine's own rule."""
    free = free_memory(device)
    weights = files.num_parameters * layout.dtype.itemsize
    require_memory(f"the model {model_name(directory)}", weights, free, "use a smaller model or another --dtype")
    blocks = choose_num_blocks(layout, options, device, context, available=free - weights)
    return {"free_memory": free, "kv_blocks": blocks - 1, "kv_tokens": (blocks - 1) * layout.block_size}


def main() -> None:
    """Describes the model that the command line names."""
    options = EngineConfig(**json.loads(sys.argv[2])) if len(sys.argv) > 2 else EngineConfig()
    sys.stdout.write(json.dumps(describe(Path(sys.argv[1]), options)))


if __name__ == "__main__":
    main()
