"""Torch's own attention is tried where it is doubted, and done without where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention import torch_check
from chatpaged.engine.model_executor.attention.choice import make_attention
from chatpaged.engine.model_executor.attention.torch_check import torch_problem
from chatpaged.engine.model_executor.attention.torch_paged import TorchBackend
from chatpaged.engine.model_executor.describe import describe
from tests.model_executor.attention_bench import CASES, CPU, TOLERANCE, largest_error
from tests.model_executor.harness import Arrival, greedy, make_engine, serve

Attention = Callable[..., torch.Tensor]
SDPA: Attention = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _doubted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As MPS is, so is this CPU."""
    monkeypatch.setattr(torch_check, "_CHECKED_DEVICES", frozenset({"cpu"}))
    torch_check._check.cache_clear()
    yield
    torch_check._check.cache_clear()


def raising(*_: Any, **__: Any) -> torch.Tensor:
    raise RuntimeError("Unsupported type.\nMore about it.")


def leaking(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Later tokens are seen."""
    return SDPA(query, key, value, **options | {"is_causal": False})


def unmasked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Hidden keys are seen."""
    return SDPA(query, key, value, **options | {"attn_mask": None})


def shortened(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """The last keys are not seen, where their number is no multiple of 16."""
    attended = SDPA(query, key, value, **options)
    return attended if key.shape[2] % 16 == 0 else attended * 0.5


def undefined(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.full_like(SDPA(query, key, value, **options), torch.nan)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_right_is_used(dtype: torch.dtype) -> None:
    assert torch_problem(CPU, dtype) is None
    assert make_attention("torch", CPU, dtype, 100) == TorchBackend(plain=False)


@pytest.mark.parametrize("wrong", [raising, leaking, unmasked, shortened, undefined], ids=lambda wrong: wrong.__name__)
def test_what_is_wrong_is_found_out_and_done_without(wrong: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong)
    problem = torch_problem(CPU, torch.bfloat16) or ""
    assert problem == "torch's own attention does not run here: Unsupported type." or problem.startswith(
        "torch's own attention is wrong here, by "
    )
    assert ("does not run" in problem) == (wrong is raising)
    backend = make_attention("torch", CPU, torch.bfloat16, 100)
    assert backend == TorchBackend(plain=True)
    assert not backend.capturable
    for name in ("plain", "window 5", "all"):
        assert largest_error(CASES[name], backend) <= TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("attention", ["auto", "torch"])
def test_whole_engines(attention: str, model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"attention": attention, "dtype": "float64", "code_path": "universal"}
    before = "--attention torch was asked for; " if attention == "torch" else ""

    def run() -> tuple[str, list[tuple[int, ...]]]:
        told = describe(model_directory("llama"), EngineConfig(**options))
        assert told["attention"] == "torch_paged"
        with make_engine(model_directory("llama"), kv_blocks=8, **options) as engine:
            assert told["attention_reason"] in engine.code.reason
            answer = serve(engine, {"a": Arrival(list(range(20, 41)))}, greedy(6))["a"]
            return told["attention_reason"], answer.token_ids

    reason, right = run()
    assert reason == f"{before}torch's own attention is right here"
    torch_check._check.cache_clear()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", undefined)
    reason, ours = run()
    assert reason == f"{before}torch's own attention is wrong here, by inf; matrix products and a softmax instead"
    assert ours == right


def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_check, "_CHECKED_DEVICES", frozenset({"mps"}))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", raising)
    assert torch_problem(CPU, torch.float16) is None
    assert torch_check.is_doubted(torch.device("mps"))
