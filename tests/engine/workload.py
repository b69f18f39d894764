"""Random work for a harness: arrivals, forks, aborts, changes of priority, a cache that is emptied."""

from __future__ import annotations

import random

from tests.engine.shadow_kv import VOCABULARY, FakeTier, Harness


def random_prompt(rng: random.Random, longest: int) -> list[int]:
    """A prompt that often begins like others: from a few seeds, then a tail of its own."""
    shared = random.Random(rng.randrange(3))
    beginning = [shared.randrange(VOCABULARY) for _ in range(rng.randint(0, longest - 1))]
    return (beginning + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 5))])[:longest]


def random_harness(rng: random.Random) -> Harness:
    """A small engine with random limits."""
    num_blocks = rng.randint(4, 16)
    block_size = rng.choice([1, 2, 4])
    max_num_seqs = rng.randint(1, 5)
    return Harness(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 1, 5, 20]),
        max_model_len=rng.choice([20, 64]),
        caching=rng.random() < 0.85,
        tier=FakeTier(rng.randint(0, 12)) if rng.random() < 0.5 else None,
    )


def act(harness: Harness, rng: random.Random) -> None:
    """Does one random thing."""
    scheduler = harness.scheduler
    choice = rng.random()
    groups = scheduler.groups()
    if choice < 0.25:
        longest = min(scheduler.config.max_model_len - 1, scheduler.blocks.capacity)
        harness.add(
            random_prompt(rng, longest),
            max_tokens=rng.randint(1, 12),
            n=rng.choice([1, 1, 1, 2, 3]),
            priority=rng.choice([0, 0, 0, 1, 2]),
            interactive=rng.random() < 0.3,
            salt=rng.choice([b"", b"", b"private"]),
        )
    elif choice < 0.30 and groups:
        scheduler.abort(rng.choice(groups).request_id)
    elif choice < 0.33 and groups:
        scheduler.set_priority(rng.choice(groups).request_id, rng.randint(0, 2), interactive=rng.random() < 0.5)
    elif choice < 0.34:
        scheduler.blocks.forget_cached()
    else:
        harness.step()
    scheduler.check_invariants()


def run_workload(seed: int, num_actions: int) -> Harness:
    """A whole random run, to its end."""
    rng = random.Random(seed)
    harness = random_harness(rng)
    for _ in range(num_actions):
        act(harness, rng)
    harness.run()
    return harness
