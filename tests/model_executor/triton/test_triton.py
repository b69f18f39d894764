"""The Triton kernels without a GPU: in Triton's interpreter, and compiled ahead of time.

The interpreter has to be chosen before the kernels are imported, and the compiler must not be the interpreter: each has its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.model_executor.triton.compile_cases import Case, ProductCase

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
SHARED_MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes that a program may take, by compute capability."""
LEAST_SHARED_MEMORY = 99 * 1024
"""Of all chips from 8.0 on: 8.6, 8.9 and 12.0 have no more."""


def run(arguments: list[str], tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the root of the repository, with a cache of compiled kernels of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def no_interpreter() -> str:
    """Why Triton's interpreter does not work here, or nothing."""
    triton, numpy = (tuple(int(part) for part in version(name).split(".")[:2]) for name in ("triton", "numpy"))
    if triton < (3, 9) and numpy >= (2, 4):
        return f"the interpreter of triton {version('triton')} does not work with numpy {version('numpy')}"
    return ""


@pytest.mark.parametrize("name", ["interpreted_attention.py", "interpreted_engine.py", "interpreted_fused.py", "interpreted_fp8*.py"])
def test_in_the_interpreter(name: str, tmp_path: Path) -> None:
    if problem := no_interpreter():
        pytest.skip(problem)
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, sorted(HERE.glob(name)))], tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr


# Each kernel for each chip, and each entry of the tables of launch parameters.
COMPILED = [
    Case("write", 80),
    Case("combine", 80, sinks=True),
    Case("single", 80),
    Case("split", 80, "fp32", 64, window=100),
    Case("several", 80, "bf16", 128, window=100, softcap=True, sinks=True),
    Case("several", 80, "fp32", 128),
    Case("write", 89, fp8=True),
    Case("heads head", 89, fp8=True),
    Case("split", 89, "fp16", 128, fp8=True),
    Case("several", 89, "fp16", 256, fp8=True, window=100, softcap=True, sinks=True),
    Case("write", 90),
    Case("combine", 90),
    Case("split", 90, "fp16", 256, groups=3, sinks=True),
    Case("several", 90, "bf16", 128, window=100, softcap=True, sinks=True),
    Case("several", 90, "fp16", 256),
    Case("residual", 90),
    Case("gelu_tanh", 90, "fp16", width=1000),
    Case("heads none", 90, "fp16", 80),
    Case("heads full", 90, wide=True),
    Case("single", 90, fp8=True),
    Case("several", 90, fp8=True),
    Case("write", 100),
    Case("combine", 100),
    Case("split", 100, groups=8),
    Case("several", 100, "bf16", 80, groups=3),
    Case("residual", 100, "fp16", width=2880),
    Case("silu", 100),
    Case("heads head", 100, head_dim=256, wide=True),
    Case("heads full", 100),
    Case("residual", 80, wide=True),
    Case("residual", 80, "fp32", width=32_768),
    Case("silu", 80, width=14_336),
    Case("heads none", 80, "fp32"),
    Case("heads head", 80),
    Case("several", 100, fp8=True),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], dict[Case, dict[str, int] | None]]:
    """What came of all cases; None where the chip is not known."""

    @cache
    def compile_all() -> dict[Case, dict[str, int] | None]:
        cases = json.dumps([asdict(case) for case in COMPILED])
        done = run(["-m", "tests.model_executor.triton.compile_kernels", cases], tmp_path_factory.mktemp("kernels"))
        assert done.returncode == 0, done.stderr
        return dict(zip(COMPILED, json.loads(done.stdout), strict=True))

    return compile_all


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_compiled_ahead_of_time(capability: int, compiled: Callable[[], dict[Case, dict[str, int] | None]]) -> None:
    found = {case: result for case, result in compiled().items() if case.capability == capability}
    if not all(found.values()):
        pytest.skip(f"this triton does not know sm_{capability}")
    for case, result in found.items():
        assert result is not None
        assert result["bytes"] > 0
        assert bool(result["fp8"]) == case.fp8, case
        assert result["shared"] <= min(SHARED_MEMORY[capability], LEAST_SHARED_MEMORY), case


# Each entry of the table of launch parameters.
PRODUCTS = [
    *(ProductCase(89, rows, dtype) for rows, dtype in ((20, "fp16"), (64, "bf16"), (1, "fp32"), (99, "fp32"))),
    ProductCase(89, 1, kernel="sum"),
    *(ProductCase(90, rows) for rows in (1, 128, 500)),
    ProductCase(100, 500),
]


def test_products_compiled_ahead_of_time(tmp_path: Path) -> None:
    done = run(["-m", "tests.model_executor.triton.compile_products", json.dumps([asdict(case) for case in PRODUCTS])], tmp_path)
    assert done.returncode == 0, done.stderr
    found = {case: result for case, result in zip(PRODUCTS, json.loads(done.stdout), strict=True) if result is not None}
    assert {case.capability for case in found} >= {89, 90}
    for case, result in found.items():
        assert result["bytes"] > 0
        assert result["shared"] <= LEAST_SHARED_MEMORY, case
        assert bool(result["fp8"]) == (case.kernel == "product"), case


def test_launches_compile_and_no_batch_makes_them_compile_again(tmp_path: Path) -> None:
    done = run(["-m", "tests.model_executor.triton.launch_kernels"], tmp_path)
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout)
    # For sequences of one token in one chunk and in several, and for those of several tokens; of two layers. Of the dense decoder,
    # what comes before the first layer, and what comes after products.
    assert {name: versions for name, (_, versions) in launched.items()} == {
        "attention_kernel": 3,
        "combine_kernel": 1,
        "write_kernel": 1,
        "residual_kernel": 2,
        "activation_kernel": 1,
        "heads_kernel": 1,
    }
    assert launched["write_kernel"][0] == launched["heads_kernel"][0] == launched["activation_kernel"][0] == 2 * 14
    assert launched["residual_kernel"][0] == 5 * 14
