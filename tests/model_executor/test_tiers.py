"""A real model whose blocks go down and come back: the same tokens, the same bytes, in the next process too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged import paths
from chatpaged.engine.block_pool import BlockState
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import BlockOperation
from chatpaged.engine.sequence import Sequence
from chatpaged.engine.step_plan import StepPlan
from tests.model_executor.harness import greedy, make_engine
from tests.model_executor.tiny_models import DENSE_FAMILIES, FAMILIES, SPECIAL_TOKENS, VOCAB_SIZE

BLOCK = 16
LENGTHS = [16 * k + offset for k in (1, 2, 3, 4) for offset in (-1, 0, 1)]
_WORDS = torch.randint(len(SPECIAL_TOKENS), VOCAB_SIZE, (400,), generator=torch.Generator().manual_seed(9)).tolist()

ModelDirectory = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "blocks_dir", lambda: tmp_path / "blocks")


def rows(engine: LLMEngine) -> torch.Tensor:
    """The pool as rows of bytes."""
    assert isinstance(engine._executor, ModelRunner)
    return engine._executor._moves.rows


def running(engine: LLMEngine) -> Sequence:
    (sequence,) = engine.scheduler.running
    return sequence


def preempt(engine: LLMEngine, sequence: Sequence) -> None:
    """What happens when somebody more urgent needs the blocks."""
    engine.scheduler._preempt(sequence, StepPlan(0, 0))
    engine.check_invariants()


def push_out(engine: LLMEngine) -> None:
    """Somebody else takes the whole pool, and overwrites it."""
    pool = engine.scheduler.blocks.pool
    operations: list[BlockOperation] = []
    taken = []
    while pool.num_free:
        block, evicted = pool.allocate()
        taken.append(block)
        if evicted is not None:
            operations += engine._tiers.lower.demote(evicted, block, is_unsaved=True)
    engine._tiers.move(operations)
    rows(engine)[taken] = 0xAB
    for block in taken:
        pool.release(block)
    assert set(pool.states[1:]) == {BlockState.FREE}


@pytest.mark.parametrize(("family", "how"), [("llama", "recompute"), ("llama", "host"), ("llama", "disk"), ("gemma2", "host")])
@pytest.mark.parametrize("length", LENGTHS)
def test_preempted_at_any_length(family: str, length: int, how: str, model_directory: ModelDirectory) -> None:  # C4, C5
    options: dict[str, Any] = {"host": {"swap_space": 2**24}, "disk": {"disk_cache": 2**24}}.get(how, {})
    prompt = _WORDS[:11]
    num_tokens = length + 6 - len(prompt)
    with make_engine(model_directory(family), kv_blocks=12) as engine:
        expected = engine.generate(prompt, greedy(num_tokens)).completions[0].token_ids
    with make_engine(model_directory(family), kv_blocks=12, **options) as engine:
        engine.add_request(prompt, greedy(num_tokens), request_id="r")
        while not (engine.scheduler.running and running(engine).num_computed_tokens == length):
            engine.step()
        sequence = running(engine)
        full = length // BLOCK
        before = rows(engine)[list(engine.scheduler.blocks.table(sequence))[:full]].clone()
        preempt(engine, sequence)
        push_out(engine)
        answer: list[int] = []
        after = before
        while engine.has_unfinished:
            outputs = engine.step()
            if engine.scheduler.running and how != "recompute":
                after = rows(engine)[list(engine.scheduler.blocks.table(sequence))[:full]].clone()
            answer += [token for output in outputs for delta in output.deltas for token in delta.token_ids]
        counters = engine.snapshot().counters
    assert sequence.token_ids[len(prompt) :] == list(expected)
    assert torch.equal(before, after)
    assert counters["preemptions"] == 1
    assert counters["swap_in"] == (0 if how == "recompute" else full)
    assert counters["recomputed_tokens"] == (length if how == "recompute" else length - full * BLOCK)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_process_goes_on_where_this_one_ended(family: str, model_directory: ModelDirectory, tmp_path: Path) -> None:
    prompt = _WORDS[:70]
    with make_engine(model_directory(family), kv_blocks=20, disk_cache=2**24) as engine:
        expected = engine.generate(prompt, greedy(12))
    assert len(list((tmp_path / "blocks").rglob("*.kv"))) == 81 // BLOCK
    with make_engine(model_directory(family), kv_blocks=20, disk_cache=2**24) as engine:
        again = engine.generate(prompt, greedy(12))
        assert again.metrics.cached_tokens == 64
        assert again.metrics.swap_in == 4
        assert engine.snapshot().counters["disk_faults"] == 0
    assert again.completions[0].token_ids == expected.completions[0].token_ids


@pytest.mark.parametrize(
    "options",
    [{"block_size": 8}, {"dtype": "float32"}, {"dtype": "float32", "kv_dtype": "fp16"}, {"code_path": "universal", "dtype": "float32"}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_another_engine_never_takes_them(options: dict[str, Any], model_directory: ModelDirectory) -> None:
    """Everything that changes what a block holds is part of the fingerprint."""
    prompt = _WORDS[:70]
    with make_engine(model_directory("llama"), kv_blocks=40, disk_cache=2**24) as engine:
        engine.generate(prompt, greedy(12))
    with make_engine(model_directory("llama"), **{"kv_blocks": 40, "disk_cache": 2**24, **options}) as engine:
        assert engine.generate(prompt, greedy(12)).metrics.cached_tokens == 0


def test_other_weights_of_the_same_shape_never_take_them(model_directory: ModelDirectory, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for path in model_directory("llama").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    with make_engine(directory, kv_blocks=20, disk_cache=2**24) as engine:
        engine.generate(_WORDS[:40], greedy(2))
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with make_engine(directory, kv_blocks=20, disk_cache=2**24) as engine:
        assert engine.generate(_WORDS[:40], greedy(2)).metrics.cached_tokens == 0


def test_damaged_files_are_computed_again(model_directory: ModelDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prompt = _WORDS[:70]
    with make_engine(model_directory("llama"), kv_blocks=20, disk_cache=2**24) as engine:
        expected = engine.generate(prompt, greedy(12)).completions[0].token_ids
    for i, path in enumerate(sorted((tmp_path / "blocks").rglob("*.kv"))):
        data = bytearray(path.read_bytes())
        data[(len(data) // 7) * (i % 7)] ^= 0x40
        path.write_bytes(data)
    with make_engine(model_directory("llama"), kv_blocks=20, disk_cache=2**24) as engine:
        again = engine.generate(prompt, greedy(12))
        assert again.completions[0].token_ids == expected
        assert again.metrics.cached_tokens == 0
        assert engine.snapshot().counters["disk_faults"] > 0
    assert "computed again" in caplog.text


@pytest.mark.parametrize("family", DENSE_FAMILIES[:2])
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
def test_chats_that_do_not_fit_together_change_not_a_bit(family: str, kv_dtype: str, model_directory: ModelDirectory) -> None:
    """Six requests on a pool for two, with host memory below: each answers as it does alone."""
    options: dict[str, Any] = {"dtype": "float32", "quantize": "int8", "kv_dtype": kv_dtype}
    prompts = [_WORDS[i * 20 : i * 20 + 50] for i in range(6)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)
    with make_engine(model_directory(family), kv_blocks=60, enable_prefix_caching=False, **options) as engine:
        alone = [engine.generate(prompt, params).completions[0] for prompt in prompts]
    with make_engine(model_directory(family), kv_blocks=12, swap_space=2**24, **options) as engine:
        for _ in range(2):
            together = engine.generate_many([(prompt, params) for prompt in prompts])
            assert [result.completions[0].token_ids for result in together] == [completion.token_ids for completion in alone]
            assert [result.completions[0].logprobs for result in together] == [completion.logprobs for completion in alone]
        assert engine.snapshot().counters["swap_in"] > 0
