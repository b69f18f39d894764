"""Engines whose attention is Triton's, interpreted, against engines with torch's. Run by `test_triton.py`, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.attention import triton_kernels, triton_paged
from chatpaged.engine.model_executor.attention.triton_paged import triton_problem
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.graphs.model_graphs import ModelGraphs
from chatpaged.engine.model_executor.kv_cache import KVCache
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models import fused_kernels, fused_ops
from chatpaged.errors import InvalidRequestError
from tests.model_executor.graphs.recording import Repeats
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
        ("llama", "float32", "fused torch decoder"),
        ("gemma2", "float32", "fused torch decoder"),  # softcap and windows
    ],
)
def test_same_answers(family: str, dtype: str, code: str, model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "_MIN_CHUNK", 16)  # several for each sequence
    directory = model_directory(family)
    told, ours = answers(directory, "triton", dtype)
    assert told.startswith(f"{code}, Triton attention · {dtype} (")
    assert told.endswith("--attention triton was asked for)")
    told, theirs = answers(directory, "torch", dtype)
    assert told.startswith(f"{code.removeprefix('fused ')} · {dtype} (")
    assert ours == theirs


def test_steps_padded_to_the_size_of_a_graph(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "_MIN_CHUNK", 16)
    directory = model_directory("llama")
    arrivals = {name: ARRIVALS[name] for name in ("short", "long")}
    options = {"attention": "triton", "dtype": "float32", "kv_blocks": 20, "max_num_seqs": 3, "max_num_batched_tokens": 24}
    with make_engine(directory, **options) as engine:
        expected = {name: answer.token_ids for name, answer in serve(engine, arrivals, greedy(4)).items()}
    monkeypatch.setattr(ModelGraphs, "choose", lambda *_, **__: ModelGraphs(Repeats))
    with make_engine(directory, **options) as engine:
        padded = {name: answer.token_ids for name, answer in serve(engine, arrivals, greedy(4)).items()}
        counters = engine.snapshot().counters
    assert counters["graph_steps"] > 4
    assert counters["graph_padding"] > 20
    assert counters["eager_steps"] == 0
    assert padded == expected


def test_what_is_told_before_loading(model_directory: Callable[[str], Path]) -> None:
    directory = model_directory("gpt_oss")
    told = describe(directory, EngineConfig(attention="triton", dtype="bfloat16"))
    assert (told["attention"], told["attention_reason"]) == ("triton_paged", "--attention triton was asked for")
    runner = ModelRunner.load(directory, EngineConfig(attention="triton", dtype="bfloat16", kv_blocks=4))
    assert isinstance(runner._kv_cache, KVCache)
    other = ModelRunner.load(directory, EngineConfig(attention="torch", dtype="bfloat16", kv_blocks=4))
    assert runner.fingerprint != other.fingerprint  # its arithmetic is another, so its keys and values are


def test_what_is_told_of_fused_operations(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(attention="triton", dtype="float16", kv_blocks=4)
    fused = ModelRunner.load(model_directory("llama"), config)
    told = describe(model_directory("llama"), config)
    assert told["code_path"] == fused.code.name == fused.facts["code"] == "fused torch decoder, Triton attention"
    assert told["code_reason"] == "its arithmetic is float32, not float16"
    monkeypatch.setattr(fused_ops, "_trial", lambda *_: "they are wrong here, by 3")
    plain = ModelRunner.load(model_directory("llama"), config)
    told = describe(model_directory("llama"), config)
    assert told["code_path"] == plain.code.name == "torch decoder, Triton attention"
    assert told["code_reason"] == "its arithmetic is float32, not float16; no fused kernels: they are wrong here, by 3"
    assert plain.code.reason.endswith("no fused kernels: they are wrong here, by 3")
    assert plain.fingerprint != fused.fingerprint
    assert plain.code.weight_bytes == fused.code.weight_bytes


def test_what_it_cannot_do_is_refused(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: str) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            LLMEngine.from_pretrained(model_directory("llama"), EngineConfig(attention="triton", device="cpu", **options))  # type: ignore[arg-type]
        return str(caught.value)

    assert refused(dtype="float64") == "--attention triton cannot be had: its kernels have no float64; use --attention auto"
    assert refused(quantize="int8").startswith("--quantize int8 needs the native dense decoder, which cannot run this: --attention triton")
    monkeypatch.setattr(triton_paged, "MAX_HEAD_DIM", 4)
    assert refused() == "--attention triton cannot be had: heads of 8 dimensions, more than 4; use --attention auto"


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


def test_kernels_are_tried_with_heads_as_wide_as_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old chips have too little shared memory for wide ones."""
    write = triton_kernels.write

    def limited(keys: torch.Tensor, *others: Any) -> None:
        if keys.shape[-1] > 16:
            raise RuntimeError("out of resource: shared memory, Required: 98304, Hardware limit: 65536.")
        write(keys, *others)

    triton_paged._trial.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(triton_kernels, "write", limited)
        assert triton_problem(CPU, torch.float32) is None
        assert "out of resource: shared memory" in (triton_problem(CPU, torch.float32, 32) or "")
    triton_paged._trial.cache_clear()


def test_fused_kernels_that_do_not_run_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no device\nnone at all")

    assert fused_ops.fused_problem(CPU, torch.bfloat16, 32_768) is None
    assert fused_ops.fused_problem(CPU, torch.bfloat16, 32_769) == "a hidden size of 32769, more than 32768"
    store = fused_kernels.store_heads
    for name, stand_in, problem in (
        ("activate", fail, "they do not run here: no device"),
        ("activate", lambda gate_up, _: gate_up[:, ::2], "they are wrong here, by "),
        ("add_and_norm", lambda x, *_: (x, x), "they are wrong here, by "),
        ("store_heads", lambda *tensors, **options: store(*tensors, **options | {"rotation": None}), "they are wrong here, by "),
    ):
        fused_ops._trial.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(fused_kernels, name, stand_in)
            assert (fused_ops.fused_problem(CPU, torch.bfloat16, 64) or "").startswith(problem)
    fused_ops._trial.cache_clear()
