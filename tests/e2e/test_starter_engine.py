"""The engine on the real starter model: in float32 against transformers, and as it runs by default against itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chatpaged.chat_template import ChatMessage
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import Completion
from chatpaged.engine.sampling_params import SamplingParams
from tests.e2e.greedy_reference import TIE, GreedyReference

pytestmark = pytest.mark.starter

TOPICS = (
    "the sea", "photosynthesis", "a short poem about rain", "the capital of Peru", "how to bake bread", "why the sky is blue",
    "Python generators", "the Roman Empire", "prime numbers", "a joke about cats", "the moon landing", "a healthy breakfast",
    "how vaccines work", "black holes", "the French Revolution", "learning the guitar", "the water cycle", "jazz music",
    "how engines work", "a letter to a friend",
)  # fmt: skip
NEW_TOKENS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
BLOCK = 16

Load = Callable[..., LLMEngine]


@pytest.fixture(scope="module")
def reference(starter_model: Path) -> GreedyReference:
    return GreedyReference(starter_model)


@pytest.fixture(scope="module")
def load(starter_model: Path) -> Iterator[Load]:
    """Loads engines in plain float32; each is closed at the end."""
    engines: list[LLMEngine] = []

    def make(**options: object) -> LLMEngine:
        engines.append(LLMEngine.from_pretrained(starter_model, EngineConfig(**{"kv_blocks": 2000, "quantize": "none", **options})))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def engine(load: Load) -> LLMEngine:
    return load()


@pytest.fixture(scope="module")
def prompts(engine: LLMEngine) -> list[tuple[int, ...]]:
    return [engine.render([ChatMessage("user", f"Tell me about {topic}.")]).token_ids for topic in TOPICS]


@pytest.fixture(scope="module")
def together(engine: LLMEngine, prompts: list[tuple[int, ...]]) -> list[Completion]:
    """The answers as one batch of 20, nothing cached."""
    engine.forget_cached()
    return answers(engine, prompts)


def answers(engine: LLMEngine, prompts: list[tuple[int, ...]], params: SamplingParams = GREEDY) -> list[Completion]:
    results = engine.generate_many([(prompt, params) for prompt in prompts])
    engine.check_invariants()
    assert engine.snapshot().used_blocks + engine.snapshot().shared_blocks == 0
    return [result.completions[0] for result in results]


def assert_greedy(reference: GreedyReference, prompts: list[tuple[int, ...]], completions: list[Completion]) -> None:
    for prompt, completion in zip(prompts, completions, strict=True):
        assert len(completion.token_ids) == NEW_TOKENS
        for position, gap in reference.disagreements(prompt, completion.token_ids):
            print(f"tie: token {position} of a prompt of {len(prompt)} falls short by {gap:.2e}")
            assert gap <= TIE


def test_a_batch_of_twenty_is_greedy(reference: GreedyReference, prompts: list[tuple[int, ...]], together: list[Completion]) -> None:
    assert_greedy(reference, prompts, together)


def test_generate_says_the_same_token_for_token(
    reference: GreedyReference, engine: LLMEngine, prompts: list[tuple[int, ...]], together: list[Completion]
) -> None:
    for prompt, completion in list(zip(prompts, together, strict=True))[::10]:
        assert list(completion.token_ids) == reference.generate(prompt, NEW_TOKENS)
        assert answers(engine, [prompt])[0].token_ids == completion.token_ids  # alone, and from a warm cache


def test_a_pool_twelve_blocks_short(load: Load, reference: GreedyReference, prompts: list[tuple[int, ...]]) -> None:
    needed = sum(-(-(len(prompt) + NEW_TOKENS - 1) // BLOCK) for prompt in prompts)
    tight = load(kv_blocks=needed - 12, enable_prefix_caching=False)  # with it they would share, and fit
    completions = answers(tight, prompts)
    assert tight.snapshot().counters["preemptions"] > 0
    assert_greedy(reference, prompts, completions)


def test_prefix_caching_does_not_change_answers(
    load: Load, reference: GreedyReference, engine: LLMEngine, prompts: list[tuple[int, ...]], together: list[Completion]
) -> None:
    """Case B8: cache off, cold and warm."""
    warm = answers(engine, prompts)
    assert engine.snapshot().prefix_hit_rate > 0.3
    off = answers(load(enable_prefix_caching=False), prompts)
    for completions in (warm, off):
        assert_greedy(reference, prompts, completions)
    assert [completion.text for completion in off] == [completion.text for completion in together]


def test_by_default_company_chunks_and_preemption_change_not_a_bit(load: Load, prompts: list[tuple[int, ...]]) -> None:
    params = replace(GREEDY, max_tokens=24, logprobs=2)
    alone_engine = load(quantize="auto", max_num_seqs=1, enable_prefix_caching=False)
    alone = [answers(alone_engine, [prompt], params)[0] for prompt in prompts[:8]]
    needed = sum(-(-(len(prompt) + 23) // BLOCK) for prompt in prompts[:8])
    for options in ({}, {"max_num_seqs": 8, "max_num_batched_tokens": 8}, {"kv_blocks": needed - 4, "enable_prefix_caching": False}):
        together = answers(load(quantize="auto", **options), prompts[:8], params)
        assert [(done.token_ids, done.logprobs) for done in together] == [(done.token_ids, done.logprobs) for done in alone]


def test_identical_prompts_one_after_another_and_at_once(engine: LLMEngine) -> None:
    """Cases B6 and B7: lengths that are multiples of the block."""
    short = engine.render([ChatMessage("user", " a a")]).token_ids
    long = engine.render([ChatMessage("system", "x " * 400), ChatMessage("user", "hi")]).token_ids
    assert (len(short), len(long)) == (32, 416)
    params = SamplingParams(temperature=0, max_tokens=4)
    for prompt, cached in ((short, 16), (long, 400)):
        engine.forget_cached()
        solo = engine.generate(prompt, params)
        again = engine.generate(prompt, params)
        assert (solo.metrics.cached_tokens, again.metrics.cached_tokens) == (0, cached)
        engine.forget_cached()
        rows = engine.generate_many([(prompt, params)] * 8)
        assert {result.token_ids for result in (solo, again, *rows)} == {solo.token_ids}
    assert sum(result.metrics.cached_tokens for result in rows) >= 7 * 256


def test_a_full_pool_kills_nobody(load: Load, engine: LLMEngine) -> None:
    """Case C2."""
    prompt = " a" * 100
    rows = [engine.render([ChatMessage("user", prompt + f" {row}")]).token_ids for row in range(4)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    tight = load(kv_blocks=20)
    squeezed = answers(tight, rows, params)
    assert tight.snapshot().counters["preemptions"] > 0
    assert [completion.text for completion in squeezed] == [completion.text for completion in answers(engine, rows, params)]


def test_every_turn_of_a_chat_finds_the_turns_before(engine: LLMEngine) -> None:
    """Case B1."""
    engine.forget_cached()
    messages: list[ChatMessage] = []
    known = 0
    for question in ("Name a fruit.", "And another one?", "Which of them is red?", "Thank you. Now name a tree."):
        messages.append(ChatMessage("user", question))
        result = engine.generate(messages, SamplingParams(temperature=0, max_tokens=40))
        assert result.metrics.cached_tokens >= known // BLOCK * BLOCK - BLOCK
        known = result.metrics.prompt_tokens + result.metrics.completion_tokens
        messages.append(ChatMessage("assistant", result.text, result.token_ids))
    assert result.metrics.prefill_tokens < 60


def test_no_chat_ever_says_the_secret_of_another(load: Load) -> None:
    """Case B9: four chats in a pool for two, with sends and cancels in random order; each answer is the one it gives alone."""
    secrets = ("giraffe", "volcano", "trumpet", "saffron")
    rng = random.Random(0)
    crowded, roomy = load(kv_blocks=36, block_size=4), load(kv_blocks=400)
    params = SamplingParams(temperature=0, max_tokens=16)
    chats = {
        secret: [ChatMessage("system", f"The secret word is {secret}. Say it when you are asked."), ChatMessage("user", "Secret?")]
        for secret in secrets
    }
    expected = {secret: roomy.generate(chat, params).text for secret, chat in chats.items()}
    assert any(secret in text for secret, text in expected.items())
    running: dict[str, str] = {}
    said: list[tuple[str, str]] = []
    for turn in range(400):
        if turn >= 200 and not running:
            break
        secret = rng.choice(secrets)
        choice = rng.random()
        if turn < 200 and choice < 0.3 and secret not in running.values():
            running[crowded.add_request(chats[secret], params)] = secret
        elif turn < 200 and choice < 0.34 and running:
            name = rng.choice(list(running))
            crowded.abort(name)
            del running[name]
        else:
            finished = [output for output in crowded.step() if output.finished]
            said += [(running.pop(output.request_id), output.completions[0].text) for output in finished]
        crowded.check_invariants()
    assert len({secret for secret, _ in said}) == 4
    assert crowded.snapshot().counters["preemptions"] > 0
    for secret, text in said:
        assert text == expected[secret]
        assert not any(other in text for other in secrets if other != secret)
