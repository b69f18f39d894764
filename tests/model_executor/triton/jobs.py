"""What `test_triton.py` runs in processes of its own. Apart from it, as it is started when tests are collected."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.model_executor.triton.compile_cases import Case, ProductCase
from tests.model_executor.triton.processes import Job

HERE = Path(__file__).parent

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
    Case("split", 120),
    Case("several", 120, "bf16", 128),
]

# Each entry of the table of launch parameters.
PRODUCTS = [
    *(ProductCase(89, rows, dtype) for rows, dtype in ((20, "fp16"), (64, "bf16"), (1, "fp32"), (99, "fp32"))),
    ProductCase(89, 1, kernel="sum"),
    *(ProductCase(90, rows) for rows in (1, 128, 500)),
    ProductCase(100, 500),
]


def _interpreted(pattern: str) -> Job:
    files = [str(path) for path in sorted(HERE.glob(pattern))]
    return Job(("-m", "pytest", "-q", "-p", "no:cacheprovider", *files), {"TRITON_INTERPRET": "1"})


def _compiled(module: str, cases: list[Case] | list[ProductCase]) -> Job:
    return Job(("-m", f"tests.model_executor.triton.{module}", json.dumps([asdict(case) for case in cases])))


INTERPRETED = ("attention", "engine", "fused", "fp8")
JOBS = {
    "compile": _compiled("compile_kernels", COMPILED),
    "compile products": _compiled("compile_products", PRODUCTS),
    "launch": Job(("-m", "tests.model_executor.triton.launch_kernels")),
    **{name: _interpreted(f"interpreted_{name}*.py") for name in INTERPRETED},
}
