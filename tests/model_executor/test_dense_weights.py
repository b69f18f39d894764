"""Weights of the dense decoder: read whole, or refused before anything is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chatpaged.engine.model_executor.models.dense_config import DenseConfig, NotDenseError
from chatpaged.engine.model_executor.models.dense_weights import DenseFiles, fits, read_dense_weights
from chatpaged.engine.weight_files import inspect_weights
from tests.model_executor.architectures import build_config
from tests.model_executor.dense_cases import CASES, FAMILY_CASES, read_config, save_case, understood
from tests.model_executor.logits import hf, randomize

Place = Callable[[str], tuple[Path, DenseConfig]]
Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.1."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A case's tiny model and its configuration."""
    root = tmp_path_factory.mktemp("weights")

    def made(name: str) -> tuple[Path, DenseConfig]:
        directory = save_case(name, root)
        return directory, understood(read_config(directory))

    return cache(made)


def changed(directory: Path, to: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a model whose tensors were changed."""
    shutil.copytree(directory, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors")
    return to


@pytest.mark.parametrize("name", CASES)
def test_files_fit_their_configuration(name: str, place: Place) -> None:
    directory, config = place(name)
    assert fits(config, inspect_weights(directory).shapes) is None


@pytest.mark.parametrize("name", [*FAMILY_CASES, "llama-biases-tied"])
def test_files_that_lack_anything_do_not_fit(name: str, place: Place) -> None:
    directory, config = place(name)
    shapes = inspect_weights(directory).shapes
    for tensor, shape in shapes.items():
        assert fits(config, {other: size for other, size in shapes.items() if other != tensor}) == f"{tensor} is missing, not {shape}"
        assert fits(config, shapes | {tensor: (*shape, 1)}) == f"{tensor} is {(*shape, 1)}, not {shape}"


@pytest.mark.parametrize(
    "extra",
    [
        f"{LAYER}self_attn.q_proj.bias",
        f"{LAYER}self_attn.q_norm.weight",
        f"{LAYER}self_attn.k_proj.weight_scale",
        "model.layers.2.mlp.down_proj.weight",
        "lm_head.bias",
        "something.else",
    ],
)
def test_files_that_hold_more_do_not_fit(extra: str, place: Place) -> None:
    directory, config = place("llama")
    shapes = inspect_weights(directory).shapes
    assert fits(config, shapes | {extra: (32,)}) == f"{extra} is not known"


def test_frequencies_of_older_files_are_ignored(place: Place) -> None:
    directory, config = place("llama")
    assert fits(config, inspect_weights(directory).shapes | {f"{LAYER}self_attn.rotary_emb.inv_freq": (4,)}) is None


def test_absurdly_many_layers_are_refused_at_once(place: Place) -> None:
    directory, config = place("llama")
    assert fits(replace(config, num_layers=10**12), inspect_weights(directory).shapes) == f"{10**12} layers, but only 21 tensors"


def test_layers_come_one_by_one(place: Place) -> None:
    directory, config = place("gemma3")
    whole = read_dense_weights(directory, config, torch.float32)
    with DenseFiles(directory, config, torch.float32) as files:
        layers = files.layers()
        first = next(layers)
        assert torch.equal(first.qkv, whole.layers[0].qkv)
        assert len(list(layers)) == 2
    assert torch.equal(first.down, whole.layers[0].down)  # still there


def test_q_k_and_v_are_joined_as_the_decoder_splits_them(place: Place) -> None:
    directory, config = place("qwen2")
    stored = load_file(directory / "model.safetensors")
    layer = read_dense_weights(directory, config, torch.float32).layers[1]
    parts = [stored[f"{LAYER}self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(layer.qkv, torch.cat(parts))
    assert torch.equal(layer.gate_up, torch.cat([stored[f"{LAYER}mlp.{part}_proj.weight"] for part in ("gate", "up")]))
    assert layer.qkv.is_contiguous()


def test_shards_are_read(place: Place, tmp_path: Path) -> None:
    model_type, options = CASES["llama"]
    model = hf.AutoModelForCausalLM.from_config(build_config(model_type, options), dtype=torch.float32)
    randomize(model)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    directory, config = place("llama")
    whole, sharded = (read_dense_weights(path, config, torch.float32) for path in (directory, tmp_path))
    assert torch.equal(whole.lm_head, sharded.lm_head)
    assert all(torch.equal(one.gate_up, other.gate_up) for one, other in zip(whole.layers, sharded.layers, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norms_are_complete_and_as_wide_as_their_products(dtype: torch.dtype, place: Place) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    for name, expected in (("llama", dtype), ("olmo2", wide), ("gemma2", torch.float32)):
        directory, config = place(name)
        weights = read_dense_weights(directory, config, dtype)
        assert weights.final_norm.dtype == expected
        assert weights.layers[0].down.dtype == dtype
        stored = load_file(directory / "model.safetensors")["model.norm.weight"].to(dtype).to(expected)
        assert torch.equal(weights.final_norm, stored + (1.0 if name == "gemma2" else 0.0))


def test_output_layer_that_is_stored_though_it_is_tied(place: Place, tmp_path: Path) -> None:
    directory, config = place("llama-biases-tied")
    weights = read_dense_weights(directory, config, torch.float32)
    assert weights.lm_head is weights.embedding

    def same(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def other(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]

    weights = read_dense_weights(changed(directory, tmp_path / "same", same), config, torch.float32)
    assert weights.lm_head is weights.embedding
    there = changed(directory, tmp_path / "other", other)
    weights = read_dense_weights(there, config, torch.float32)
    assert torch.equal(weights.lm_head, 2 * weights.embedding)
    model: Any = hf.AutoModelForCausalLM.from_pretrained(there)
    assert torch.equal(model.lm_head.weight, weights.lm_head)  # as transformers


def test_weights_that_need_a_scale_are_refused(place: Place, tmp_path: Path) -> None:
    directory, config = place("llama")

    def quantized(tensors: Tensors) -> None:
        tensors[f"{LAYER}mlp.down_proj.weight"] = tensors[f"{LAYER}mlp.down_proj.weight"].to(torch.int8)

    with pytest.raises(NotDenseError, match=r"down_proj.weight in .* is torch.int8, which needs a scale"):
        read_dense_weights(changed(directory, tmp_path / "quantized", quantized), config, torch.float32)


def test_weights_of_another_model_are_refused(place: Place) -> None:
    directory, _ = place("llama")
    _, config = place("qwen3")
    with pytest.raises(NotDenseError, match=r"the weights in .* do not fit its config.json: "):
        read_dense_weights(directory, config, torch.float32)


def test_files_that_safetensors_refuses_are_left_to_others(place: Place, tmp_path: Path) -> None:
    directory, config = place("llama")
    damaged = changed(directory, tmp_path / "damaged", lambda _: None)
    with (damaged / "model.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(NotDenseError, match="cannot read the weights in"):
        DenseFiles(damaged, config, torch.float32)
