"""Answers of the engine, bit for bit the same whatever is computed beside them: the default way of running a dense model on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.outputs import Completion
from chatpaged.engine.sampling_params import SamplingParams
from tests.model_executor.tiny_models import FAMILIES, OTHER_FAMILIES, SPECIAL_TOKENS, VOCAB_SIZE, save_model

CONTEXT = 320
NUM_TOKENS = 24
_WORDS = torch.randint(len(SPECIAL_TOKENS), VOCAB_SIZE, (900,), generator=torch.Generator().manual_seed(5)).tolist()
LONG: list[int] = _WORDS[:216]
"""Longer than the stretches of keys (128) that attention computes one by one."""
OTHERS: dict[str, list[int]] = {
    "short": _WORDS[300:303],
    "one chunk": _WORDS[310:438],
    "same beginning": [*LONG[:160], *_WORDS[500:540]],
    "same beginning, shorter": LONG[:131],
    "middle": _WORDS[550:620],
    "word": _WORDS[700:701],
    "far": _WORDS[600:880],
}
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=100, seed=7, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
KINDS = {"greedy": GREEDY, "seeded": SEEDED}
CASES: dict[str, dict[str, str]] = {
    "llama": {},
    "gemma3_text": {},
    "gemma2": {"quantize": "int4", "kv_dtype": "int8"},
    "qwen3": {"quantize": "none"},
    "mistral": {"quantize": "fp16"},
}
"""Families, and how they are stored other than by default."""

Request = tuple[Sequence[int], SamplingParams, int]
"""Prompt, how to answer, and the step at which it comes."""
Answer = tuple[tuple[int, ...], tuple[Any, ...]]
Place = Callable[[str], Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Directory of a family's tiny model, with a longer context than others."""
    root = tmp_path_factory.mktemp("invariance")

    def save(family: str) -> Path:
        config = (FAMILIES | OTHER_FAMILIES)[family]()
        config.max_position_embeddings = CONTEXT
        return save_model(config, root / family)

    return cache(save)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@dataclass
class Served:
    """What came of some requests.

    Attributes:
        answers: by name, one for each sample.
        cached: tokens of the prompt found in the prefix cache.
        preempted: how often a request gave way.
    """

    answers: dict[str, list[Answer]]
    cached: dict[str, int]
    preempted: dict[str, int]


def make_engine(directory: Path, case: str, **options: Any) -> LLMEngine:
    engine = LLMEngine.from_pretrained(
        directory, EngineConfig(**{"device": "cpu", "threads": 1, "kv_blocks": 200, **CASES.get(case, {}), **options})
    )
    runner = engine._executor
    assert isinstance(runner, ModelRunner)
    assert runner.path.kind == "native"
    with torch.inference_mode():
        runner._kv_cache.pool.fill_(255)  # reading what was never written shows
    return engine


def serve(engine: LLMEngine, requests: Mapping[str, Request]) -> Served:
    """Runs requests. Those that come later are more urgent: where memory is short, the others give way."""
    completions: dict[str, dict[int, Completion]] = {name: {} for name in requests}
    metrics: dict[str, Any] = {}
    step, last = 0, max(at for _, _, at in requests.values())
    while engine.has_unfinished or step <= last:
        for name, (prompt, params, at) in requests.items():
            if at == step:
                engine.add_request(prompt, params, request_id=name, priority=-at)
        for output in engine.step():
            completions[output.request_id] |= {completion.index: completion for completion in output.completions}
            metrics[output.request_id] = output.metrics
        engine.check_invariants()
        step += 1
    return Served(
        {name: [answer(found[index]) for index in sorted(found)] for name, found in completions.items()},
        {name: found.cached_tokens for name, found in metrics.items()},
        {name: found.preemptions for name, found in metrics.items()},
    )


def answer(completion: Completion) -> Answer:
    """Tokens, and the log-probabilities as they are: floats that have to be equal."""
    assert len(completion.logprobs) == completion.num_tokens == NUM_TOKENS
    return completion.token_ids, tuple((report.token_id, report.logprob, report.top) for report in completion.logprobs)


