"""Engines whose attention is Triton's, interpreted, against engines with torch's. Run by `test_triton.py`, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.attention import triton_kernels, triton_paged
from chatpaged.engine.model_executor.attention.triton_paged import triton_problem
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.kv_cache import KVCache
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.errors import InvalidRequestError
from tests.model_executor.harness import Arrival, greedy, make_engine, serve

CPU = torch.device("cpu")
NUM_TOKENS = 8
# They come while others are half way; the last two begin alike.
ARRIVALS = {
    "short": Arrival(list(range(20, 25))),
    "long": Arrival(list(range(30, 63)), step=1),
    "alike": Arrival([*range(30, 62), 99, 100, 101], step=5),
}


def answers(directory: Path, attention: str, dtype: str) -> tuple[str, dict[str, list[tuple[int, ...]]]]:
    """What code ran, and what it answered. The first two are read in chunks; the last finds blocks of the second."""
    with make_engine(directory, attention=attention, dtype=dtype, kv_blocks=20, max_num_seqs=4, max_num_batched_tokens=24) as engine:
        done = serve(engine, ARRIVALS, greedy(NUM_TOKENS))
        assert done["alike"].cached_tokens == 32
        return str(engine.code.with_reason), {name: answer.token_ids for name, answer in done.items()}


@pytest.mark.parametrize(
    ("family", "dtype", "code"),
    [
        ("gpt_oss", "float32", "transformers"),  # sinks and windows
        ("llama", "float32", "torch decoder"),
        ("gemma2", "float32", "torch decoder"),  # softcap and windows
    ],
)
def test_same_answers(family: str, dtype: str, code: str, model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "_MIN_CHUNK", 16)  # several for each sequence
    directory = model_directory(family)
    told, ours = answers(directory, "triton", dtype)
    assert told.startswith(f"{code}, Triton attention · {dtype} (")
    assert told.endswith("--attention triton was asked for)")
    told, theirs = answers(directory, "torch", dtype)
    assert told.startswith(f"{code} · {dtype} (")
    assert ours == theirs


def test_what_is_told_before_loading(model_directory: Callable[[str], Path]) -> None:
    directory = model_directory("gpt_oss")
    told = describe(directory, EngineConfig(attention="triton", dtype="bfloat16"))
    assert (told["attention"], told["attention_reason"]) == ("triton_paged", "--attention triton was asked for")
    runner = ModelRunner.load(directory, EngineConfig(attention="triton", dtype="bfloat16", kv_blocks=4))
    assert isinstance(runner._kv_cache, KVCache)
    other = ModelRunner.load(directory, EngineConfig(attention="torch", dtype="bfloat16", kv_blocks=4))
    assert runner.fingerprint != other.fingerprint  # its arithmetic is another, so its keys and values are


def test_what_it_cannot_do_is_refused(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: str) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            LLMEngine.from_pretrained(model_directory("llama"), EngineConfig(attention="triton", device="cpu", **options))  # type: ignore[arg-type]
        return str(caught.value)

    assert refused(dtype="float64") == "--attention triton cannot be had: its kernels have no float64"
    assert refused(quantize="int8").startswith("--quantize int8 needs the native dense decoder, which cannot run this: --attention triton")
    monkeypatch.setattr(triton_paged, "MAX_HEAD_DIM", 4)
    assert refused() == "--attention triton cannot be had: heads of 8 dimensions, more than 4"


def test_kernels_that_do_not_run_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    assert triton_problem(CPU, torch.float16) is None
    triton_paged._trial.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(triton_kernels, "write", fail)
        assert triton_problem(CPU, torch.float16) == "its kernels do not run here: Failed to find C compiler."
        triton_paged._trial.cache_clear()
        patch.setattr(triton_kernels, "write", lambda *_: None)
        assert (triton_problem(CPU, torch.float16) or "").startswith("its kernels are wrong here, by ")
    triton_paged._trial.cache_clear()
