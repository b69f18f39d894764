"""Engines whose steps are replayed answer as others do, and say how their steps were launched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.graphs.model_graphs import ModelGraphs
from chatpaged.engine.model_executor.models.step_model import TorchStepModel
from chatpaged.engine.sampling_params import SamplingParams
from tests.model_executor.graphs.recording import Recordings, StaticAttention
from tests.model_executor.harness import Answer, Arrival, greedy, make_engine, serve

ARRIVALS = {
    "short": Arrival(list(range(20, 25))),
    "long": Arrival(list(range(30, 63)), step=1),
    "alike": Arrival([*range(30, 62), 99, 100, 101], step=5),
    "late": Arrival(list(range(70, 79)), step=12),
}
NUM_TOKENS = 14
Directory = Callable[[str], Path]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Recordings]:
    """Gives models of torch operations graphs that need no GPU, with attention that can be recorded. Returns what has recorded them."""
    makers: list[Recordings] = []

    def choose(*_: object, **__: object) -> ModelGraphs:
        def make() -> Recordings:
            makers.append(Recordings())
            return makers[-1]

        return ModelGraphs(make)

    def static(_: TorchStepModel, rows: StepRows, kv_cache: Any) -> StaticAttention:
        return StaticAttention(rows, kv_cache)

    monkeypatch.setattr(ModelGraphs, "choose", choose)
    monkeypatch.setattr(TorchStepModel, "_attention_of", static)
    return makers


def run(directory: Path, params: SamplingParams, **options: Any) -> tuple[dict[str, Answer], dict[str, int], str]:
    with make_engine(
        directory, **({"max_num_seqs": 4, "max_num_batched_tokens": 24, "kv_blocks": 40, "block_size": 4} | options)
    ) as engine:
        answers = serve(engine, ARRIVALS, params)
        return answers, engine.snapshot().counters, str(engine.code.with_reason)


@pytest.mark.parametrize("code_path", ["auto", "universal"])
@pytest.mark.parametrize("n", [1, 3])
def test_same_answers(
    code_path: str, n: int, model_directory: Directory, graphs: list[Recordings], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = model_directory("gemma2")
    answers, counters, code = run(directory, greedy(NUM_TOKENS, n=n), code_path=code_path)
    assert ", 4 CUDA graphs" in code.replace(f"{len(graphs[0].graphs)} CUDA", "4 CUDA")
    assert counters["graph_steps"] == graphs[0].replays > NUM_TOKENS
    assert counters["graph_padding"] > 0
    assert counters["copies"] > 0 or n == 1
    monkeypatch.undo()
    plain, without, code = run(directory, greedy(NUM_TOKENS, n=n), code_path=code_path)
    assert (without["graph_steps"], without["graph_padding"], without["eager_steps"]) == (0, 0, 0)
    assert "CUDA graphs" not in code
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: answer.token_ids for name, answer in plain.items()}
    assert [answer.cached_tokens for answer in answers.values()] == [answer.cached_tokens for answer in plain.values()]


def test_same_answers_when_the_pool_is_short(model_directory: Directory, graphs: list[Recordings], monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"kv_blocks": 16, "swap_space": 10**6}
    answers, counters, _ = run(model_directory("llama"), greedy(NUM_TOKENS), **options)
    assert counters["preemptions"] > 0
    assert counters["swap_in"] > 0
    assert counters["graph_steps"] == graphs[0].replays
    monkeypatch.undo()
    plain, *_ = run(model_directory("llama"), greedy(NUM_TOKENS), **options)
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: answer.token_ids for name, answer in plain.items()}


def test_seeded_draws_are_the_same(model_directory: Directory, graphs: list[Recordings], monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
    answers, *_ = run(model_directory("qwen3"), params)
    monkeypatch.undo()
    plain, *_ = run(model_directory("qwen3"), params)
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: answer.token_ids for name, answer in plain.items()}


def test_steps_that_are_too_large_are_launched_as_they_are(
    model_directory: Directory, graphs: list[Recordings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatpaged.engine.model_executor.graphs.buckets.MOST_MIXED", 8)
    answers, counters, _ = run(model_directory("llama"), greedy(NUM_TOKENS))
    assert counters["eager_steps"] > 0
    assert counters["graph_steps"] > 0
    monkeypatch.undo()
    plain, *_ = run(model_directory("llama"), greedy(NUM_TOKENS))
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: answer.token_ids for name, answer in plain.items()}


def test_a_model_that_cannot_be_recorded_goes_on_without(model_directory: Directory, graphs: list[Recordings]) -> None:
    answers, counters, code = run(model_directory("gpt_oss"), greedy(4))
    assert len(graphs) == 1
    assert "CUDA graphs ·" not in code
    assert "no CUDA graphs: nonzero: operation not permitted when stream is capturing" in code
    assert counters["graph_steps"] == 0
    assert all(len(answer.token_ids[0]) == 4 for answer in answers.values())


def test_what_is_told_where_nobody_records(model_directory: Directory) -> None:
    cuda = torch.device("cuda")
    assert ModelGraphs.choose(EngineConfig(), torch.device("cpu"), capturable=True).reason == ""
    assert (
        ModelGraphs.choose(EngineConfig(enforce_eager=True), cuda, capturable=True).reason
        == "no CUDA graphs: --enforce-eager was asked for"
    )
    assert ModelGraphs.choose(EngineConfig(), cuda, capturable=False).reason == "no CUDA graphs: they need Triton's attention"
    with LLMEngine.from_pretrained(
        model_directory("llama"), EngineConfig(enforce_eager=True, device="cpu", kv_blocks=4, threads=1)
    ) as engine:
        assert "graphs" not in engine.code.with_reason
