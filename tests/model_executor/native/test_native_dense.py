"""A whole model on the native kernels gives the logits of the dense decoder, with the weights that are left of it once they are packed."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor.input_batch import InputBatch, RowSpan
from chatpaged.engine.model_executor.models.dense_weights import DenseFiles
from chatpaged.engine.model_executor.models.native_dense import FORMATS, NativeDenseModel, NativeOptions, pack_model, packed_sizes
from chatpaged.engine.model_executor.native.library import NativeError, Team, instruction_sets, native_problem
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from chatpaged.errors import ModelError
from tests.model_executor.dense_cases import CASES, FAMILY_CASES, read_config, save_case, understood
from tests.model_executor.logits import Rows, computed, error
from tests.model_executor.native.models import native_logits, native_model, packed_reference

SETS = instruction_sets() if native_problem() is None else ()
TOLERANCES = {"none": 1e-5, "fp16": 1e-5, "int8": 1e-3, "int4": 1e-3}
"""Of the standard deviation of the logits. Activations of whole-number weights have 16 bits."""
KV_TOLERANCES = {"fp16": 0.01, "int8": 0.1}
THREADS = 300

Place = Callable[[str], Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Directory of a case's tiny model."""
    root = tmp_path_factory.mktemp("native")
    return cache(lambda name: save_case(name, root))


def differs(one: Rows, other: Rows) -> float:
    return error(one, {seq: rows.nan_to_num() for seq, rows in other.items()})


@pytest.mark.parametrize("name", CASES)
def test_gives_the_logits_of_the_dense_decoder(name: str, place: Place, team: Team) -> None:
    directory = place(name)
    wanted = computed(packed_reference(directory, "none", team), torch.float64)
    assert differs(native_logits(native_model(directory)), wanted) < TOLERANCES["none"]


