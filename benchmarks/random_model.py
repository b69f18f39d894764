"""A model with random weights in the shape of a larger one, to measure speed without a download.

python -m benchmarks.random_model OUT [--hidden 2048] [--layers 16] [--heads 32] [--kv-heads 8] [--intermediate 8192] [--dtype bfloat16]

Memory never holds more than one shard. The defaults are about 1.1 billion parameters. Tokenizer and chat template are the starter model's.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from chatpaged.model_files import resolve_model

_COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_DEVIATION = 0.02


def layer_shapes(hidden: int, heads: int, kv_heads: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer of a Llama."""
    dim = hidden // heads
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.k_proj.weight": (kv_heads * dim, hidden),
        "self_attn.v_proj.weight": (kv_heads * dim, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }


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
    (args.out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    dtype = getattr(torch, args.dtype)
    torch.manual_seed(0)
    shapes = layer_shapes(args.hidden, args.heads, args.kv_heads, args.intermediate)
    shards: list[dict[str, tuple[int, ...]]] = [
        {"model.embed_tokens.weight": (config["vocab_size"], args.hidden), "model.norm.weight": (args.hidden,)},
        *({f"model.layers.{i}.{name}": shape for name, shape in shapes.items()} for i in range(args.layers)),
    ]
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {
            name: torch.ones(shape, dtype=dtype) if len(shape) == 1 else (torch.randn(shape) * _DEVIATION).to(dtype)
            for name, shape in shard.items()
        }
        save_file(tensors, args.out / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    (args.out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")


if __name__ == "__main__":
    main()
