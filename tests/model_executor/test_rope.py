"""Rotary embeddings are tables: nothing about a position depends on the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from chatpaged.engine.model_executor.models.rope import freeze_rope
from chatpaged.engine.sampling_params import SamplingParams
from tests.model_executor.architectures import ARCHITECTURES, build_config
from tests.model_executor.harness import load, make_engine
from tests.model_executor.tiny_models import _SIZES as SIZES
from tests.model_executor.tiny_models import CONTEXT, FAMILIES, build_model, save_model

PROMPT = [40, 50, 60, 70, 80]
hf: Any = transformers

LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("LlamaConfig", {"rope_type": "dynamic", "factor": 4.0}),
    "longrope": ("Phi3Config", LONG_ROPE),
    "default": ("LlamaConfig", {"rope_type": "default"}),
    "linear": ("LlamaConfig", {"rope_type": "linear", "factor": 4.0}),
    "yarn": ("LlamaConfig", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
}


def rope_config(kind: str) -> Any:
    """A tiny model with one of the kinds of rotary embeddings."""
    name, rope = ROPES[kind]
    trained = {"original_max_position_embeddings": 32} if kind == "longrope" else {}
    return getattr(hf, name)(**SIZES, **trained, rope_parameters={"rope_theta": 10000.0, **rope})


def rotary(model: Any) -> nn.Module:
    (module,) = [module for name, module in model.named_modules() if name.endswith("rotary_emb")]
    assert isinstance(module, nn.Module)
    return module


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_long_request_does_not_change_the_positions_of_others(kind: str) -> None:
    config = rope_config(kind)
    if kind == "dynamic":
        config.max_position_embeddings = 32  # beyond it the stock embedding changes
    x = torch.zeros(1, dtype=torch.float64)
    alone, together = torch.tensor([[3, 20]]), torch.tensor([[3, 20, 100]])
    stock = rotary(build_model(config))
    assert not torch.equal(stock(x, alone)[0], stock(x, together)[0][:, :2])  # which is what is to be kept from happening

    model = build_model(config)
    freeze_rope(model, CONTEXT)
    frozen = rotary(model)
    first = frozen(x, alone)
    for before, after in zip(first, frozen(x, together), strict=True):
        assert torch.equal(before, after[:, :2])
    for before, after in zip(first, frozen(x, alone), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("max_model_len", [32, CONTEXT])
def test_longrope_chooses_by_the_longest_sequence_allowed(max_model_len: int, tmp_path: Path) -> None:
    config = rope_config("longrope")
    frozen = rotary(load(save_model(config, tmp_path), max_model_len=max_model_len)._model)
    stock = rotary(build_model(config))
    x = torch.zeros(1, dtype=torch.float64)
    positions = torch.arange(max_model_len).unsqueeze(0)
    other = torch.arange(CONTEXT if max_model_len == 32 else 32).unsqueeze(0)
    for table, expected, different in zip(frozen(x, positions), stock(x, positions), stock(x, other), strict=True):
        assert torch.equal(table, expected)
        assert not torch.equal(table[:, :32], different[:, :32])


@pytest.mark.parametrize("kind", ["default", "linear", "yarn"])
def test_frozen_tables_equal_the_stock_embedding(kind: str, tmp_path: Path) -> None:
    config = rope_config(kind)
    frozen, stock = rotary(load(save_model(config, tmp_path))._model), rotary(build_model(config))
    positions = torch.tensor([[0, 127, 5, 5, 64]])
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.zeros(1, dtype=dtype)
        for table, expected in zip(frozen(x, positions), stock(x, positions), strict=True):
            assert table.dtype == dtype
            assert torch.equal(table, expected)


def test_positions_of_several_axes_are_looked_up_as_one() -> None:
    config = build_config("cohere_compass_text", ARCHITECTURES["cohere_compass_text"])
    stock, frozen = rotary(hf.AutoModelForCausalLM.from_config(config)), rotary(hf.AutoModelForCausalLM.from_config(config))
    freeze_rope(frozen, CONTEXT)
    x = torch.zeros(1)
    positions = torch.tensor([[1, 9, 100, 9]])
    expected = stock(x, positions, "full_attention")
    for given in (positions, positions.expand(3, 1, 4)):
        for table, other in zip(frozen(x, given, "full_attention"), expected, strict=True):
            assert torch.equal(table, other)


def test_layer_types_have_tables_of_their_own(model_directory: Callable[[str], Path]) -> None:
    frozen = rotary(load(model_directory("gemma3_text"))._model)
    stock = rotary(build_model(FAMILIES["gemma3_text"]()))
    x = torch.zeros(1, dtype=torch.float64)
    positions = torch.tensor([[1, 9, 100]])
    for layer_type in ("full_attention", "sliding_attention", "full_attention"):
        for table, expected in zip(frozen(x, positions, layer_type), stock(x, positions, layer_type), strict=True):
            assert torch.equal(table, expected)


def test_answers_do_not_depend_on_long_batch_mates(tmp_path: Path) -> None:
    directory = save_model(rope_config("longrope"), tmp_path)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    long_prompt = [3 + i for i in range(100)]
    with make_engine(directory, kv_blocks=30, enable_prefix_caching=False) as engine:
        alone = engine.generate(PROMPT, params).token_ids
        together = engine.generate_many([(PROMPT, params), (long_prompt, params)])[0].token_ids
        afterwards = engine.generate(PROMPT, params).token_ids
    assert alone == together == afterwards
