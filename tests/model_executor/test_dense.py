"""The dense decoder gives the logits of the universal path: float64 to the last digits, through paged blocks, chunks and decode mixed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.models.dense import DenseModel, load_dense_model
from chatpaged.engine.model_executor.models.dense_config import NO_ROPE, NotDenseError
from chatpaged.engine.model_executor.models.dense_ops import rms_norm
from chatpaged.engine.model_executor.models.dense_weights import DenseLayer, read_dense_weights
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput
from chatpaged.errors import InvalidRequestError, ModelError
from tests.model_executor.dense_cases import CASES, FAMILY_CASES, TRAINED, read_config, save_case, understood
from tests.model_executor.harness import load
from tests.model_executor.logits import CPU, TOLERANCE, Model, Rows, computed, error

EXACT = 1e-12
"""Of the standard deviation of the logits, in float64."""
HALF = {torch.bfloat16: 0.05, torch.float16: 0.01}
CLEARLY_WRONG = 1e-3

Place = Callable[[str], Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Directory of a case's tiny model."""
    root = tmp_path_factory.mktemp("dense")
    return cache(lambda name: save_case(name, root))


def load_dense(directory: Path, *, dtype: torch.dtype = torch.float64, max_model_len: int | None = None) -> DenseModel:
    return load_dense_model(directory, dtype, CPU, max_model_len)


def differs(one: Rows, other: Rows) -> float:
    return error(one, {seq: rows.nan_to_num() for seq, rows in other.items()})


@pytest.mark.parametrize("name", CASES)
def test_gives_the_logits_of_the_universal_path(name: str, place: Place) -> None:
    directory = place(name)
    universal, dense = load(directory), load_dense(directory)
    assert dense.geometry() == universal.geometry()
    assert differs(computed(dense, torch.float64), computed(universal, torch.float64)) < EXACT
    same = ("vocab_size", "max_model_len", "stop_token_ids")
    assert [getattr(dense, name) for name in same] == [getattr(universal, name) for name in same]


@pytest.mark.parametrize("name", FAMILY_CASES)
def test_other_types_agree_as_far_as_they_go(name: str, place: Place) -> None:
    for dtype, tolerance in ((torch.float32, TOLERANCE), *HALF.items()):
        dense, universal = load_dense(place(name), dtype=dtype), load(place(name), dtype=dtype)
        assert differs(computed(dense, dtype), computed(universal, dtype)) < tolerance, dtype


@pytest.mark.parametrize("name", ["llama-longrope", "phi3-longrope"])
def test_longrope_is_chosen_by_the_longest_sequence(name: str, place: Place) -> None:
    short, long = load_dense(place(name), max_model_len=TRAINED), load_dense(place(name), max_model_len=TRAINED + 1)
    universal = computed(load(place(name), max_model_len=TRAINED), torch.float64)
    assert differs(computed(short, torch.float64), universal) < EXACT
    assert differs(computed(long, torch.float64), universal) > CLEARLY_WRONG


# What the comparison would see: each of these says something else than the model's configuration.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {"windows": (None, None)}),
    ("qwen3", {"windows": (8, 8, 8)}),
    ("gemma3", {"ropes": (0, 1, 0)}),
    ("smollm3", {"ropes": (0, 0)}),
    ("llama", {"ropes": (NO_ROPE, 0)}),
    ("llama", {"activation": "gelu_tanh"}),
    ("llama", {"norm_eps": 0.1}),
    ("gemma2", {"attention_softcap": None}),
    ("gemma2", {"final_softcap": None}),
    ("gemma2", {"norm_offset": 0.0}),
    ("gemma2", {"embedding_scale": 1.0}),
    ("gemma2", {"attention_scale": 1.0}),
    ("granite", {"embedding_scale": 1.0}),
    ("granite", {"residual_scale": 1.0}),
    ("granite", {"logits_scale": 1.0}),
    ("granite", {"attention_scale": 1.0}),
    ("phi3-partial", {"rotary_dim": 8}),
]


@pytest.mark.parametrize(("name", "changes"), MISTAKES, ids=lambda value: value if isinstance(value, str) else ",".join(value))
def test_the_comparison_sees_mistakes(name: str, changes: dict[str, Any], place: Place) -> None:
    config = understood(read_config(place(name)))
    models: list[Model] = []
    for changed in (config, replace(config, **changes)):
        weights = read_dense_weights(place(name), changed, torch.float64)
        models.append(DenseModel(changed, weights, changed.context, frozenset()))
    right, wrong = (computed(model, torch.float64) for model in models)
    assert differs(wrong, right) > CLEARLY_WRONG


@pytest.mark.parametrize("name", ["gemma2-biases", "llama-biases-tied", "olmo2-biases"])
def test_every_tensor_has_an_effect(name: str, place: Place) -> None:
    directory = place(name)
    config = understood(read_config(directory))
    token = torch.zeros(1, dtype=torch.int64)

    def logits(changed: str | None = None) -> torch.Tensor:
        weights = read_dense_weights(directory, config, torch.float64)
        if changed is not None:
            tensor = getattr(weights.layers[1], changed)
            weights.layers[1] = replace(
                weights.layers[1], **{changed: tensor + 0.1 * torch.arange(tensor.numel()).view(tensor.shape).sin()}
            )
        model = DenseModel(config, weights, config.context, frozenset())
        layout = KVLayout(num_layers=2, block_size=4, kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype=torch.float64)
        row = ScheduledRow(0, (5, 6, 7), 0, (1,), ())
        batch = InputBatch.build(SchedulerOutput(0, (row,), ()), 4, CPU)
        with torch.inference_mode(), forward_context(TorchPagedAttention(batch, KVCache(layout, 2, CPU))):
            return model.forward(batch.input_ids, batch.positions, token + 2)

    unchanged = logits()
    first = read_dense_weights(directory, config, torch.float64).layers[0]
    names = [field.name for field in fields(first) if getattr(first, field.name) is not None]
    for changed in names:
        assert not torch.allclose(logits(changed), unchanged, rtol=0, atol=1e-6), changed


