"""The two models that speed is measured with: shapes of published ones, random weights, a tokenizer that needs no download."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import Report

_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.02,
    "use_cache": True,
    "dtype": "bfloat16",
}
QWEN3: dict[str, Any] = _COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
LLAMA3: dict[str, Any] = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "tie_word_embeddings": False,
}
_TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "dtype": "float32",
}
NAMES = {"qwen3": "Qwen3-0.6B", "llama3": "Llama-3-8B"}
_SHAPES = {"qwen3": QWEN3, "llama3": LLAMA3}


def shape(name: str, *, smoke: bool) -> dict[str, Any]:
    """The `config.json` of one of the two; in a smoke test a tiny one of the same family."""
    return _SHAPES[name] | (_TINY if smoke else {})


def model_directory(report: Report, name: str) -> Path:
    """Where a model lies; it is written if it does not."""
    directory = report.settings.directory / name
    if not (directory / "config.json").is_file():
        write_one(report, name, report.settings.seconds_left / 2)
    return directory


def about(directory: Path, name: str) -> str:
    """What a model is, in a few words; fewer layers than the published model has are told."""
    config, wanted = json.loads((directory / "config.json").read_text(encoding="utf-8")), _SHAPES[name]
    if config["hidden_size"] != wanted["hidden_size"]:
        return f"tiny {wanted['model_type']}"
    layers = config["num_hidden_layers"]
    return NAMES[name] if layers == wanted["num_hidden_layers"] else f"{NAMES[name]} with {layers} of {wanted['num_hidden_layers']} layers"


def write(report: Report) -> None:
    """The part of this module: writes both, the small one first, so that the other one has the time that is left."""
    for name, title in NAMES.items():
        with report.attempt(title):
            if (report.settings.directory / name / "config.json").is_file():
                report.leave_out(title, "it lies there already")
            else:
                write_one(report, name, report.settings.seconds_left)


def write_one(report: Report, name: str, seconds: float) -> None:
    """Writes one of them, and tells how fast that went. Of a large one there are as many layers as there is time for."""
    from benchmarks.random_model import write_model

    begin = time.monotonic()
    directory = report.settings.directory / name
    directory.mkdir(parents=True)
    config = shape(name, smoke=report.settings.smoke)
    write_tokenizer(directory, config["vocab_size"])
    write_model(directory, config, device=report.settings.device, seconds=seconds)
    size = sum(path.stat().st_size for path in directory.glob("*.safetensors")) / 1e9
    report.add(f"{about(directory, name)}: {size:.2f} GB written", size / (time.monotonic() - begin), "GB/s")


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A byte-level tokenizer whose vocabulary has that size: words beyond the bytes are made up, and no text becomes one of them."""
    from tests.model_executor.tiny_models import build_tokenizer

    tokenizer = json.loads(build_tokenizer().to_str())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"Ġw{number}": number for number in range(len(vocabulary), vocab_size)}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text("{}", encoding="utf-8")
