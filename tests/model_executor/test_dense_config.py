"""Configurations: what is understood agrees with transformers' own classes, everything else has a reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from chatpaged.engine.model_executor.models.dense_config import NO_ROPE, default_end_token, dense_config
from chatpaged.engine.model_executor.models.dense_families import FAMILIES
from tests.model_executor.dense_cases import understood

Settings = dict[str, Any]
SIZES: Settings = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6}
FACTORS: Settings = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
PHI3: Settings = SIZES | {"max_position_embeddings": 131072, "rope_theta": 10000.0}


def named(architecture: str, settings: Settings) -> Settings:
    """Settings of an architecture of the list, with the names that belong to it."""
    return settings | {"architectures": [architecture], "model_type": FAMILIES[architecture].model_type}


def as_transformers_reads(architecture: str, settings: Settings) -> Settings:
    """The same as transformers understands and writes it: in the present form, with all defaults."""
    config_class: Any = CONFIG_MAPPING[FAMILIES[architecture].model_type]
    return named(architecture, config_class(**{name: value for name, value in settings.items() if name != "model_type"}).to_dict())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_missing_keys_mean_what_they_mean_to_transformers(architecture: str) -> None:
    bare, full = named(architecture, {}), as_transformers_reads(architecture, {})
    assert understood(bare) == understood(full)
    assert default_end_token(bare) == full["eos_token_id"]
    assert default_end_token(full) is None


def test_an_end_token_that_is_given_is_not_a_default() -> None:
    assert default_end_token(named("LlamaForCausalLM", {"eos_token_id": None})) is None
    assert default_end_token({"architectures": ["GPT2LMHeadModel"]}) is None


OLDER: dict[str, tuple[str, Settings]] = {
    "Llama 2": ("LlamaForCausalLM", {"rms_norm_eps": 1e-5, "rope_scaling": None, "pretraining_tp": 1}),
    "Llama 3.1": (
        "LlamaForCausalLM",
        SIZES
        | {"rope_theta": 500000.0, "max_position_embeddings": 131072, "eos_token_id": [128001, 128008]}
        | {
            "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
            | {"rope_type": "llama3"}
        },
    ),
    "linear": ("LlamaForCausalLM", SIZES | {"rope_scaling": {"type": "linear", "factor": 4}}),
    "no groups": ("LlamaForCausalLM", SIZES | {"num_key_value_heads": None, "head_dim": None}),
    "SmolLM 2": (
        "LlamaForCausalLM",
        SIZES | {"is_llama_config": True, "rope_interleaved": False, "rope_theta": 100000, "tie_word_embeddings": True},
    ),
    "Mistral 7B": ("MistralForCausalLM", SIZES | {"sliding_window": 4096, "rope_theta": 10000.0}),
    "Mistral Nemo": ("MistralForCausalLM", SIZES | {"head_dim": 128, "sliding_window": None}),
    "Qwen 2.5": (
        "Qwen2ForCausalLM",
        SIZES | {"rope_theta": 1e6, "use_sliding_window": False, "max_window_layers": 21, "sliding_window": 32768},
    ),
    "Qwen 2.5, yarn": (
        "Qwen2ForCausalLM",
        SIZES | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}},
    ),
    "Qwen 2, last layers": ("Qwen2ForCausalLM", SIZES | {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 4}),
    "Qwen 3": ("Qwen3ForCausalLM", SIZES | {"head_dim": 128, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None}),
    "Gemma 2": ("Gemma2ForCausalLM", SIZES | {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}),
    "Gemma 3 1B": (
        "Gemma3ForCausalLM",
        SIZES
        | {"rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None, "sliding_window_pattern": 3, "sliding_window": 512}
        | {"num_hidden_layers": 7},
    ),
    "Gemma 3, stretched": ("Gemma3ForCausalLM", SIZES | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "Phi 3 4k": ("Phi3ForCausalLM", SIZES | {"sliding_window": 2047, "rope_scaling": None, "attention_bias": False}),
    "Phi 3 128k": ("Phi3ForCausalLM", PHI3 | {"rope_scaling": FACTORS | {"type": "longrope"}}),
    "Phi 3 128k, su": ("Phi3ForCausalLM", PHI3 | {"rope_scaling": FACTORS | {"type": "su", "original_max_position_embeddings": 4096}}),
    "Phi 3 128k, yarn": ("Phi3ForCausalLM", PHI3 | {"rope_scaling": FACTORS | {"type": "yarn"}}),
    "Phi 4 mini": (
        "Phi3ForCausalLM",
        PHI3
        | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}
        | {"rope_scaling": {"short_factor": [1.0] * 24, "long_factor": [2.0] * 24, "type": "longrope"}},
    ),
    "Granite 3": (
        "GraniteForCausalLM",
        SIZES | {"attention_multiplier": 0.0078125, "embedding_multiplier": 12.0, "logits_scaling": 16.0, "residual_multiplier": 0.22},
    ),
    "OLMo 2": ("Olmo2ForCausalLM", SIZES | {"rope_theta": 500000, "rope_scaling": None, "rms_norm_eps": 1e-06}),
    "SmolLM 3": ("SmolLM3ForCausalLM", SIZES | {"no_rope_layers": [1, 1, 1, 0, 1, 1], "rope_theta": 5000000.0, "sliding_window": None}),
    "SmolLM 3, windows": ("SmolLM3ForCausalLM", SIZES | {"no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 64}),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_forms_mean_what_they_mean_to_transformers(name: str) -> None:
    architecture, settings = OLDER[name]
    assert understood(named(architecture, settings)) == understood(as_transformers_reads(architecture, settings))


def test_layers_differ_as_the_configuration_says() -> None:
    gemma = understood(named("Gemma3ForCausalLM", OLDER["Gemma 3 1B"][1]))
    assert gemma.windows == (512, 512, None, 512, 512, None, 512)
    assert gemma.ropes == (1, 1, 0, 1, 1, 0, 1)
    assert [rope.theta for rope in gemma.rope_parameters] == [1000000, 10000]
    smol = understood(named("SmolLM3ForCausalLM", OLDER["SmolLM 3, windows"][1]))
    assert smol.windows == (None, None, 64, None, None, 64)
    assert smol.ropes == (0, 0, NO_ROPE, 0, 0, NO_ROPE)
    assert understood(named("Qwen2ForCausalLM", OLDER["Qwen 2, last layers"][1])).windows == (None, None, None, None, 128, 128)


SLIDING = ["sliding_attention"] * 6
REASONS: list[tuple[str, Settings, str]] = [
    ("LlamaForCausalLM", {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is none of the dense decoder's"),
    ("LlamaForCausalLM", {"architectures": ["LlamaForCausalLM", "LlamaModel"]}, "the architecture is none of the dense decoder's"),
    ("LlamaForCausalLM", {"architectures": None}, "the architecture is none of the dense decoder's"),
    ("LlamaForCausalLM", {"architectures": [["LlamaForCausalLM"]]}, "the architecture is none of the dense decoder's"),
    ("LlamaForCausalLM", {"model_type": "mistral"}, "model_type is 'mistral', not llama"),
    ("Gemma3ForCausalLM", {"model_type": "gemma3"}, "model_type is 'gemma3', not gemma3_text"),
    ("LlamaForCausalLM", {"quantization_config": {"bits": 4}}, r"quantization_config is \{'bits': 4\}"),
    ("LlamaForCausalLM", {"is_encoder_decoder": True}, "is_encoder_decoder is True"),
    ("LlamaForCausalLM", {"is_causal": False}, "is_causal is False"),
    ("LlamaForCausalLM", {"attention_chunk_size": 8192}, "attention_chunk_size is 8192"),
    ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("Gemma2ForCausalLM", {"use_bidirectional_attention": "vision"}, "use_bidirectional_attention is 'vision'"),
    ("LlamaForCausalLM", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ("LlamaForCausalLM", {"hidden_act": ["silu"]}, r"hidden_act is \['silu'\]"),
    ("Gemma2ForCausalLM", {"hidden_activation": None}, "hidden_activation is None"),
    ("Gemma2ForCausalLM", {"hidden_activation": "gelu_new"}, "hidden_activation is 'gelu_new'"),
    ("LlamaForCausalLM", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ("LlamaForCausalLM", {"hidden_size": "256"}, "hidden_size is '256'"),
    ("LlamaForCausalLM", {"vocab_size": True}, "vocab_size is True"),
    ("LlamaForCausalLM", {"intermediate_size": [512] * 60}, r"intermediate_size is \[512, .*\.\.\.$"),
    ("LlamaForCausalLM", {"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
    ("LlamaForCausalLM", {"max_position_embeddings": None}, "max_position_embeddings is None"),
    ("LlamaForCausalLM", {"attention_bias": "yes"}, "attention_bias is 'yes'"),
    ("LlamaForCausalLM", {"num_key_value_heads": 3}, "do not go together"),
    ("LlamaForCausalLM", {"num_attention_heads": 12, "head_dim": 32}, "do not go together"),
    ("Qwen2ForCausalLM", {"num_attention_heads": 12, "num_key_value_heads": 12}, "do not go together"),
    ("Qwen3ForCausalLM", {"head_dim": None}, "head_dim is None"),
    ("LlamaForCausalLM", {"head_dim": 15}, "15 of 15 dimensions"),
    ("LlamaForCausalLM", {"layer_types": SLIDING}, "layer_types is"),
    ("LlamaForCausalLM", {"sliding_window": 128}, "sliding_window is 128"),
    ("LlamaForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("MistralForCausalLM", {"layer_types": ["full_attention"] * 6}, "layer_types is"),
    ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window is 0"),
    ("Qwen2ForCausalLM", {"layer_types": SLIDING}, "use_sliding_window is false"),
    ("Qwen2ForCausalLM", {"layer_types": SLIDING, "use_sliding_window": True, "sliding_window": None}, "sliding_window is None"),
    ("Qwen2ForCausalLM", {"layer_types": ["full_attention"] * 5}, "layer_types is"),
    ("Qwen2ForCausalLM", {"layer_types": [{}] * 6}, "layer_types is"),
    ("Qwen2ForCausalLM", {"layer_types": ["chunked_attention"] * 6}, "layer_types is"),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": None}, "max_window_layers is None"),
    ("Gemma2ForCausalLM", {"sliding_window": None}, "sliding_window is None"),
    ("Gemma3ForCausalLM", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, r"no_rope_layers is \[1\]"),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 2, 1, 1, 1, 1]}, "no_rope_layers is"),
    ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e4}}, "both there"),
    ("LlamaForCausalLM", {"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
    ("LlamaForCausalLM", {"rope_parameters": [1]}, r"rope_parameters is \[1\]"),
    ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    (
        "LlamaForCausalLM",
        {"rope_scaling": {"type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 1024},
        "original_max_position_embeddings is 1024",
    ),
    ("Gemma3ForCausalLM", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters is"),
    ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": [1]}}, "rope_parameters is"),
    ("Gemma3ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_type is 'default'"),
    ("Gemma3ForCausalLM", {"rope_scaling": {"factor": 8.0}, "rope_parameters": {}}, "rope_scaling is"),
    ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor is 0.5"),
    (
        "Gemma3ForCausalLM",
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}},
        "full_attention.truncate is False",
    ),
    ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling is 0"),
]


@pytest.mark.parametrize(("architecture", "settings", "reason"), REASONS)
def test_what_is_not_understood_has_a_reason(architecture: str, settings: Settings, reason: str) -> None:
    usual = named(architecture, SIZES)
    understood(usual)
    found = dense_config(usual | settings)
    assert isinstance(found, str)
    assert re.search(reason, found) is not None, found
