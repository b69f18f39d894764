from __future__ import annotations

import pytest

from chatpaged.engine.tier_policy import TierKind, TierPolicy

HOST, DISK = TierKind.HOST, TierKind.DISK


def test_what_is_not_measured_is_tried() -> None:
    policy = TierPolicy(16)
    assert policy.is_worth_it(HOST)
    policy.observe_moves(HOST, 1, 1000.0)
    assert policy.is_worth_it(HOST)  # nobody knows yet what computing takes
    policy.observe_prefill(15, 0.001)
    assert policy.is_worth_it(HOST)  # that was too little to learn from
    assert (policy.declined, policy.seconds_saved) == (0, 0.0)


def test_slower_than_computing_is_declined_and_tried_again_now_and_then() -> None:
    policy = TierPolicy(16)
    policy.observe_prefill(160, 0.160)
    policy.observe_moves(DISK, 10, 0.161)
    assert policy.is_worth_it(HOST)
    assert not policy.is_worth_it(DISK)
    asked = [policy.is_worth_it(DISK) for _ in range(127)]
    assert asked.count(True) == 2
    assert policy.declined == 126
    for _ in range(20):
        policy.observe_moves(DISK, 1, 0.001)
    assert policy.is_worth_it(DISK)


def test_time_is_saved() -> None:
    policy = TierPolicy(16)
    policy.observe_prefill(100, 0.1)
    policy.observe_moves(DISK, 10, 0.05)
    assert policy.seconds_saved == pytest.approx(0.16 - 0.05)


def test_the_slower_tier_says_how_much_comes_back_in_a_step() -> None:
    policy = TierPolicy(16)
    assert policy.block_seconds == pytest.approx(0.002)
    policy.observe_moves(HOST, 10, 0.001)
    assert policy.block_seconds == pytest.approx(0.0001)
    policy.observe_moves(DISK, 1, 0.01)
    assert policy.block_seconds == pytest.approx(0.01)
