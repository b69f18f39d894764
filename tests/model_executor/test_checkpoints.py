"""Weights of every type, in one file or several, with an output layer of its own or without: the same model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from chatpaged.engine.model_executor.weights import stored_dtype
from chatpaged.engine.weight_files import inspect_weights
from tests.model_executor.architectures import ARCHITECTURES, build_config
from tests.model_executor.harness import load
from tests.model_executor.logits import TOLERANCE, Rows, computed, error, randomize, reference

hf: Any = transformers
HALF_TYPES = [torch.bfloat16, torch.float16]
# Windows and norms that add one; experts; biases and sinks.
MODELS = ["llama", "gemma3_text", "qwen3_moe", "gpt_oss"]

Checkpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Writes a tiny model with weights of a type."""

    def write(model_type: str, dtype: torch.dtype, name: str = "model", *, shards: bool = False, **options: Any) -> Path:
        config = build_config(model_type, ARCHITECTURES[model_type] | options)
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomize(model)
        model.to(dtype).save_pretrained(tmp_path / name, max_shard_size="8KB" if shards else "1GB")
        return tmp_path / name

    return write


def logits(directory: Path, dtype: torch.dtype) -> Rows:
    return computed(load(directory, dtype=dtype), dtype)


@pytest.mark.parametrize("stored", HALF_TYPES)
@pytest.mark.parametrize("model_type", MODELS)
def test_half_weights_are_widened_exactly(model_type: str, stored: torch.dtype, checkpoint: Checkpoint) -> None:
    directory = checkpoint(model_type, stored)
    assert stored_dtype(inspect_weights(directory).stored_type) == stored
    model = load(directory, dtype=torch.float32)
    assert {parameter.dtype for parameter in model._model.parameters()} == {torch.float32}
    assert error(computed(model), reference(directory)) < TOLERANCE


@pytest.mark.parametrize("stored", HALF_TYPES)
@pytest.mark.parametrize("model_type", MODELS)
def test_half_weights_in_their_own_type_are_as_good_as_in_transformers(
    model_type: str, stored: torch.dtype, checkpoint: Checkpoint
) -> None:
    directory = checkpoint(model_type, stored)
    exact, theirs, ours = reference(directory), reference(directory, stored), logits(directory, stored)
    assert all(rows.dtype == stored for rows in ours.values())
    # Rounding differs in every sum, so neither equals the other; but one is no further from the truth than the other.
    assert typical_error(ours, exact) < 1.3 * typical_error(theirs, exact)
    assert typical_error(ours, exact) < (0.1 if stored == torch.bfloat16 else 0.01)


def typical_error(rows: Rows, exact: Rows) -> float:
    """Root of the mean square, in standard deviations of the logits."""
    one, other = (torch.cat([part.double() for part in parts.values()]) for parts in (rows, exact))
    asked = ~one.isnan().all(dim=1)
    return float((one - other)[asked].square().mean().sqrt() / other.std())


@pytest.mark.parametrize("stored", [torch.float32, *HALF_TYPES])
def test_float32_weights_are_narrowed_as_transformers_does(stored: torch.dtype, checkpoint: Checkpoint) -> None:
    directory = checkpoint("qwen3_moe", torch.float32)
    stock = hf.AutoModelForCausalLM.from_pretrained(directory, dtype=stored)
    model = load(directory, dtype=stored)
    for ours, theirs in zip(model._model.parameters(), stock.parameters(), strict=True):
        assert ours.dtype == stored
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("stored", [torch.float32, *HALF_TYPES])
@pytest.mark.parametrize("model_type", MODELS)
def test_shards_are_one_model(model_type: str, stored: torch.dtype, checkpoint: Checkpoint) -> None:
    whole, sharded = checkpoint(model_type, stored), checkpoint(model_type, stored, "sharded", shards=True)
    assert len(inspect_weights(sharded).paths) > 2
    ours, expected = load(sharded, dtype=torch.float32), load(whole, dtype=torch.float32)
    for one, other in zip(ours._model.parameters(), expected._model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert error(computed(ours), reference(whole)) < TOLERANCE


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3", "gpt2", "cohere"])
def test_tied_weights(model_type: str, stored: torch.dtype, *, shards: bool, checkpoint: Checkpoint) -> None:
    directory = checkpoint(model_type, stored, shards=shards, tie_word_embeddings=True)
    assert not [name for path in inspect_weights(directory).paths for name in load_file(path) if "lm_head" in name]
    model = load(directory, dtype=torch.float32)
    head, table = model._model.get_output_embeddings().weight, model._model.get_input_embeddings().weight
    assert head.data_ptr() == table.data_ptr()
    assert error(computed(model), reference(directory)) < TOLERANCE


def test_a_text_part_brings_the_end_tokens_of_the_whole(tmp_path: Path) -> None:
    config = build_config("gemma3", ARCHITECTURES["gemma3"] | {"eos_token_id": [1, 7]})
    config.text_config.eos_token_id = 5
    hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert load(tmp_path, dtype=torch.float32).stop_token_ids == {1, 5, 7}
