from __future__ import annotations

import pytest

from chatpaged.engine.token_budget import FIRST_PREFILL_TOKENS, MIN_PREFILL_TOKENS, TokenBudget


def test_nobody_reads_along() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.01)
    budget.observe(0, 100, 10.0)
    assert budget.max_prefill_tokens(decoding=False, interactive=False) == 256


def test_before_anything_is_measured_a_stream_is_spared() -> None:
    budget = TokenBudget(256)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) == FIRST_PREFILL_TOKENS
    assert budget.max_prefill_tokens(decoding=False, interactive=True) == 256
    assert TokenBudget(16).max_prefill_tokens(decoding=True, interactive=True) == 16


def test_a_mixed_step_stays_within_a_multiple_of_a_decode_step() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.020)
    budget.observe(1, 50, 0.070)  # 1 ms a prompt token
    tokens = budget.max_prefill_tokens(decoding=True, interactive=True)
    assert 0.020 + tokens * 0.001 <= 3 * 0.020
    assert tokens == 30


def test_a_step_is_short_enough_to_stop_even_without_a_stream() -> None:
    budget = TokenBudget(256)
    budget.observe(0, 100, 0.5)
    assert budget.max_prefill_tokens(decoding=False, interactive=True) == 80


def test_a_prompt_always_gets_on() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.001)
    budget.observe(1, 10, 1.0)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) == MIN_PREFILL_TOKENS


def test_estimates_follow_the_machine() -> None:
    budget = TokenBudget(1000)
    for _ in range(50):
        budget.observe(0, 100, 0.1)
    fast = budget.max_prefill_tokens(decoding=False, interactive=True)
    for _ in range(50):
        budget.observe(0, 100, 0.2)
    assert budget.max_prefill_tokens(decoding=False, interactive=True) == pytest.approx(fast / 2, rel=0.05)


def test_a_mixed_step_faster_than_decoding_alone_does_not_make_prompts_free() -> None:
    budget = TokenBudget(10**6)
    budget.observe(1, 0, 0.1)
    budget.observe(1, 10, 0.05)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) == 600
