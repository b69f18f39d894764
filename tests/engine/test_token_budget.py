from __future__ import annotations

from collections.abc import Callable

import pytest

from chatpaged.engine.token_budget import FIRST_PREFILL_TOKENS, MAX_STEP_SECONDS, MIN_PREFILL_TOKENS, TokenBudget


def settle(budget: TokenBudget, seconds_for: Callable[[int], float], *, num_decode: int, steps: int = 60) -> int:
    """Runs steps at the limit on a machine whose step takes `seconds_for(prompt tokens)`."""
    for _ in range(steps):
        limit = budget.max_prefill_tokens(decoding=num_decode > 0, interactive=True)
        budget.observe(num_decode, limit, seconds_for(limit))
    return limit


def test_nobody_reads_along() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.01)
    budget.observe(1, 100, 10.0)
    budget.observe(0, 100, 10.0)
    assert budget.max_prefill_tokens(decoding=False, interactive=False) == 256


def test_before_anything_is_measured_a_stream_is_spared() -> None:
    budget = TokenBudget(256)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) == FIRST_PREFILL_TOKENS
    assert budget.max_prefill_tokens(decoding=False, interactive=True) == 256
    assert TokenBudget(5).max_prefill_tokens(decoding=True, interactive=True) == 5


@pytest.mark.parametrize(
    "seconds_for",
    [
        lambda tokens: 0.020 + 0.0005 * tokens,
        lambda tokens: 0.045 + 0.0001 * tokens,  # a large step at the first prompt token, as matrix products have it
        lambda tokens: 0.020 + 1e-5 * tokens**1.5,
    ],
)
def test_a_mixed_step_settles_within_a_multiple_of_a_decode_step(seconds_for: Callable[[int], float]) -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.020)
    tokens = settle(budget, seconds_for, num_decode=1)
    assert 0.9 * 2.6 * 0.020 <= seconds_for(tokens) <= 3 * 0.020


def test_a_step_settles_at_what_stopping_may_wait_for() -> None:
    budget = TokenBudget(1024)
    tokens = settle(budget, lambda tokens: 0.004 * tokens, num_decode=0)
    assert tokens * 0.004 == pytest.approx(MAX_STEP_SECONDS, rel=0.05)


def test_a_prompt_always_gets_on() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.001)
    assert settle(budget, lambda _: 1.0, num_decode=1) == MIN_PREFILL_TOKENS
    small = TokenBudget(3)
    small.observe(1, 0, 0.001)
    assert settle(small, lambda _: 1.0, num_decode=1) == 3


def test_the_limit_never_exceeds_the_budget() -> None:
    budget = TokenBudget(64)
    budget.observe(1, 0, 0.02)
    assert settle(budget, lambda _: 0.02, num_decode=1) == 64
    assert settle(budget, lambda _: 0.02, num_decode=0) == 64


def test_the_limit_follows_the_machine() -> None:
    budget = TokenBudget(1000)
    fast = settle(budget, lambda tokens: 0.001 * tokens, num_decode=0)
    slow = settle(budget, lambda tokens: 0.002 * tokens, num_decode=0)
    assert slow == pytest.approx(fast / 2, rel=0.05)
    assert settle(budget, lambda tokens: 0.001 * tokens, num_decode=0) == pytest.approx(fast, rel=0.05)


def test_a_small_step_does_not_raise_the_limit_but_a_slow_one_lowers_it() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 0, 0.02)
    budget.observe(1, 3, 0.021)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) == FIRST_PREFILL_TOKENS
    budget.observe(1, 3, 0.2)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) < FIRST_PREFILL_TOKENS


def test_a_mixed_step_without_a_decode_step_before_teaches_nothing() -> None:
    budget = TokenBudget(256)
    budget.observe(1, 32, 5.0)
    assert budget.max_prefill_tokens(decoding=True, interactive=True) == FIRST_PREFILL_TOKENS
