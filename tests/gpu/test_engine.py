"""Engines on a GPU: graphs, memory below the pool, and memory that is not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.kv_cache import KVCache
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.errors import MemoryBudgetError
from tests.model_executor.harness import Arrival, greedy, serve
from tests.model_executor.tiny_models import save_family

ARRIVALS = {
    "short": Arrival(list(range(20, 25))),
    "long": Arrival(list(range(30, 63)), step=1),
    "alike": Arrival([*range(30, 62), 99, 100, 101], step=5),
    "late": Arrival(list(range(70, 79)), step=12),
}
FAMILIES = ("llama", "qwen3", "gemma2", "gemma3_text")
NUM_TOKENS = 14
SIZES: dict[str, Any] = {"device": "cuda", "dtype": "float32", "kv_blocks": 60, "max_num_seqs": 4, "max_num_batched_tokens": 24}
Directory = Callable[[str], Path]


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    """Of a family's tiny model."""
    root = tmp_path_factory.mktemp("models")
    return cache(lambda family: save_family(family, root / family))


def run(directory: Path, **options: Any) -> tuple[dict[str, list[tuple[int, ...]]], dict[str, int], str]:
    """What an engine answers to requests that come one after another, its counters, and what it runs on."""
    with LLMEngine.from_pretrained(directory, EngineConfig(**(SIZES | options))) as engine:
        answers = serve(engine, ARRIVALS, greedy(NUM_TOKENS))
        told = engine.code.with_reason
        return {name: answer.token_ids for name, answer in answers.items()}, engine.snapshot().counters, told


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_and_eager_steps_give_the_same_answers(family: str, directory: Directory) -> None:
    replayed, counters, told = run(directory(family))
    assert "CUDA graphs" in told
    assert "fused torch decoder, Triton attention" in told
    assert counters["graph_steps"] > NUM_TOKENS
    assert counters["eager_steps"] == 0
    eager, counters, told = run(directory(family), enforce_eager=True)
    assert "no CUDA graphs: --enforce-eager was asked for" in told
    assert counters["graph_steps"] == 0
    assert replayed == eager == run(directory(family), attention="torch")[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_that_went_to_host_memory_come_back(family: str, directory: Directory) -> None:
    tight, counters, _ = run(directory(family), block_size=4, kv_blocks=16, swap_space=10**6)
    assert counters["preemptions"] > 0
    assert counters["swap_in"] > 0
    assert tight == run(directory(family), block_size=4)[0]


def test_host_memory_is_pinned(directory: Directory) -> None:
    runner = ModelRunner.load(directory("llama"), EngineConfig(**SIZES, swap_space=10**6))
    assert isinstance(runner._kv_cache, KVCache)
    host = runner._moves.host
    assert host is not None
    assert host.is_pinned()


def test_a_pool_that_does_not_fit_is_refused_with_numbers(directory: Directory) -> None:
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(MemoryBudgetError, match="the largest that fits is --kv-blocks") as caught:
        LLMEngine.from_pretrained(directory("llama"), EngineConfig(device="cuda", kv_memory=2 * free))
    assert caught.value.exit_code == 5


def test_a_model_that_cannot_be_recorded_goes_on_without(directory: Directory) -> None:
    """Experts are chosen on the host, unless torch's grouped product is there."""
    answers, counters, told = run(directory("gpt_oss"))
    assert answers == run(directory("gpt_oss"), enforce_eager=True)[0]
    assert ("no CUDA graphs" in told) == (counters["graph_steps"] == 0)
