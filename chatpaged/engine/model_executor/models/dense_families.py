"""The architectures that the dense decoder knows: how each differs from the others, and what it takes where config.json is silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
        model_type: what its configuration calls itself.
        defaults: of transformers' configuration class, for keys that are missing.
        null_head_dim: `head_dim` may be null: it follows from the width and the heads then.
        whole_heads: the class refuses a width that is no multiple of the heads, even if `head_dim` is given.
        windows: which layers have one: "none", "all" or those of a type ("types").
        rope: in which form rotary embeddings are described: "flat", "phi3", "nested" (one for each type of layer).
        qk_norm: see `DenseConfig`.
        pre_norms: see `DenseConfig`.
        post_norms: see `DenseConfig`.
        fused: q, k and v lie in one tensor, gate and up too.
        gemma: norm weights are stored as differences from one, and the embedding is scaled.
        wide_products: products with norm weights and rotations are rounded only after they have been summed up (OLMo 2).
        qkv_bias: whether there is one; None is what `attention_bias` says.
        o_bias: the same of the output projection.
        mlp_bias: the same; None is what `mlp_bias` says.
    """

    model_type: str
    defaults: Mapping[str, Any]
    null_head_dim: bool = False
    whole_heads: bool = False
    windows: str = "none"
    rope: str = "flat"
    qk_norm: str = "none"
    pre_norms: bool = True
    post_norms: bool = False
    fused: bool = False
    gemma: bool = False
    wide_products: bool = False
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = False


_COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA: Mapping[str, Any] = {
    **_COMMON,
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
}
_QWEN: Mapping[str, Any] = {
    **_COMMON,
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA: Mapping[str, Any] = {
    **_COMMON,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "eos_token_id": 1,
}

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(model_type="llama", defaults=_LLAMA, null_head_dim=True, whole_heads=True, mlp_bias=None),
    "MistralForCausalLM": Family(
        model_type="mistral",
        defaults={
            **_LLAMA,
            "intermediate_size": 14_336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
        },
        null_head_dim=True,
        windows="all",
        qkv_bias=False,
        o_bias=False,
    ),
    "Qwen2ForCausalLM": Family(model_type="qwen2", defaults=_QWEN, windows="types", qkv_bias=True, o_bias=False),
    "Qwen3ForCausalLM": Family(model_type="qwen3", defaults={**_QWEN, "head_dim": 128}, windows="types", qk_norm="head"),
    "Gemma2ForCausalLM": Family(
        model_type="gemma2",
        defaults={
            **_GEMMA,
            "vocab_size": 256_000,
            "max_position_embeddings": 8192,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
        whole_heads=True,
        windows="types",
        post_norms=True,
        gemma=True,
    ),
    "Gemma3ForCausalLM": Family(
        model_type="gemma3_text",
        defaults={
            **_GEMMA,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window_pattern": 6,
        },
        whole_heads=True,
        windows="types",
        rope="nested",
        qk_norm="head",
        post_norms=True,
        gemma=True,
    ),
    "Phi3ForCausalLM": Family(
        model_type="phi3",
        defaults={
            **_COMMON,
            "vocab_size": 32_064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "eos_token_id": 32_000,
        },
        windows="all",
        rope="phi3",
        fused=True,
        qkv_bias=False,
        o_bias=False,
    ),
    "GraniteForCausalLM": Family(
        model_type="granite",
        defaults={
            **_LLAMA,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        },
        mlp_bias=None,
    ),
    "Olmo2ForCausalLM": Family(
        model_type="olmo2",
        defaults={**_LLAMA, "vocab_size": 50_304, "rms_norm_eps": 1e-5, "eos_token_id": 50_279},
        qk_norm="full",
        pre_norms=False,
        post_norms=True,
        wide_products=True,
    ),
    "SmolLM3ForCausalLM": Family(
        model_type="smollm3",
        defaults={
            **_COMMON,
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 11_008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
            "rope_theta": 2_000_000.0,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "eos_token_id": 128_001,
        },
        windows="types",
        mlp_bias=None,
    ),
}
