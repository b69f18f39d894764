"""Engines with keys and values of 8 bits, interpreted: shared, copied, sent down and fetched again. Run by `test_triton.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chatpaged import paths
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.attention import trial, triton_paged
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache
from chatpaged.engine.model_executor.graphs.model_graphs import ModelGraphs
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.errors import InvalidRequestError
from tests.model_executor.graphs.recording import Repeats
from tests.model_executor.harness import Arrival, greedy, make_engine, serve
from tests.model_executor.test_tiers import preempt, push_out, rows, running

NUM_TOKENS = 3
PROMPT = list(range(20, 39))
OPTIONS = {"attention": "triton", "kv_dtype": "fp8", "dtype": "float32", "kv_blocks": 16}
ModelDirectory = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "blocks_dir", lambda: tmp_path / "blocks")


def test_alone_in_chunks_and_beside_others(model_directory: ModelDirectory) -> None:
    directory = model_directory("llama")
    arrivals = {"long": Arrival(PROMPT), "alike": Arrival([*PROMPT[:17], 99], step=3)}
    alone = {}
    for name, arrival in arrivals.items():
        with make_engine(directory, **OPTIONS) as engine:
            alone[name] = engine.generate(arrival.prompt, greedy(NUM_TOKENS)).completions[0].token_ids
            assert engine.code.kv == "fp8"
    with make_engine(directory, **OPTIONS, max_num_seqs=4, max_num_batched_tokens=12) as engine:
        done = serve(engine, arrivals, greedy(NUM_TOKENS))
    assert done["alike"].cached_tokens == 16
    assert {name: answer.token_ids for name, answer in done.items()} == {name: [tokens] for name, tokens in alone.items()}


def test_answers_that_share_a_prompt_copy_before_they_write(model_directory: ModelDirectory) -> None:
    with make_engine(model_directory("llama"), **OPTIONS) as engine:
        (alone,) = engine.generate(PROMPT, greedy(NUM_TOKENS)).completions
    with make_engine(model_directory("llama"), **OPTIONS) as engine:
        both = engine.generate(PROMPT, greedy(NUM_TOKENS, n=2)).completions
        assert engine.snapshot().counters["copies"] >= 1
    assert [completion.token_ids for completion in both] == [alone.token_ids] * 2


@pytest.mark.parametrize("lower", [{"swap_space": 2**24}, {"disk_cache": 2**24}], ids=["host", "disk"])
def test_blocks_come_back_byte_for_byte(lower: dict[str, int], model_directory: ModelDirectory) -> None:
    with make_engine(model_directory("llama"), **OPTIONS) as engine:
        expected = engine.generate(PROMPT, greedy(NUM_TOKENS + 2)).completions[0].token_ids
    with make_engine(model_directory("llama"), **OPTIONS, **lower) as engine:
        engine.add_request(PROMPT, greedy(NUM_TOKENS + 2), request_id="r")
        while not (engine.scheduler.running and running(engine).num_computed_tokens == len(PROMPT) + 1):
            engine.step()
        sequence = running(engine)
        full = sequence.num_computed_tokens // 16
        before = rows(engine)[list(engine.scheduler.blocks.table(sequence))[:full]].clone()
        preempt(engine, sequence)
        push_out(engine)
        engine.step()
        after = rows(engine)[list(engine.scheduler.blocks.table(sequence))[:full]].clone()
        while engine.has_unfinished:
            engine.step()
        assert engine.snapshot().counters["swap_in"] == full
    assert torch.equal(before, after)
    assert bool((before[:, -16:] != 0).any())  # scales are part of a block
    assert sequence.token_ids[len(PROMPT) :] == list(expected)


def test_what_is_told_is_what_runs(model_directory: ModelDirectory) -> None:
    directory = model_directory("llama")
    told = describe(directory, EngineConfig(attention="triton", kv_dtype="fp8", device="cpu"))
    with make_engine(directory, **OPTIONS) as engine:
        runner = engine._executor
        assert isinstance(runner, ModelRunner)
        assert isinstance(runner._kv_cache, Fp8KVCache)
        assert (told["kv_dtype"], told["kv_bytes_per_block"]) == (runner.facts["kv"], runner.block_bytes)
        assert told["kv_dtype"] == "fp8"
        with make_engine(directory, **{**OPTIONS, "kv_dtype": "auto"}) as other:
            assert isinstance(other._executor, ModelRunner)
            assert runner.fingerprint != other._executor.fingerprint
            assert runner.block_bytes < other._executor.block_bytes / 2


def test_weights_of_8_bits(model_directory: ModelDirectory) -> None:
    directory = model_directory("llama")
    told = describe(directory, EngineConfig(attention="triton", quantize="fp8", device="cpu"))
    assert told["weights"] == "fp8"
    options = {**OPTIONS, "quantize": "fp8"}
    with (
        make_engine(directory, **OPTIONS) as exact,
        make_engine(directory, **options) as engine,
        make_engine(directory, **options) as again,
    ):
        assert (exact.code.weights, engine.code.weights, engine.code.kv) == ("float32", "fp8", "fp8")
        assert engine.code.weight_bytes < exact.code.weight_bytes * 0.6
        runners = [each._executor for each in (exact, engine, again)]
        assert [isinstance(runner, ModelRunner) for runner in runners] == [True] * 3
        prints = [runner.fingerprint for runner in runners if isinstance(runner, ModelRunner)]
        assert prints[0] != prints[1] == prints[2]
        answers = [each.generate(PROMPT, greedy(NUM_TOKENS)).completions[0].token_ids for each in (engine, again)]
    assert answers[0] == answers[1]
    assert len(answers[0]) == NUM_TOKENS


def test_steps_padded_to_the_size_of_a_graph(model_directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model_directory("llama")
    options = {**OPTIONS, "quantize": "fp8", "max_num_seqs": 3, "max_num_batched_tokens": 24}
    arrivals = {"short": Arrival(PROMPT[:5]), "long": Arrival(PROMPT, step=1)}
    with make_engine(directory, **options) as engine:
        expected = {name: answer.token_ids for name, answer in serve(engine, arrivals, greedy(NUM_TOKENS)).items()}
    monkeypatch.setattr(ModelGraphs, "choose", lambda *_, **__: ModelGraphs(Repeats))
    with make_engine(directory, **options) as engine:
        padded = {name: answer.token_ids for name, answer in serve(engine, arrivals, greedy(NUM_TOKENS)).items()}
        counters = engine.snapshot().counters
    assert counters["graph_steps"] > NUM_TOKENS
    assert counters["eager_steps"] == 0
    assert padded == expected


def test_what_it_cannot_do_is_refused(model_directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: str) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            LLMEngine.from_pretrained(model_directory("llama"), EngineConfig(**{"device": "cpu", "kv_dtype": "fp8", **options}))  # type: ignore[arg-type]
        return str(caught.value)

    assert refused() == "--kv-dtype fp8 needs CUDA, this is cpu: use --kv-dtype int8"
    assert refused(attention="torch") == "--kv-dtype fp8 needs Triton's attention, but --attention torch was asked for"
    assert (
        refused(attention="triton", dtype="float64")
        == "--attention triton cannot be had: its kernels have no float64; use --attention auto"
    )
    other = {"kv_dtype": "auto", "quantize": "fp8"}
    assert refused(**other) == "--quantize fp8 needs CUDA, this is cpu: use --quantize int8"
    triton_paged._trial.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(trial, "fp8_rows", lambda tensor: (tensor + 1, torch.ones(1)))
        assert refused(attention="triton").startswith("--kv-dtype fp8 cannot be had: its kernels are wrong here, by ")
    triton_paged._trial.cache_clear()
