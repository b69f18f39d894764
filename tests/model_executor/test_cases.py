"""Cases of shared/cases/cases.md that need a model but not a particular one: B6, B7, B8, C4, C13."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.sequence import Sequence as TokenSequence
from chatpaged.engine.step_plan import StepPlan
from tests.model_executor.harness import Arrival, greedy, load_reference, make_engine, reference_answer, serve
from tests.model_executor.test_equivalence import PROMPTS

BLOCK = 16
PROMPT = PROMPTS["long"][:13]
LENGTHS = [BLOCK * k + offset for k in range(1, 5) for offset in (-1, 0, 1)]
MAX_TOKENS = max(LENGTHS) + 5 - len(PROMPT)


def preempt(engine: LLMEngine, sequence: TokenSequence) -> None:
    """Takes a running sequence's blocks away between two steps, as if another had needed them."""
    engine.scheduler._preempt(sequence, StepPlan(0, 0))


def answer(engine: LLMEngine, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """The greedy answer to one prompt."""
    return engine.generate(prompt, greedy(num_tokens)).token_ids


@pytest.fixture(scope="module")
def undisturbed(model_directory: Callable[[str], Path]) -> tuple[int, ...]:
    """The answer of transformers, and of an engine that never preempts."""
    expected = reference_answer(load_reference(model_directory("llama")), PROMPT, MAX_TOKENS)
    with make_engine(model_directory("llama"), kv_blocks=8) as engine:
        assert answer(engine, PROMPT, MAX_TOKENS) == expected
        assert engine.scheduler.counters.preemptions == 0
    return expected


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("length", LENGTHS)
def test_c4_preemption_at_block_edges(
    length: int, caching: bool, model_directory: Callable[[str], Path], undisturbed: tuple[int, ...]
) -> None:
    with make_engine(model_directory("llama"), kv_blocks=8, enable_prefix_caching=caching) as engine:

        def disturb(_: int) -> None:
            for sequence in list(engine.scheduler.running):
                if sequence.num_tokens == length:
                    preempt(engine, sequence)

        answers = serve(engine, {"chat": Arrival(PROMPT)}, greedy(MAX_TOKENS), before_step=disturb)
        counters = engine.scheduler.counters
    assert answers["chat"].token_ids == [undisturbed]
    assert counters.preemptions == 1
    # All tokens but the new one had been computed. With a prefix cache, those of full blocks are found again.
    found = (length - 1) // BLOCK * BLOCK if caching else 0
    assert (counters.recovered_tokens, counters.recomputed_tokens) == (found, length - 1 - found)


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("num_read", [8, 16, 24, 32])
def test_preemption_half_way_through_a_prompt(
    num_read: int, caching: bool, model_directory: Callable[[str], Path], undisturbed: tuple[int, ...]
) -> None:
    prompt = [*PROMPT, *undisturbed[:20]]
    options = {"kv_blocks": 8, "max_num_seqs": 8, "max_num_batched_tokens": 8, "enable_prefix_caching": caching}
    with make_engine(model_directory("llama"), **options) as engine:

        def disturb(step: int) -> None:
            if step == num_read // 8:
                (sequence,) = engine.scheduler.running
                assert sequence.num_computed_tokens == num_read
                preempt(engine, sequence)

        answers = serve(engine, {"chat": Arrival(prompt)}, greedy(12), before_step=disturb)
        assert engine.scheduler.counters.preemptions == 1
    assert answers["chat"].token_ids == [undisturbed[20:32]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
def test_preemptions_at_random(family: str, seed: int, model_directory: Callable[[str], Path]) -> None:
    rng = random.Random(seed)
    model = load_reference(model_directory(family))
    expected = {name: [reference_answer(model, prompt, 16)] * 3 for name, prompt in PROMPTS.items()}
    arrivals = {name: Arrival(prompt, step=rng.randrange(10)) for name, prompt in PROMPTS.items()}
    options = {"block_size": [1, 4, 16][seed], "max_num_seqs": 8, "max_num_batched_tokens": 20, "kv_memory": 2**20}
    with make_engine(model_directory(family), **options) as engine:

        def disturb(_: int) -> None:
            if engine.scheduler.running and rng.random() < 0.5:
                preempt(engine, rng.choice(engine.scheduler.running))

        answers = serve(engine, arrivals, greedy(16, n=3), before_step=disturb)
        assert engine.scheduler.counters.preemptions > 5
    assert {name: given.token_ids for name, given in answers.items()} == expected


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("pool", ["roomy", "preempting"])
@pytest.mark.parametrize("length", [30, 31, 32, 33])
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_samples_of_one_prompt_equal_separate_requests(
    family: str, length: int, pool: str, block_size: int, model_directory: Callable[[str], Path]
) -> None:
    # They share the prompt's blocks and then go different ways: whatever one writes, the others must not read.
    directory = model_directory(family)
    prompt, seed, num_tokens = PROMPTS["long"][:length], 11, 15
    params = SamplingParams(temperature=1.5, seed=seed, n=4, max_tokens=num_tokens, ignore_eos=True)
    with make_engine(directory, block_size=block_size, kv_blocks=200, enable_prefix_caching=False) as engine:
        separate = [engine.generate(prompt, replace(params, n=1, seed=seed + i)).token_ids for i in range(4)]
    assert len(set(separate)) == 4
    num_blocks = 200 if pool == "roomy" else 64 // block_size
    with make_engine(directory, block_size=block_size, kv_blocks=num_blocks) as engine:
        answers = serve(engine, {"all": Arrival(prompt)}, params)
        preemptions = engine.scheduler.counters.preemptions
    assert answers["all"].token_ids == separate
    assert (preemptions > 0) == (pool == "preempting")
    if pool == "roomy":
        metrics = answers["all"].metrics
        assert metrics is not None
        assert metrics.prefill_tokens == length
        # C13: only the last, partly filled block is copied, for all but the one that writes into it last.
        assert metrics.cow == (3 if length % block_size else 0)


@pytest.mark.parametrize("num_blocks", [1, 2, 26])
def test_b6_full_hit_on_a_block_edge(num_blocks: int, model_directory: Callable[[str], Path]) -> None:
    # 26 blocks of 4 stand for those of 16, of which the tiny context holds fewer.
    block_size = BLOCK if num_blocks < 26 else 4
    rng = random.Random(num_blocks)
    prompt = [rng.randrange(3, 300) for _ in range(num_blocks * block_size)]
    with make_engine(model_directory("llama"), kv_blocks=40, max_num_seqs=1, block_size=block_size) as engine:
        cold = engine.generate(prompt, greedy(4))
        warm = engine.generate(prompt, greedy(4))
        engine.check_invariants()
    assert warm.token_ids == cold.token_ids
    assert cold.metrics.cached_tokens == 0
    # The last token is computed again, as its logits are needed; with it, the rest of its block.
    assert warm.metrics.cached_tokens == len(prompt) - block_size
    assert warm.metrics.prefill_tokens == block_size


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("length", [5, 32, 48])
def test_b7_identical_prompts_in_one_batch(length: int, caching: bool, model_directory: Callable[[str], Path]) -> None:
    prompt = PROMPTS["other end"][:length]
    options = {"kv_blocks": 60, "max_num_seqs": 8, "max_num_batched_tokens": 40, "enable_prefix_caching": caching}
    with make_engine(model_directory("llama"), **options) as engine:
        solo = answer(engine, prompt, 12)
        engine.forget_cached()
        results = engine.generate_many([(prompt, greedy(12))] * 8)
        engine.check_invariants()
    assert [result.token_ids for result in results] == [solo] * 8


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_b8_prefix_cache_never_changes_an_answer(family: str, model_directory: Callable[[str], Path]) -> None:
    rng = random.Random(8)
    beginnings = [[rng.randrange(3, 300) for _ in range(32)] for _ in range(3)]
    prompts = [rng.choice(beginnings)[: rng.randint(1, 32)] + [rng.randrange(3, 300) for _ in range(rng.randint(1, 20))] for _ in range(20)]
    requests = [(prompt, greedy(10)) for prompt in prompts]
    directory = model_directory(family)
    with make_engine(directory, kv_blocks=200, dtype="float32", enable_prefix_caching=False) as engine:
        uncached = [engine.generate(*request).token_ids for request in requests]
    with make_engine(directory, kv_blocks=200, dtype="float32") as engine:
        cold = engine.generate_many(requests)
        warm = engine.generate_many(requests)
    assert [result.token_ids for result in cold] == uncached
    assert [result.token_ids for result in warm] == uncached
    assert [result.metrics.cached_tokens for result in warm] == [(len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts]
