"""Penalties, biases, bans and log-probabilities. The rules are transformers' and OpenAI's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers

from chatpaged.engine.model_executor.logit_changes import change_logits
from chatpaged.engine.model_executor.sampler import queue_draws
from chatpaged.engine.model_executor.step_draws import draw_samples
from chatpaged.engine.scheduler_output import LogitChanges, SampleRow
from tests.model_executor.plain_draws import sample

hf: Any = transformers
SIZE = 50


def logits_of_rows(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (3 * torch.randn(count, SIZE, generator=torch.Generator().manual_seed(3))).to(dtype)


def row(changes: LogitChanges | None = None, *, logprobs: int | None = None) -> SampleRow:
    return SampleRow(0, 0, 0.0, 0, 1.0, 0.0, logprobs=logprobs, changes=changes)


def changed(changes: LogitChanges, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The only row of logits, before and after."""
    logits = logits_of_rows(1, dtype)
    after, rows = change_logits(logits, [0], [row(changes)])
    return logits[0], after[rows[0]]


def test_repetition_is_penalized_as_transformers_does() -> None:
    prompt, answer = (1, 2, 3, 3), (4, 1, 49)
    before, after = changed(LogitChanges(repetition_penalty=1.3, prompt_ids=prompt, output_ids=answer))
    processor = hf.RepetitionPenaltyLogitsProcessor(1.3)
    assert torch.equal(after, processor(torch.tensor([[*prompt, *answer]]), before.unsqueeze(0))[0])
    assert not torch.equal(before, after)


def test_presence_and_frequency_count_the_answer_only() -> None:
    before, after = changed(LogitChanges(presence_penalty=0.5, frequency_penalty=0.25, prompt_ids=(7,), output_ids=(4, 9, 4, 4)))
    expected = before.clone()
    expected[4] -= 0.5 + 3 * 0.25
    expected[9] -= 0.5 + 0.25
    torch.testing.assert_close(after, expected)


def test_negative_penalties_reward() -> None:
    before, after = changed(LogitChanges(presence_penalty=-1.0, output_ids=(4,)))
    assert after[4] == before[4] + 1


def test_biases_and_bans() -> None:
    before, after = changed(LogitChanges(bias=((3, 100.0), (5, -100.0)), banned=(8, 1000)))
    assert after[3] == before[3] + 100
    assert after[5] == before[5] - 100
    assert after[8] == -torch.inf
    assert torch.equal(after[9:], before[9:])


def test_half_types_are_changed_in_float32() -> None:
    _, after = changed(LogitChanges(bias=((3, 0.001),)), torch.bfloat16)
    assert after.dtype is torch.float32


def test_samples_of_one_row_change_their_own_copy() -> None:
    logits = logits_of_rows(2)
    kept = logits.clone()
    ban = row(LogitChanges(banned=(int(logits[1].argmax()),)))
    after, rows = change_logits(logits, [0, 1, 1, 1], [row(), ban, row(), ban])
    assert torch.equal(logits, kept)
    tokens = sample(after, rows, [row(), ban, row(), ban])
    second = int(logits[1].topk(2).indices[1])
    assert tokens == [int(logits[0].argmax()), second, int(logits[1].argmax()), second]


def test_nothing_is_copied_where_nothing_changes() -> None:
    logits = logits_of_rows(2)
    after, rows = change_logits(logits, [1, 0], [row(), row()])
    assert after is logits
    assert rows == [1, 0]


# --- min-p ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.3, 1.0])
def test_min_p_keeps_what_transformers_keeps(min_p: float) -> None:
    logits = logits_of_rows(5) / 3
    expected = hf.MinPLogitsWarper(min_p)(torch.zeros(5, 1, dtype=torch.int64), logits).isfinite()
    draws = [SampleRow(0, 0, 1.0, 0, 1.0, (i + 0.5) / 20_000, min_p=min_p) for i in range(20_000)]
    for row, kept in enumerate(expected):
        assert set(sample(logits, [row] * len(draws), draws)) == set(kept.nonzero().flatten().tolist())


def test_min_p_of_one_leaves_the_best_token() -> None:
    logits = logits_of_rows(1)
    rows = [SampleRow(0, 0, 5.0, 0, 1.0, uniform, min_p=1.0) for uniform in (0.0, 0.5, 0.999)]
    assert sample(logits, [0] * 3, rows) == [int(logits[0].argmax())] * 3


def test_min_p_of_one_row_leaves_the_others_alone() -> None:
    logits = logits_of_rows(1)
    rows = [SampleRow(0, 0, 5.0, 0, 1.0, 0.999, min_p=p) for p in (0.0, 1.0)]
    free, best = sample(logits, [0, 0], rows)
    assert free == sample(logits, [0], rows[:1])[0] != best


# --- log-probabilities (case E15) ----------------------------------------------------------------------------------------


def test_e15_log_probabilities() -> None:
    logits = logits_of_rows(2)
    samples = [row(logprobs=3), row(), row(logprobs=0)]
    rows = [1, 0, 0]
    tokens, (first, second, third) = draw_samples(queue_draws, logits, rows, samples)
    assert second is None
    assert first is not None
    assert third is not None
    expected = torch.log_softmax(logits[1], -1)
    assert [token for token, _ in first.top] == expected.topk(3).indices.tolist()
    assert first.top[0] == (tokens[0], first.logprob)
    assert first.logprob == pytest.approx(float(expected.max()))
    assert sum(math.exp(value) for _, value in first.top) <= 1
    assert third.top == ()
    assert third.logprob == pytest.approx(float(torch.log_softmax(logits[0], -1).max()))


def test_tokens_that_are_ruled_out_are_not_among_the_likeliest() -> None:
    logits = logits_of_rows(1)
    ban = row(LogitChanges(banned=tuple(range(2, SIZE))), logprobs=5)
    after, rows = change_logits(logits, [0], [ban])
    _, (report,) = draw_samples(queue_draws, after, rows, [ban])
    assert report is not None
    assert {token for token, _ in report.top} == {0, 1}
    assert sum(math.exp(value) for _, value in report.top) == pytest.approx(1)
