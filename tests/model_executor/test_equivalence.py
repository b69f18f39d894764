"""Greedy answers equal those of transformers' own `generate`, token for token, whatever the engine does with its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from chatpaged.chat_template import ChatMessage
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.token_budget import TokenBudget
from tests.model_executor.harness import Arrival, greedy, load_reference, make_engine, reference_answer, serve
from tests.model_executor.tiny_models import DENSE_FAMILIES, FAMILIES, OTHER_FAMILIES, SPECIAL_TOKENS, VOCAB_SIZE

NUM_TOKENS = 16
_WORDS = torch.randint(len(SPECIAL_TOKENS), VOCAB_SIZE, (80,), generator=torch.Generator().manual_seed(5)).tolist()
PROMPTS: dict[str, list[int]] = {
    "short": _WORDS[60:65],
    "medium": _WORDS[:17],
    "long": _WORDS[:33],
    "other end": _WORDS[:32] + _WORDS[40:56],
}
# They come while others are half way.
ARRIVALS = {
    "medium": Arrival(PROMPTS["medium"], step=0),
    "short": Arrival(PROMPTS["short"], step=0),
    "long": Arrival(PROMPTS["long"], step=3),
    "other end": Arrival(PROMPTS["other end"], step=8),
}
# The last one is more urgent than all before it: where they fill the pool, they give way.
URGENT_ARRIVALS = {name: replace(arrival, priority=int(name != "other end")) for name, arrival in ARRIVALS.items()}
# The most that one of them needs; all of them together need three times that.
SMALL_POOL = {1: 64, 16: 4}
LARGE_POOL = {1: 600, 16: 60}

References = Callable[[str], dict[str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def references(model_directory: Callable[[str], Path]) -> References:
    """What transformers answers to each of the prompts, by family."""

    @cache
    def answers(family: str) -> dict[str, tuple[int, ...]]:
        model = load_reference(model_directory(family))
        return {name: reference_answer(model, prompt, NUM_TOKENS) for name, prompt in PROMPTS.items()}

    return answers


class _OnePromptToken(TokenBudget):
    """Lets a step read one token of one prompt, while any number of sequences decode."""

    def max_prefill_tokens(self, *, decoding: bool, interactive: bool) -> int:
        return 1


def _engine(directory: Path, chunk: int | None, *, block_size: int, caching: bool, small_pool: bool, **options: Any) -> LLMEngine:
    engine = make_engine(
        directory,
        block_size=block_size,
        kv_blocks=(SMALL_POOL if small_pool else LARGE_POOL)[block_size],
        max_num_seqs=16 if chunk is None else 4,
        max_num_batched_tokens=7 if chunk == 7 else 256,
        enable_prefix_caching=caching,
        **options,
    )
    if chunk == 1:
        engine.scheduler.budget = _OnePromptToken(256)
    return engine


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("preemption", [False, True], ids=["roomy", "preempting"])
@pytest.mark.parametrize("chunk", [1, 7, None], ids=["chunk1", "chunk7", "whole"])
@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_combination(
    family: str,
    caching: bool,
    chunk: int | None,
    preemption: bool,
    n: int,
    block_size: int,
    model_directory: Callable[[str], Path],
    references: References,
) -> None:
    expected = references(family)
    with _engine(model_directory(family), chunk, block_size=block_size, caching=caching, small_pool=preemption) as engine:
        answers = serve(engine, URGENT_ARRIVALS if preemption else ARRIVALS, greedy(NUM_TOKENS, n=n))
        snapshot = engine.snapshot()
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: [expected[name]] * n for name in PROMPTS}
    # The combination was what it says.
    assert (engine.scheduler.counters.preemptions > 0) == preemption
    assert (sum(answer.cached_tokens for answer in answers.values()) > 0) == caching
    most_read = max(step.num_tokens - step.num_decode_tokens for step in snapshot.steps)
    assert most_read <= chunk if chunk is not None else most_read > 7


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_of_one_token(family: str, model_directory: Callable[[str], Path], references: References) -> None:
    expected = references(family)
    with make_engine(model_directory(family), kv_blocks=20, max_num_seqs=1, max_num_batched_tokens=1) as engine:
        answers = serve(engine, ARRIVALS, greedy(NUM_TOKENS))
        assert {step.num_tokens for step in engine.snapshot().steps} == {1}
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: [expected[name]] for name in PROMPTS}


@pytest.mark.parametrize("chunk", [1, 7, None], ids=["chunk1", "chunk7", "whole"])
@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_softcap_narrow_values_and_learned_positions(
    family: str, chunk: int | None, model_directory: Callable[[str], Path], references: References
) -> None:
    expected = references(family)
    with _engine(model_directory(family), chunk, block_size=16, caching=True, small_pool=True) as engine:
        answers = serve(engine, URGENT_ARRIVALS, greedy(NUM_TOKENS, n=3))
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: [expected[name]] * 3 for name in PROMPTS}
    assert engine.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
def test_float32(family: str, model_directory: Callable[[str], Path], references: References) -> None:
    # Gaps between logits are large enough for its rounding.
    expected = references(family)
    with make_engine(model_directory(family), dtype="float32", kv_blocks=20) as engine:
        assert engine.code.name.startswith("native " if family in DENSE_FAMILIES else "transformers")
        answers = serve(engine, ARRIVALS, greedy(NUM_TOKENS))
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: [expected[name]] for name in PROMPTS}


@pytest.mark.parametrize("preemption", [False, True], ids=["roomy", "preempting"])
@pytest.mark.parametrize(
    ("code_path", "dtype", "name"),
    [
        ("universal", "float64", "transformers"),
        ("universal", "float32", "transformers"),
        ("dense", "float64", "torch decoder"),
        ("dense", "float32", "torch decoder"),
        ("native", "float32", "native"),
    ],
)
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_all_code_paths(
    family: str,
    code_path: str,
    dtype: str,
    name: str,
    preemption: bool,
    model_directory: Callable[[str], Path],
    references: References,
) -> None:
    expected = references(family)
    options = {"code_path": code_path, "dtype": dtype, "quantize": "none", "kv_dtype": "auto"}
    with _engine(model_directory(family), 7, block_size=16, caching=True, small_pool=preemption, **options) as engine:
        assert engine.code.name.startswith(name)
        answers = serve(engine, URGENT_ARRIVALS if preemption else ARRIVALS, greedy(NUM_TOKENS, n=3))
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: [expected[name]] * 3 for name in PROMPTS}
    assert (engine.scheduler.counters.preemptions > 0) == preemption


@pytest.mark.parametrize(("quantize", "kv_dtype"), [("int8", "fp16"), ("int4", "fp16"), ("int8", "int8"), ("fp16", "fp32")])
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_quantised_answers_do_not_depend_on_company_chunks_and_preemption(
    family: str, quantize: str, kv_dtype: str, model_directory: Callable[[str], Path]
) -> None:
    options: dict[str, Any] = {"dtype": "auto", "quantize": quantize, "kv_dtype": kv_dtype}
    with make_engine(model_directory(family), kv_blocks=60, max_num_seqs=1, enable_prefix_caching=False, **options) as engine:
        params = replace(greedy(NUM_TOKENS), logprobs=3)
        alone = {name: engine.generate(prompt, params).completions[0] for name, prompt in PROMPTS.items()}
    for chunk, preemption in ((1, True), (7, True), (7, False), (None, True), (None, False)):
        with _engine(model_directory(family), chunk, block_size=16, caching=True, small_pool=preemption, **options) as engine:
            answers = serve(engine, URGENT_ARRIVALS if preemption else ARRIVALS, params)
        assert {name: answer.token_ids for name, answer in answers.items()} == {name: [done.token_ids] for name, done in alone.items()}
        # To the last bit.
        assert {name: answer.completions[0].logprobs for name, answer in answers.items()} == {
            name: done.logprobs for name, done in alone.items()
        }
        assert (engine.scheduler.counters.preemptions > 0) == preemption


@pytest.mark.parametrize("preemption", [False, True], ids=["roomy", "preempting"])
def test_penalties_outlive_batches_and_preemption(preemption: bool, model_directory: Callable[[str], Path]) -> None:
    model = load_reference(model_directory("llama"))
    expected = {name: reference_answer(model, prompt, NUM_TOKENS, repetition_penalty=1.5) for name, prompt in PROMPTS.items()}
    assert expected != {name: reference_answer(model, prompt, NUM_TOKENS) for name, prompt in PROMPTS.items()}
    with _engine(model_directory("llama"), 7, block_size=16, caching=True, small_pool=preemption) as engine:
        arrivals = URGENT_ARRIVALS if preemption else ARRIVALS
        answers = serve(engine, arrivals, replace(greedy(NUM_TOKENS, n=3), repetition_penalty=1.5))
    assert {name: answer.token_ids for name, answer in answers.items()} == {name: [expected[name]] * 3 for name in PROMPTS}
    assert (engine.scheduler.counters.preemptions > 0) == preemption


def test_log_probabilities_are_those_of_a_forward_pass(model_directory: Callable[[str], Path]) -> None:
    model = load_reference(model_directory("llama"))
    with _engine(model_directory("llama"), 7, block_size=16, caching=True, small_pool=True) as engine:
        answers = serve(engine, URGENT_ARRIVALS, replace(greedy(NUM_TOKENS), logprobs=3))
    for name, prompt in PROMPTS.items():
        completion = answers[name].completions[0]
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1)
        assert [report.token_id for report in completion.logprobs] == list(completion.token_ids)
        assert [report.top[0][0] for report in completion.logprobs] == list(completion.token_ids)
        likeliest = expected.topk(3)
        assert [[token for token, _ in report.top] for report in completion.logprobs] == likeliest.indices.tolist()
        got = torch.tensor([[value for _, value in report.top] for report in completion.logprobs], dtype=torch.float64)
        torch.testing.assert_close(got, likeliest.values)


def test_no_end_token_before_the_least_length(model_directory: Callable[[str], Path]) -> None:
    model = load_reference(model_directory("llama"))
    free = reference_answer(model, PROMPTS["medium"], NUM_TOKENS)
    end = free[4]
    with make_engine(model_directory("llama"), kv_blocks=20) as engine:
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, stop_token_ids=(end,))
        assert engine.generate(PROMPTS["medium"], params).token_ids == free[: free.index(end)]
        longer = engine.generate(PROMPTS["medium"], replace(params, min_tokens=NUM_TOKENS))
    assert end not in longer.token_ids
    assert len(longer.token_ids) == NUM_TOKENS


def test_prefix_cache_spares_every_full_block(model_directory: Callable[[str], Path], references: References) -> None:
    with make_engine(model_directory("llama"), kv_blocks=60) as engine:
        first = serve(engine, ARRIVALS, greedy(NUM_TOKENS))
        again = serve(engine, ARRIVALS, greedy(NUM_TOKENS))
    assert {name: answer.cached_tokens for name, answer in first.items()} == {"medium": 0, "short": 0, "long": 16, "other end": 32}
    assert {name: answer.cached_tokens for name, answer in again.items()} == {"medium": 16, "short": 0, "long": 32, "other end": 32}
    assert {name: answer.token_ids for name, answer in again.items()} == {name: [ids] for name, ids in references("llama").items()}


def test_text_and_messages_are_encoded_as_transformers_does(model_directory: Callable[[str], Path]) -> None:
    directory = model_directory("llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    messages = [("system", "Say where the blocks are."), ("user", "Which token attends to it? ďábelské 日本語 😀")]
    with make_engine(directory, kv_blocks=20) as engine:
        text = engine.render(messages[1][1])
        chat = engine.render([ChatMessage(role, content) for role, content in messages])
    assert list(text.token_ids) == tokenizer(messages[1][1])["input_ids"]
    listed = [{"role": role, "content": content} for role, content in messages]
    assert list(chat.token_ids) == tokenizer.apply_chat_template(listed, add_generation_prompt=True, return_dict=False)
