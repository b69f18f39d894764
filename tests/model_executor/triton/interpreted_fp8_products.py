"""Products with weights of 8 bits in Triton's interpreter. Run by `test_triton.py`, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.fp8_numbers import fp8_rows
from chatpaged.engine.model_executor.models import fp8_matrix
from chatpaged.engine.model_executor.models import fp8_product_kernels as kernels
from chatpaged.engine.model_executor.models.dense import load_dense_model
from chatpaged.engine.model_executor.models.dense_config import NotDenseError
from chatpaged.engine.model_executor.models.fp8_matrix import Fp8Matrix, fp8_matrix_problem
from chatpaged.engine.model_executor.models.fp8_product_kernels import Launch, choose_launch
from tests.model_executor.dense_cases import save_case
from tests.model_executor.triton.interpreted_fused import logits

CPU = torch.device("cpu")
SMALL = Launch(rows=16, outputs=16, inputs=16, warps=4, stages=2)
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(rows: int, outputs: int, inputs: int, dtype: torch.dtype, launch: Launch | None = None, *, bias: bool = True) -> float:
    """How far a product is from its formula, as a part of its largest number."""
    x, weights, added = (numbers(seed, *shape).to(dtype) for seed, shape in enumerate(((rows, inputs), (outputs, inputs), (outputs,))))
    weights[0] = 0
    matrix = Fp8Matrix.of(weights)
    result = kernels.product(x, matrix.codes, matrix.scales, added if bias else None, launch)
    assert (result.dtype, result.shape) == (dtype, (rows, outputs))
    expected = x.double() @ matrix.numbers().double().T + (added.double() if bias else 0)
    return float((result.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("parts", "bias"), [(1, True), (1, False), (4, True), (2, False)])
def test_equals_the_formula(dtype: torch.dtype, parts: int, bias: bool) -> None:
    assert error(21, 37, 90, dtype, replace(SMALL, parts=parts), bias=bias) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("rows", "parts"), [(1, 2), (17, 4), (64, 4)])
def test_chosen_launches(rows: int, parts: int) -> None:
    assert choose_launch(rows, 40, 1040, 2).parts == parts
    assert error(rows, 40, 1040, torch.float16) <= TOLERANCE[torch.float16]
    assert error(rows, 40, 200, torch.float32) <= TOLERANCE[torch.float32]


def test_more_parts_than_there_are_tiles() -> None:
    assert error(3, 16, 40, torch.float32, replace(SMALL, parts=8)) <= TOLERANCE[torch.float32]


def test_launches_follow_from_shapes() -> None:
    assert choose_launch(1, 4096, 4096, 2).parts * 4096 // 32 >= 256
    assert choose_launch(2048, 4096, 4096, 2).parts == 1
    for rows in (1, 16, 17, 64, 128, 129, 5000):
        for width in (16, 512, 8192):
            for itemsize in (2, 4):
                launch = choose_launch(rows, width, width, itemsize)
                assert launch.parts == 1 or width // launch.parts >= 2 * launch.inputs
                assert launch.parts * launch.rows <= 512


def test_a_row_is_the_same_to_the_bit_beside_others_of_the_same_launch() -> None:
    x, matrix = numbers(1, 16, 300).half(), Fp8Matrix.of(numbers(2, 24, 300))
    together = matrix.product(x, None)
    assert torch.equal(matrix.product(x[3:5], None), together[3:5])


def test_views_and_no_rows() -> None:
    wide, matrix = numbers(1, 5, 128), Fp8Matrix.of(numbers(2, 16, 64))
    assert torch.equal(matrix.product(wide[:, 64:], None), matrix.product(wide[:, 64:].contiguous(), None))
    assert torch.equal(matrix.product(wide.T[:64, :1].T, None), matrix.product(wide[:1, :64], None))
    assert matrix.product(wide[:0, :64], None).shape == (0, 16)


def test_what_a_matrix_takes_and_loses() -> None:
    weights = numbers(1, 64, 256).bfloat16()
    matrix = Fp8Matrix.of(weights)
    assert matrix.nbytes == 64 * 256 + 64 * 4
    codes, scales = fp8_rows(weights)
    assert torch.equal(matrix.codes.view(torch.float8_e4m3fn).float(), codes.float())
    assert torch.equal(matrix.scales, scales[:, 0])
    assert float((matrix.numbers() - weights.float()).abs().max() / weights.float().abs().max()) < 0.04  # half a step: 1 / 28


@pytest.mark.parametrize("name", ["qwen3", "gemma2-biases"])
def test_a_model_is_that_of_the_rounded_matrices(name: str, tmp_path: Path) -> None:
    directory = save_case(name, tmp_path)
    model = load_dense_model(directory, torch.float32, CPU, None, fp8=True)
    found = logits(model, torch.float32, TorchPagedAttention)
    exact = load_dense_model(directory, torch.float32, CPU, None)
    assert model.weight_bytes < exact.weight_bytes / 2
    unrounded = logits(exact, torch.float32, TorchPagedAttention)
    for rounded, layer in zip(model._weights.layers, exact._weights.layers, strict=True):
        for matrix in ("qkv", "o", "gate_up", "down"):
            codes, scales = getattr(rounded, matrix), getattr(rounded, f"{matrix}_scales")
            getattr(layer, matrix).copy_(Fp8Matrix(codes, scales).numbers())
    expected = logits(exact, torch.float32, TorchPagedAttention)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=float(expected.std()) * 1e-5)
    assert 0.001 < float((found - unrounded).square().mean().sqrt() / unrounded.std()) < 0.2


def test_damaged_weights_are_found_out(tmp_path: Path) -> None:
    directory = save_case("qwen3", tmp_path)
    model = load_dense_model(directory, torch.float32, CPU, None, fp8=True)
    layer = model._weights.layers[0]
    weights = torch.ones(layer.o.shape)
    weights[3, 4] = torch.nan
    model._weights.layers[0] = replace(layer, o=Fp8Matrix.of(weights).codes)
    with pytest.raises(NotDenseError, match="computes no numbers"):
        model.geometry()


def test_kernels_that_do_not_run_or_are_wrong_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def problem_with(product: Callable[..., torch.Tensor]) -> str:
        fp8_matrix._trial.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "product", product)
            return fp8_matrix_problem(CPU, torch.float16) or ""

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    right = kernels.product
    assert fp8_matrix_problem(CPU, torch.float64) == "its kernels have no float64"
    assert problem_with(right) == ""
    assert problem_with(fail) == "its kernels do not run here: Failed to find C compiler."
    assert problem_with(lambda x, codes, scales, bias: right(x, codes, scales * 1.05, bias)).startswith(
        "its kernels are wrong here, by 0.0"
    )
    fp8_matrix._trial.cache_clear()
