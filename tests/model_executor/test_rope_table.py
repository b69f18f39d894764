"""Rotary tables equal what transformers computes, bit by bit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

from chatpaged.engine.model_executor.models.dense_config import dense_config
from chatpaged.engine.model_executor.models.rope_table import rope_table, rotate
from tests.model_executor.dense_cases import LINEAR, LLAMA3, SHORT_LONGROPE, THETA, YARN, YARN_WITH_ALL, understood

hf: Any = transformers

LENGTHS = (1, 40, 41, 777)
FULL: dict[str, Any] = {"short_factor": [1.0 + i / 10 for i in range(32)], "long_factor": [1.5 + i for i in range(32)]}
LONG: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10000, **FULL}
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("Llama", {}),
    "default, another base": ("Llama", {"rope_theta": 500000}),
    "linear": ("Llama", LINEAR),
    "llama3": ("Llama", LLAMA3),
    "llama3 in Llama 3.1": ("Llama", LLAMA3 | {"rope_theta": 500000.0, "original_max_position_embeddings": 8192}),
    "yarn": ("Llama", YARN),
    "yarn with everything": ("Llama", YARN_WITH_ALL),
    "yarn with its factor": ("Llama", YARN | {"attention_factor": 0.5}),
    "yarn in Qwen": ("Qwen3", YARN | {"rope_theta": 1000000.0, "original_max_position_embeddings": 32768}),
    "yarn that stretches nothing": ("Llama", YARN | {"factor": 1.0, "original_max_position_embeddings": 1}),
    "longrope": ("Llama", LONG | {"factor": 32.0, "original_max_position_embeddings": 40}),
    "longrope with its factor": ("Llama", LONG | {"factor": 32.0, "attention_factor": 1.25, "original_max_position_embeddings": 40}),
    "longrope that stretches nothing": ("Llama", LONG | {"factor": 1, "original_max_position_embeddings": 40}),
    "longrope in Phi 3": ("Phi3", LONG),
    "partial longrope": ("Phi3", LONG | {name: values[:24] for name, values in FULL.items()} | {"partial_rotary_factor": 0.75}),
    "partial default": ("Phi3", THETA | {"partial_rotary_factor": 0.75}),
}


def settings(family: str, rope: dict[str, Any]) -> dict[str, Any]:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 1024}
    more = {"original_max_position_embeddings": 40} if family == "Phi3" else {}
    return sizes | more | {"rope_parameters": THETA | rope}


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_transformers(kind: str, length: int) -> None:
    family, rope = ROPES[kind]
    config = getattr(hf, f"{family}Config")(**settings(family, rope))
    module: Any = getattr(transformers.models, family.lower())
    stock = getattr(getattr(module, f"modeling_{family.lower()}"), f"{family}RotaryEmbedding")(config)
    ours = understood(config.to_dict() | {"architectures": [f"{family}ForCausalLM"]})
    table = rope_table(ours.rope_parameters[0], ours.rotary_dim, length)
    for half, whole in zip((table.cos, table.sin), stock(torch.zeros(1), torch.arange(length).unsqueeze(0)), strict=True):
        assert half.shape == (length, ours.rotary_dim // 2)
        assert torch.equal(torch.cat((half, half), dim=-1), whole[0])


@pytest.mark.parametrize("dim", [2, 6, 10, 80, 96, 128, 256])
def test_equals_transformers_for_heads_of_any_size(dim: int) -> None:
    config = hf.LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, max_position_embeddings=128, rope_parameters=YARN)
    stock = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    ours = understood(config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    table = rope_table(ours.rope_parameters[0], dim, 128)
    cos, _ = stock(torch.zeros(1), torch.arange(128).unsqueeze(0))
    assert torch.equal(table.cos, cos[0, :, : dim // 2])


def test_layer_types_of_gemma3_have_their_own() -> None:
    rope = {"full_attention": LINEAR | {"rope_theta": 1000000.0}, "sliding_attention": THETA | {"rope_type": "default"}}
    config = hf.Gemma3TextConfig(num_hidden_layers=7, head_dim=64, rope_parameters=rope)
    stock = transformers.models.gemma3.modeling_gemma3.Gemma3RotaryEmbedding(config)
    ours = understood(config.to_dict() | {"architectures": ["Gemma3ForCausalLM"]})
    for layer_type, index in zip(config.layer_types, ours.ropes, strict=True):
        cos, _ = stock(torch.zeros(1), torch.arange(50).unsqueeze(0), layer_type)
        assert torch.equal(rope_table(ours.rope_parameters[index], 64, 50).cos, cos[0, :, :32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_turns_as_transformers_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(5, 3, 16, generator=generator).to(dtype)
    cos, sin = (torch.randn(5, 4, generator=generator).to(dtype) for _ in range(2))
    modeling: Any = transformers.models.phi3.modeling_phi3
    whole = [torch.cat((half, half), dim=-1).unsqueeze(0) for half in (cos, sin)]
    queries = heads.transpose(0, 1).unsqueeze(0)
    expected, _ = modeling.apply_rotary_pos_emb(queries, queries, *whole)
    turned = rotate(heads, cos.unsqueeze(1), sin.unsqueeze(1))
    assert torch.equal(turned, expected[0].transpose(0, 1))
    assert torch.equal(turned[..., 8:], heads[..., 8:])


def test_wider_tables_are_rounded_at_the_end() -> None:
    heads = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    cos, sin = torch.full((5, 1, 8), 0.3), torch.full((5, 1, 8), 0.7)
    turned = rotate(heads, cos, sin)
    assert torch.equal(turned, rotate(heads.float(), cos, sin).to(torch.bfloat16))
    assert not torch.equal(turned, rotate(heads, cos.to(torch.bfloat16), sin.to(torch.bfloat16)))


@pytest.mark.parametrize(
    ("family", "rope", "reason"),
    [
        ("Llama", {"rope_type": "dynamic", "factor": 2.0}, "rope_type is 'dynamic'"),
        ("Llama", {"rope_type": None}, "rope_type is None"),
        ("Llama", {"rope_type": ["linear"]}, "rope_type is \\['linear'\\]"),
        ("Llama", {"rope_type": "linear", "type": "yarn", "factor": 2.0}, "rope_type is 'linear'"),
        ("Llama", {"mrope_section": [16, 24, 24]}, "default rope has mrope_section"),
        ("Llama", {"factor": 4.0}, "default rope has factor"),
        ("Llama", {"rope_theta": None}, "rope_parameters.rope_theta is None"),
        ("Llama", {"rope_theta": "10000"}, "rope_parameters.rope_theta is '10000'"),
        ("Llama", {"rope_type": "linear"}, "rope_parameters.factor is None"),
        ("Llama", {"rope_type": "linear", "factor": True}, "rope_parameters.factor is True"),
        ("Llama", LLAMA3 | {"low_freq_factor": 4.0}, "rope_parameters.high_freq_factor is 4.0"),
        ("Llama", LLAMA3 | {"original_max_position_embeddings": None}, "original_max_position_embeddings is None"),
        ("Llama", YARN | {"truncate": "no"}, "rope_parameters.truncate is 'no'"),
        ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("Llama", {"full_attention": {"rope_theta": 1e4}}, "default rope has full_attention"),
        ("Llama", SHORT_LONGROPE | {"factor": 4.0}, "longrope has not 32 factors"),
        ("Llama", LONG | {"short_factor": "1.0"}, "rope_parameters.short_factor is '1.0'"),
        ("Llama", LONG | {"short_factor": [1.0, None]}, "rope_parameters.short_factor is None"),
        ("Phi3", {"rope_type": "linear", "factor": 2.0}, "rope_type is 'linear'"),
        ("Phi3", {"partial_rotary_factor": 0.01}, "0 of 64 dimensions"),
        ("Phi3", {"partial_rotary_factor": 0.8}, "51 of 64 dimensions"),
        ("Phi3", {"partial_rotary_factor": 2}, "128 of 64 dimensions"),
    ],
)
def test_what_is_not_understood_has_a_reason(family: str, rope: dict[str, Any], reason: str) -> None:
    names = {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower()}
    found = dense_config(settings(family, rope) | names)
    assert isinstance(found, str)
    assert re.search(reason, found) is not None, found
