"""Tiny models that the dense decoder runs: every family, every option that it knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chatpaged.engine.model_executor.models.dense_config import DenseConfig, dense_config
from tests.model_executor.logits import save

Options = dict[str, Any]

TRAINED = 40
"""Context before longrope stretched it: longer than the sequences that are run, shorter than the models' context."""

THETA: Options = {"rope_theta": 10000.0}
LINEAR: Options = THETA | {"rope_type": "linear", "factor": 4.0}
LLAMA3: Options = (
    THETA
    | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 32}
)
YARN: Options = THETA | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
YARN_WITH_ALL: Options = YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False}
LONGROPE: Options = THETA | {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
SHORT_LONGROPE: Options = LONGROPE | {"short_factor": [1.0, 1.1], "long_factor": [2.0, 3.0]}
_BIASES: Options = {"attention_bias": True, "mlp_bias": True}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MIXED: Options = {"num_hidden_layers": 3, "layer_types": [_SLIDING, _FULL, _SLIDING]}
_GRANITE: Options = {"embedding_multiplier": 3.0, "logits_scaling": 2.5, "residual_multiplier": 0.22, "attention_multiplier": 0.1}

CASES: dict[str, tuple[str, Options]] = {
    "llama": ("llama", {}),
    "llama-biases-tied": ("llama", _BIASES | {"tie_word_embeddings": True}),
    "llama-head_dim-6": ("llama", {"head_dim": 6, "num_key_value_heads": 1}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 4, "hidden_act": "gelu_pytorch_tanh"}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN_WITH_ALL}),
    "llama-longrope": ("llama", {"rope_parameters": LONGROPE | {"factor": 4.0, "original_max_position_embeddings": TRAINED}}),
    "mistral": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None, "head_dim": 10}),
    "qwen2": ("qwen2", _MIXED | {"use_sliding_window": True, "tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN, "num_key_value_heads": 4}),
    "qwen2-last-layers": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", _MIXED | {"use_sliding_window": True}),
    "qwen3-biases": ("qwen3", {"attention_bias": True, "head_dim": 14, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", _MIXED | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}),
    "gemma2-untied": ("gemma2", {"tie_word_embeddings": False, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2-biases": ("gemma2", {"attention_bias": True, "query_pre_attn_scalar": 5, "head_dim": 12}),
    "gemma3": ("gemma3_text", _MIXED),
    "gemma3-linear": (
        "gemma3_text",
        _MIXED | {"rope_parameters": {_FULL: LINEAR, _SLIDING: THETA}, "final_logit_softcapping": 1.5, "tie_word_embeddings": False},
    ),
    "phi3": ("phi3", {}),
    "phi3-partial": ("phi3", {"sliding_window": None, "rope_parameters": THETA | {"partial_rotary_factor": 0.5}}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": TRAINED}),
    "phi3-longrope-partial": (
        "phi3",
        {
            "rope_parameters": SHORT_LONGROPE | {"partial_rotary_factor": 0.5},
            "original_max_position_embeddings": TRAINED,
            "tie_word_embeddings": True,
        },
    ),
    "granite": ("granite", _GRANITE),
    "granite-biases": ("granite", _GRANITE | _BIASES | {"tie_word_embeddings": True}),
    "olmo2": ("olmo2", {}),
    "olmo2-biases": ("olmo2", {"attention_bias": True, "num_key_value_heads": 4, "rope_parameters": YARN}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "smollm3-biases": (
        "smollm3",
        _MIXED | _BIASES | {"use_sliding_window": True, "no_rope_layers": [0, 1, 1], "tie_word_embeddings": False},
    ),
}
"""By name: the model type, and what its configuration needs beyond the usual sizes."""
FAMILY_CASES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "olmo2", "smollm3")
"""One of each family."""


def save_case(name: str, directory: Path) -> Path:
    """Writes the tiny model of a case."""
    model_type, options = CASES[name]
    return save(model_type, options, directory / name)


def read_config(directory: Path) -> dict[str, Any]:
    """The contents of a model's config.json."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return config


def understood(config: dict[str, Any]) -> DenseConfig:
    """A configuration that has to be understood."""
    found = dense_config(config)
    assert isinstance(found, DenseConfig), found
    assert found.context == config.get("max_position_embeddings", found.context)
    return found