def test_no_rows_are_wanted_of_a_prompt_that_is_not_complete(place: Place) -> None:
    model = load_dense(place("gemma3"), dtype=torch.float32)
    layout = KVLayout(num_layers=3, block_size=4, kv_heads=2, head_dim=8, dtype=torch.float32)
    batch = InputBatch.build(SchedulerOutput(0, (ScheduledRow(0, (5, 6, 7), 0, (1,), ()),), ()), 4, CPU)
    with torch.inference_mode(), forward_context(TorchPagedAttention(batch, KVCache(layout, 2, CPU))):
        assert model.forward(batch.input_ids, batch.positions, batch.logits_rows).shape == (0, model.vocab_size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_norms_keep_the_type(dtype: torch.dtype) -> None:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = x.to(torch.float64)
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * 1.5
    for weight_dtype in {dtype, torch.float32}:
        normed = rms_norm(x, torch.full((16,), 1.5, dtype=weight_dtype), 1e-6)
        assert normed.dtype == dtype
        assert torch.allclose(normed.to(torch.float64), expected, rtol=2e-2 if dtype.itemsize == 2 else 1e-6, atol=0)


def test_damaged_weights_are_noticed(place: Place) -> None:
    config = understood(read_config(place("llama")))
    weights = read_dense_weights(place("llama"), config, torch.float32)
    weights.layers[0] = replace(weights.layers[0], down=torch.full_like(weights.layers[0].down, torch.inf))
    with pytest.raises(ModelError, match=r"computes no numbers .*: damaged weights"):
        DenseModel(config, weights, config.context, frozenset()).geometry()


def test_sequences_are_not_longer_than_the_context(place: Place) -> None:
    assert load_dense(place("llama")).max_model_len == 128
    assert load_dense(place("llama"), max_model_len=20).max_model_len == 20
    with pytest.raises(InvalidRequestError, match=r"max_model_len 129 is more than the model's context of 128"):
        load_dense(place("llama"), max_model_len=129)


def test_what_is_not_understood_is_left_to_others(place: Place, tmp_path: Path) -> None:
    with pytest.raises(NotDenseError, match="the architecture is none of the dense decoder's"):
        load_dense(tmp_path)


def test_weights_go_to_the_device_layer_by_layer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model takes its size there, and of the host a layer or two at a time."""
    here: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def move(layer: DenseLayer, device: torch.device) -> DenseLayer:
        nonlocal most
        here.append(weakref.ref(layer.qkv))
        most = max(most, sum(reference() is not None for reference in here))
        tensors = {field.name: getattr(layer, field.name) for field in fields(layer)}
        copies: dict[str, Any] = {name: None if tensor is None else tensor.clone() for name, tensor in tensors.items()}
        return DenseLayer(**copies)

    monkeypatch.setattr(DenseLayer, "to", move)
    model = load_dense(place("gemma3"), dtype=torch.bfloat16)
    assert len(here) == model.geometry().num_layers == 3
    assert most <= 2
    gc.collect()
    assert not any(reference() is not None for reference in here)


WITHOUT_TRANSFORMERS = """
import sys
from pathlib import Path
import torch
from chatpaged.engine.model_executor.models.dense import load_dense_model
for directory in sys.argv[1:]:
    print(load_dense_model(Path(directory), torch.float32, torch.device("cpu"), None).geometry())
print(sorted({name for name in sys.modules if name.partition(".")[0] in ("transformers", "accelerate")}))
"""


def test_transformers_is_not_loaded(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(place("gemma3")), str(place("phi3-longrope"))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stdout.count("KVGeometry(") == 2


@pytest.mark.starter
def test_starter_model_in_float32(starter_model: Path) -> None:
    ids = tuple(int(token) for token in torch.randint(3, 40_000, (41,), generator=torch.Generator().manual_seed(5)))
    layout = KVLayout(num_layers=30, block_size=16, kv_heads=3, head_dim=64, dtype=torch.float32)
    logits: list[torch.Tensor] = []
    model: Model
    for model in (load(starter_model, dtype=torch.float32), load_dense(starter_model, dtype=torch.float32)):
        kv_cache = KVCache(layout, 5, CPU)
        parts = []
        for start, end in ((0, 30), (30, 40), (40, 41)):
            row = ScheduledRow(0, ids[start:end], start, (4, 2, 3)[: -(-end // 16)], ())
            batch = InputBatch.build(SchedulerOutput(0, (row,), ()), 16, CPU)
            with torch.inference_mode(), forward_context(TorchPagedAttention(batch, kv_cache)):
                parts.append(model.forward(batch.input_ids, batch.positions, torch.arange(end - start)))
        logits.append(torch.cat(parts))
    universal, dense = logits
    assert float((dense - universal).abs().max() / universal.std()) < 1e-4
    assert torch.equal(dense.argmax(-1), universal.argmax(-1))
