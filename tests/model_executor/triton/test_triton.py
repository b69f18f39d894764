"""The Triton kernels without a GPU: in Triton's interpreter, and compiled ahead of time.

The interpreter has to be chosen before the kernels are imported, and the compiler must not be the interpreter: each has its own process.
They take minutes, so they begin when tests do, one after another, beside other tests (`conftest.py`).
"""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from tests.model_executor.triton.jobs import COMPILED, INTERPRETED, PRODUCTS
from tests.model_executor.triton.processes import Processes, has_triton

pytestmark = pytest.mark.skipif(not has_triton(), reason="triton is not installed")

LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program may take on all chips from 8.0 on: 8.6, 8.9 and 12.0 have no more."""
SHARED_MEMORY = {80: LEAST_SHARED_MEMORY, 89: LEAST_SHARED_MEMORY, 90: 227 * 1024, 100: 227 * 1024, 120: LEAST_SHARED_MEMORY}
"""By compute capability; what runs on 8.0 runs on 8.6 as well."""


def no_interpreter() -> str:
    """Why Triton's interpreter does not work here, or nothing."""
    triton, numpy = (tuple(int(part) for part in version(name).split(".")[:2]) for name in ("triton", "numpy"))
    if triton < (3, 9) and numpy >= (2, 4):
        return f"the interpreter of triton {version('triton')} does not work with numpy {version('numpy')}"
    return ""


@pytest.mark.parametrize("job", ["launch"])
def test_launches_compile_and_no_batch_makes_them_compile_again(job: str, processes: Processes) -> None:
    done = processes.result(job)
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


@pytest.mark.parametrize("job", ["compile"])
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_compiled_ahead_of_time(job: str, capability: int, processes: Processes) -> None:
    done = processes.result(job)
    assert done.returncode == 0, done.stderr
    results = zip(COMPILED, json.loads(done.stdout), strict=True)
    found = {case: result for case, result in results if case.capability == capability}
    assert found
    if not all(found.values()):
        pytest.skip(f"this triton does not know sm_{capability}")
    for case, result in found.items():
        assert result["bytes"] > 0
        assert bool(result["fp8"]) == case.fp8, case
        assert result["one by one"] == 0, case
        assert result["shared"] <= SHARED_MEMORY[capability], case
        # The next tile of keys is on its way while one is computed; of several tokens with wide heads there is that much work.
        assert result["ahead"] >= 2 or case.kernel not in {"single", "split"}, case


@pytest.mark.parametrize("job", ["compile products"])
def test_products_compiled_ahead_of_time(job: str, processes: Processes) -> None:
    done = processes.result(job)
    assert done.returncode == 0, done.stderr
    found = {case: result for case, result in zip(PRODUCTS, json.loads(done.stdout), strict=True) if result is not None}
    assert {case.capability for case in found} >= {89, 90}
    for case, result in found.items():
        assert result["bytes"] > 0
        assert result["shared"] <= LEAST_SHARED_MEMORY, case
        assert bool(result["fp8"]) == (case.kernel == "product"), case
        assert result["one by one"] == 0, case


@pytest.mark.parametrize("job", INTERPRETED)
def test_in_the_interpreter(job: str, processes: Processes) -> None:
    if problem := no_interpreter():
        pytest.skip(problem)
    done = processes.result(job)
    assert done.returncode == 0, done.stdout + done.stderr