@pytest.mark.parametrize("quantize", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("name", [*FAMILY_CASES, "llama-biases-tied", "llama-head_dim-6", "olmo2-biases"])
def test_packed_weights(name: str, quantize: str, place: Place, team: Team) -> None:
    directory = place(name)
    wanted = computed(packed_reference(directory, quantize, team), torch.float64)
    assert differs(native_logits(native_model(directory, quantize)), wanted) < TOLERANCES[quantize]


@pytest.mark.parametrize("kv_dtype", KV_TOLERANCES)
@pytest.mark.parametrize("name", FAMILY_CASES)
def test_narrow_keys_and_values(name: str, kv_dtype: str, place: Place) -> None:
    exact = native_logits(native_model(place(name)))
    assert 0 < differs(native_logits(native_model(place(name), kv_dtype=kv_dtype)), exact) < KV_TOLERANCES[kv_dtype]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", ["gemma2-biases", "phi3-partial", "olmo2-biases", "qwen3-biases"])
def test_every_instruction_set(name: str, instruction_set: str, place: Place, team: Team) -> None:
    for quantize in FORMATS:
        wanted = computed(packed_reference(place(name), quantize, team), torch.float64)
        model = native_model(place(name), quantize, instruction_set=instruction_set)
        assert model.instruction_set == instruction_set
        assert differs(native_logits(model), wanted) < TOLERANCES[quantize]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_threads_and_block_sizes_make_no_difference(name: str, place: Place) -> None:
    for quantize, kv_dtype in (("none", "fp32"), ("int8", "fp16"), ("int4", "int8")):
        one = native_logits(native_model(place(name), quantize, kv_dtype))
        for options in ({"threads": 3}, {"block_size": 1}, {"block_size": 32}):
            other = native_logits(native_model(place(name), quantize, kv_dtype, **options))  # type: ignore[arg-type]
            assert all(torch.equal(one[seq].nan_to_num(), other[seq].nan_to_num()) for seq in one), (quantize, options)


@pytest.mark.parametrize("name", CASES)
def test_sizes_of_packed_tensors_are_foreseen(name: str, place: Place, team: Team) -> None:
    config = understood(read_config(place(name)))
    with DenseFiles(place(name), config, torch.float32) as files:
        for quantize in FORMATS:
            packed = pack_model(files, config, quantize, team)
            assert {key: tensor.numel() * tensor.element_size() for key, tensor in packed.items()} == packed_sizes(config, quantize)


def test_no_logits_are_wanted_of_a_prompt_that_is_not_complete(place: Place) -> None:
    model = native_model(place("llama"))
    ids = torch.tensor([5, 6, 7])
    batch = InputBatch(ids, torch.arange(3), torch.zeros(3), torch.arange(3), torch.zeros(0), (RowSpan(0, 3, 0, (0,)),))
    result = model.forward(batch, NativeKVCache(model.layout, 1))
    assert result.values.shape == (0, model.vocab_size)
    assert result.best == []


def rewritten(directory: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """A copy of a model with other tensors."""
    target.mkdir()
    (target / "config.json").write_text((directory / "config.json").read_text())
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_embeddings_of_any_type(dtype: torch.dtype, place: Place, tmp_path: Path, team: Team) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        embedding = tensors["model.embed_tokens.weight"]
        embedding[0, :4] = torch.tensor([1e-6, -1e-7, -0.0, 6e-5])  # subnormal halves
        tensors["model.embed_tokens.weight"] = embedding.to(dtype)

    directory = rewritten(place("llama"), tmp_path / "model", narrow)
    wanted = computed(packed_reference(directory, "none", team), torch.float64)
    assert differs(native_logits(native_model(directory)), wanted) < TOLERANCES["none"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_damaged_embeddings_are_noticed(wrong: float, quantize: str, dtype: torch.dtype, place: Place, tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].to(dtype)
        tensors["model.embed_tokens.weight"][5, 3] = wrong

    model = native_model(rewritten(place("llama"), tmp_path / "model", damage), quantize)
    model.check_numbers()
    ids = torch.tensor([5, 6])
    spans = (RowSpan(0, 1, 0, (0,)), RowSpan(1, 1, 0, (1,)))
    batch = InputBatch(ids, torch.zeros(2), torch.arange(2), torch.zeros(2), torch.arange(2), spans)
    best = model.forward(batch, NativeKVCache(model.layout, 2)).best
    assert best is not None
    assert best[0] == NO_TOKEN
    assert best[1] != NO_TOKEN


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_damaged_weights_are_noticed(wrong: float, quantize: str, place: Place, tmp_path: Path) -> None:
    names = list(safetensors.torch.load_file(place("llama-biases-tied") / "model.safetensors"))
    for i, name in enumerate(name for name in names if "embed_tokens" not in name):

        def damage(tensors: dict[str, torch.Tensor], name: str = name) -> None:
            tensors[name].view(-1)[-3] = wrong

        directory = rewritten(place("llama-biases-tied"), tmp_path / str(i), damage)
        with pytest.raises(ModelError, match=r"this model's \w+ holds NaN or infinity: damaged weights"):
            native_model(directory, quantize)


def test_numbers_that_grow_beyond_float_are_noticed(place: Place, tmp_path: Path) -> None:
    def grow(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"].fill_(3e38)

    for quantize in FORMATS:
        model = native_model(rewritten(place("llama"), tmp_path / quantize, grow), quantize)
        with pytest.raises(ModelError, match=r"computes no numbers \(NaN or infinity\): damaged weights"):
            model.check_numbers()


def test_shapes_that_kernels_do_not_do(place: Place, team: Team) -> None:
    config = understood(read_config(place("llama")))
    options = NativeOptions(quantize="none", kv_dtype="fp32", block_size=16, max_model_len=32, threads=1)
    with DenseFiles(place("llama"), config, torch.float32) as files:
        packed = pack_model(files, config, "none", team)
        embedding = files.stored_embedding()
    for wrong in (replace(config, num_kv_heads=3), replace(config, head_dim=512, rotary_dim=512)):
        with pytest.raises(NativeError, match="the native kernels do not do a model of this shape"):
            NativeDenseModel(wrong, embedding, packed, options, (), Team(1))


def test_closing_twice(place: Place) -> None:
    model = native_model(place("llama"), threads=2)
    model.check_numbers()
    model.close()
    model.close()


TOO_MANY_THREADS = f"""
import resource
from chatpaged.engine.model_executor.native.library import NativeError, Team
Team(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, used + 100_000_000))
try:
    Team({THREADS})
except NativeError as error:
    print(error)
team = Team(2)
print(team.threads)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to limit memory")
def test_threads_that_cannot_be_had_are_no_crash() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_MANY_THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{THREADS} threads with any instructions cannot be had here", "2"]
