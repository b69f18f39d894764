"""Attention of the real libraries, on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chatpaged.engine.model_executor.attention.choice import KERNELS, attention_problem, make_attention
from tests.model_executor.attention_bench import CASES, TOLERANCE, largest_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
CUDA = torch.device("cuda")
ABSENT = ("triton is not installed", "flash-attn is not installed", f"torch {torch.__version__} has none")
"""Reasons of a machine, not of a mistake."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("name", KERNELS)
def test_passes_its_trial(name: str, block_size: int, dtype: torch.dtype) -> None:
    problem = attention_problem(name, CUDA, dtype, block_size=block_size)
    if problem in ABSENT:
        pytest.skip(problem)
    assert problem is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*KERNELS, "torch"])
def test_equals_torch_in_float64(name: str, case: str, dtype: torch.dtype) -> None:
    problem = attention_problem(name, CUDA, dtype)
    if problem in ABSENT:
        pytest.skip(problem)
    if name == "varlen" and CASES[case].options.softcap is not None:
        pytest.skip("it has no softcap, and such models are refused")
    backend = make_attention(name, CUDA, dtype, 100)
    for block_size in (1, 16, 256):
        error = largest_error(replace(CASES[case], block_size=block_size, dtype=dtype), backend, CUDA)
        assert error <= 2 * TOLERANCE[dtype], block_size
