"""Draws of the native library: the same tokens as those of `sampler.py`, which is written to be read."""

from __future__ import annotations

import random

import pytest
import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor.native.draws import draw_tokens
from chatpaged.engine.model_executor.native.library import instruction_sets, native_problem
from chatpaged.engine.scheduler_output import SampleRow
from tests.model_executor.native.conftest import Teams
from tests.model_executor.plain_draws import sample

SETS = instruction_sets() if native_problem() is None else ()
ROWS = 4


def sample_row(rng: random.Random, vocabulary: int) -> SampleRow:
    return SampleRow(
        0,
        0,
        temperature=rng.choice([0, 0.3, 0.7, 1.0, 2.0, 1e-30]),
        top_k=rng.choice([0, 1, 2, 40, vocabulary, 3 * vocabulary]),
        top_p=rng.choice([1.0, 0.95, 0.5, 0.01]),
        uniform=rng.random(),
        min_p=rng.choice([0, 0, 0.05, 0.5]),
    )


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("vocabulary", [1, 5, 37, 300, 5000])
def test_same_tokens(instructions: str, vocabulary: int, teams: Teams) -> None:
    rng = random.Random(vocabulary)
    for seed in range(20):
        logits = torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.1, 1, 4, 10])
        if vocabulary > 3 and seed % 3 == 0:
            logits[:, ::3] = -torch.inf  # banned
        if seed % 4 == 0:
            logits = logits.round()  # ties
        rows = [rng.randrange(ROWS) for _ in range(6)]
        samples = [sample_row(rng, vocabulary) for _ in rows]
        assert draw_tokens(teams(2, instructions), logits, rows, samples).tolist() == sample(logits, rows, samples)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 17, 99])
def test_what_are_no_numbers(instructions: str, wrong: float, place: int, teams: Teams) -> None:
    logits = torch.zeros(2, 100)
    logits[1, place] = wrong
    samples = [SampleRow(0, 0, temperature, 0, 1.0, 0.5) for temperature in (0, 1.0)]
    team = teams(1, instructions)
    assert draw_tokens(team, logits, [1, 1], samples).tolist() == [NO_TOKEN, NO_TOKEN]
    assert NO_TOKEN not in draw_tokens(team, logits, [0, 0], samples).tolist()


def test_frequencies(teams: Teams) -> None:
    """Without limits a token comes as often as its probability says."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    draws = 2000
    samples = [SampleRow(0, 0, 1.0, 0, 1.0, (i + 0.5) / draws) for i in range(draws)]
    tokens = draw_tokens(teams(1, None), logits, [0] * draws, samples).tolist()
    assert [tokens.count(token) for token in range(4)] == [1000, 600, 300, 100]


def test_rows_that_lie_apart(teams: Teams) -> None:
    """The model's own logits are padded."""
    wide = torch.randn(3, 64)
    samples = [SampleRow(0, 0, 0.0, 0, 1.0, 0.0)] * 3
    assert draw_tokens(teams(1, None), wide[:, :50], range(3), samples).tolist() == wide[:, :50].argmax(-1).tolist()