@cache
def alone(directory: Path, case: str, kind: str) -> Answer:
    """The answer to the long prompt, which is read at once."""
    with make_engine(directory, case) as engine:
        return serve(engine, {"long": (LONG, KINDS[kind], 0)}).answers["long"][0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
class TestSameBits:
    """The answer to the long prompt, in one situation after another."""

    def check(self, engine: LLMEngine, place: Place, case: str, kind: str, *, others: bool = True) -> Served:
        requests: dict[str, Request] = {"long": (LONG, KINDS[kind], 2)}
        if others:
            # Others sample in other ways, so that the same step does both.
            requests |= {name: (prompt, (GREEDY, SEEDED)[i % 2], i) for i, (name, prompt) in enumerate(OTHERS.items())}
        with engine:
            served = serve(engine, requests)
        assert served.answers["long"][0] == alone(place(case), case, kind)
        return served

    def test_beside_others(self, case: str, kind: str, place: Place) -> None:
        self.check(make_engine(place(case), case), place, case, kind)

    @pytest.mark.parametrize("budget", [7, 64])
    def test_in_chunks(self, budget: int, case: str, kind: str, place: Place) -> None:
        for others in (False, True):
            engine = make_engine(place(case), case, max_num_batched_tokens=budget, max_num_seqs=min(budget, 8))
            self.check(engine, place, case, kind, others=others)

    def test_with_two_threads(self, case: str, kind: str, place: Place) -> None:
        for others in (False, True):
            self.check(make_engine(place(case), case, threads=2), place, case, kind, others=others)

    def test_after_preemption(self, case: str, kind: str, place: Place) -> None:
        for caching in (False, True):
            engine = make_engine(place(case), case, kv_blocks=24, enable_prefix_caching=caching)
            served = self.check(engine, place, case, kind)
            assert served.preempted["long"] > 0

    def test_with_small_and_large_blocks(self, case: str, kind: str, place: Place) -> None:
        for block_size in (1, 8, 64, 256):
            self.check(make_engine(place(case), case, block_size=block_size, kv_blocks=3000 // block_size + 9), place, case, kind)

    def test_prefix_found_again(self, case: str, kind: str, place: Place) -> None:
        with make_engine(place(case), case) as engine:
            cold = serve(engine, {"long": (LONG, KINDS[kind], 0)})
            warm = serve(engine, {"long": (LONG, KINDS[kind], 0)})
            longer = serve(engine, {"long": (LONG, KINDS[kind], 0), "same beginning": (OTHERS["same beginning"], GREEDY, 0)})
        assert (cold.cached["long"], warm.cached["long"]) == (0, 208)
        assert longer.cached["same beginning"] == 160
        for served in (cold, warm, longer):
            assert served.answers["long"][0] == alone(place(case), case, kind)

    def test_samples_of_one_prompt(self, case: str, kind: str, place: Place) -> None:
        params = KINDS[kind]
        three = replace(params, n=3)
        with make_engine(place(case), case) as engine:
            served = serve(engine, {"three": (LONG, three, 0), "far": (OTHERS["far"], SEEDED, 0)})
        seeds = [None] * 3 if params.seed is None else [params.seed + i for i in range(3)]
        assert served.answers["three"][0] == alone(place(case), case, kind)
        for got, seed in zip(served.answers["three"], seeds, strict=True):
            with make_engine(place(case), case) as engine:
                assert serve(engine, {"one": (LONG, replace(params, seed=seed), 0)}).answers["one"] == [got]


def test_answers_are_not_trivial(place: Place) -> None:
    tokens, reports = alone(place("llama"), "llama", "greedy")
    assert len(set(tokens)) > 5
    assert all(report[0] == token for report, token in zip(reports, tokens, strict=True))


@pytest.mark.starter
def test_starter_model(starter_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The real model: a prompt of 200 tokens alone, beside seven others, in chunks, and from the prefix cache."""
    prompts = [[1 + (i * 7919 + j * 104729) % 40_000 for j in range(200 if i == 0 else 20 + 9 * i)] for i in range(8)]
    params = [replace((GREEDY, SEEDED)[i % 2], max_tokens=NUM_TOKENS) for i in range(8)]
    with make_engine(starter_model, "starter", kv_blocks=300) as engine:
        one_by_one = [serve(engine, {"one": (prompt, param, 0)}).answers["one"] for prompt, param in zip(prompts, params, strict=True)]
        again = serve(engine, {"one": (prompts[0], params[0], 0)})
    assert again.cached["one"] == 192
    assert again.answers["one"] == one_by_one[0]
    for options in ({"threads": 2}, {"max_num_batched_tokens": 33}):
        with make_engine(starter_model, "starter", **{"kv_blocks": 300, **options}) as engine:
            served = serve(engine, {str(i): (prompt, param, i) for i, (prompt, param) in enumerate(zip(prompts, params, strict=True))})
        assert list(served.answers.values()) == one_by_one
