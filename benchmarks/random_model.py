"""A model with random weights in the shape of a larger one, to measure speed without a download.

python -m benchmarks.random_model OUT [--hidden 2048] [--layers 16] [--heads 32] [--kv-heads 8] [--intermediate 8192] [--dtype bfloat16]

Memory never holds more than one shard. The defaults are about 1.1 billion parameters. Tokenizer and chat template are the starter model's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from chatpaged.model_files import resolve_model

_COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_DEVIATION = 0.02
Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: dict[str, Any]) -> Shapes:
    """Tensors of one layer of a Llama or a Qwen3."""
    hidden, intermediate, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    norms = {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)} if config["model_type"] == "qwen3" else {}
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **norms,
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }


def other_shapes(config: dict[str, Any]) -> Shapes:
    """Tensors outside the layers."""
    table = (config["vocab_size"], config["hidden_size"])
    head = {} if config["tie_word_embeddings"] else {"lm_head.weight": table}
    return {"model.embed_tokens.weight": table, "model.norm.weight": (config["hidden_size"],), **head}


def write_model(out: Path, config: dict[str, Any], *, device: str = "cpu", seconds: float | None = None) -> dict[str, Any]:
    """Writes weights and configuration.

    Args:
        out: a directory, which is there.
        config: `config.json`; its dtype is that of the weights.
        device: where random numbers are drawn: a GPU takes milliseconds for what takes a CPU seconds.
        seconds: after so long no layer is begun any more, nor where the disk has no room for two; at least two are written.

    Returns:
        The configuration, with the number of layers that there are.
    """
    begin = time.monotonic()
    dtype = getattr(torch, config["dtype"])
    generator = torch.Generator(device).manual_seed(0)
    places: dict[str, str] = {}

    def write(shapes: Shapes) -> None:
        file = f"model-{len(set(places.values())) + 1:05}.safetensors"
        tensors = {name: _tensor(shape, dtype, device, generator) for name, shape in shapes.items()}
        save_file(tensors, out / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shapes, file))

    write(other_shapes(config))
    shapes = layer_shapes(config)
    layer_bytes = sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
    layers = 0
    while layers < config["num_hidden_layers"]:
        late = seconds is not None and (time.monotonic() - begin > seconds or shutil.disk_usage(out).free < 2 * layer_bytes)
        if late and layers >= 2:
            break
        write({f"model.layers.{layers}.{name}": shape for name, shape in shapes.items()})
        layers += 1
    config = config | {"num_hidden_layers": layers}
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return config


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=dtype)
    return torch.empty(shape, dtype=dtype, device=device).normal_(0, _DEVIATION, generator=generator).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, value in (("hidden", 2048), ("layers", 16), ("heads", 32), ("kv-heads", 8), ("intermediate", 8192)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="bfloat16")
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    starter = resolve_model(None, print)
    for file in _COPIED:
        shutil.copy(starter / file, args.out)
    config = json.loads((starter / "config.json").read_text(encoding="utf-8"))
    config |= {
        "hidden_size": args.hidden,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "head_dim": args.hidden // args.heads,
        "intermediate_size": args.intermediate,
        "dtype": args.dtype,
    }
    write_model(args.out, config)


if __name__ == "__main__":
    main()
