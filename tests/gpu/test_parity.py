"""What `python -m benchmarks.gpu` holds against references, by the same code: kernels, graphs, whole models."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import families, graphs, kernels
from benchmarks.gpu.tiny_models import FAMILIES

pytestmark = pytest.mark.gpu
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tiny models are written."""
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize("shape", kernels.shapes())
def test_attention_and_kv_writes_equal_the_formula(shape: str, dtype: str) -> None:
    for found in kernels.check_shape(kernels.Unit(shape, dtype, "cuda")):
        assert not found.failed, found.name
        assert found.error <= kernels.TOLERANCE[dtype], found.name
        assert found.wrong == 0, found.name


@pytest.mark.parametrize(("name", "dtype"), [*((name, dtype) for name in ("llama", "gemma2") for dtype in DTYPES), ("gpt_oss", "float32")])
def test_replayed_graphs_equal_steps_without(name: str, dtype: str, models: Path) -> None:
    replayed = graphs.replay(graphs.Replay(name, dtype, "cuda", models))
    assert replayed.steps > 0, replayed.code
    assert replayed.difference <= graphs.MOST[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_models_agree_with_transformers(name: str, dtype: str, models: Path) -> None:
    found = families.judge_family(families.Family(name, dtype, "cuda", models))
    assert not found.refusal
    assert found.error <= found.most(dtype), found.code
