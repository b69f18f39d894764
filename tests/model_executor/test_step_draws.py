"""A step's draws on a device: the tokens and reports that the rules give, with one read and nothing else that waits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor import sampler, transfers
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.sampler import FIRST_CANDIDATES, queue_draws
from chatpaged.engine.model_executor.step_draws import draw_samples, draw_step
from chatpaged.engine.scheduler_output import LogitChanges, SampleRow, ScheduledRow
from tests.model_executor.no_waiting import WaitError, device_like
from tests.model_executor.plain_draws import plain_changes, plain_draw, plain_logprobs

ALMOST_ONE = math.nextafter(1.0, 0.0)
TOKENS = st.integers(0, 5)
AMOUNTS = st.sampled_from([0.0, 0.0, 0.25, -1.5, 0.1])
CHANGES = st.builds(
    LogitChanges,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=AMOUNTS,
    frequency_penalty=AMOUNTS,
    prompt_ids=st.lists(TOKENS, max_size=4).map(tuple),
    output_ids=st.lists(TOKENS, max_size=4).map(tuple),
    bias=st.dictionaries(TOKENS, st.sampled_from([0.3, -100.0, 100.0]), max_size=3).map(lambda biases: tuple(biases.items())),
    banned=st.lists(st.integers(0, 99), max_size=3).map(tuple),
)
SAMPLES = st.builds(
    SampleRow,
    st.just(0),
    st.just(0),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0, 1e-3, 1e-30, 5e-324]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 40, 10_000]),
    top_p=st.sampled_from([1.0, 1.0, 0.999999, 0.95, 0.5, 1e-9]),
    uniform=st.one_of(st.floats(0, ALMOST_ONE), st.just(0.0), st.just(ALMOST_ONE)),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    logprobs=st.sampled_from([None, None, 0, 5]),
    changes=st.one_of(st.none(), st.none(), CHANGES),
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[ScheduledRow, ...]]:
    """Logits, and rows of which some sample several times and some not at all."""
    vocabulary = draw(st.sampled_from([6, 37, 3 * FIRST_CANDIDATES]))
    asked = [*draw(st.lists(st.lists(SAMPLES, max_size=3), max_size=4)), [draw(SAMPLES)]]
    rows = tuple(ScheduledRow(i, (1,), 0, (1,), tuple(samples)) for i, samples in enumerate(asked))
    count = sum(bool(row.samples) for row in rows)
    spread = draw(st.sampled_from([0.01, 1.0, 4.0, 30.0]))
    logits = spread * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if draw(st.booleans()):
        logits = logits.round()  # ties
    for row in logits:
        for value in draw(st.lists(st.sampled_from([-torch.inf, -torch.inf, torch.inf, torch.nan]), max_size=2)):
            row[draw(st.integers(0, 5)) :: draw(st.sampled_from([2, 7, vocabulary]))] = value
    return logits.to(draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))), rows


def by_the_rules(logits: torch.Tensor, rows: tuple[ScheduledRow, ...]) -> tuple[list[list[int]], list[list[Any]]]:
    """Tokens and reports of a step."""
    sources = iter(logits)
    tokens: list[list[int]] = []
    reports: list[list[Any]] = []
    for row in rows:
        source = next(sources) if row.samples else logits[0]
        changed = [plain_changes(source, asked.changes) for asked in row.samples]
        tokens.append([plain_draw(part, asked) for part, asked in zip(changed, row.samples, strict=True)])
        reports.append([plain_logprobs(*each) for each in zip(changed, row.samples, tokens[-1], strict=True)])
    return tokens, reports


@settings(max_examples=150, deadline=None)
@given(steps())
def test_the_rules_are_kept_wherever_numbers_lie(step: tuple[torch.Tensor, tuple[ScheduledRow, ...]]) -> None:
    logits, rows = step
    before = logits.clone()
    expected = by_the_rules(logits, rows)
    here = draw_step(queue_draws, Logits(logits), rows)
    with device_like():
        there = draw_step(queue_draws, Logits(logits), rows)
    for tokens, reports in (here, there):
        assert [list(row) for row in tokens] == expected[0]
        assert [list(row) for row in reports] == expected[1]
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


def mixed_rows(count: int) -> tuple[ScheduledRow, ...]:
    """Rows of every kind."""
    changes = LogitChanges(
        repetition_penalty=1.2, presence_penalty=0.5, prompt_ids=(1, 2), output_ids=(3, 3), bias=((4, 1.0),), banned=(5,)
    )
    kinds = (
        SampleRow(0, 0, 0.0, 0, 1.0, 0.0),
        SampleRow(0, 0, 0.7, 0, 0.9, 0.5, logprobs=5),
        SampleRow(0, 0, 1.0, 40, 1.0, 0.1, min_p=0.05),
        SampleRow(0, 0, 1.0, 3, 0.5, 0.7, changes=changes),
        SampleRow(0, 0, 0.0, 0, 1.0, 0.0, changes=changes, logprobs=0),
    )
    return tuple(ScheduledRow(i, (1,), 0, (1,), (kinds[i % 5],) * (1 + i % 2)) for i in range(count))


def test_a_step_reads_once() -> None:
    logits = 4 * torch.randn(12, 3 * FIRST_CANDIDATES, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), device_like() as reads:
        draw_step(queue_draws, Logits(logits), mixed_rows(12))
    assert reads == [4]  # tokens, and of log-probabilities the drawn, the largest and whose these are


def test_greedy_steps_upload_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "upload", pytest.fail)
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    with device_like() as reads:
        tokens, _ = draw_samples(queue_draws, logits, [0, 1, 2], [SampleRow(0, 0, 0.0, 0, 1.0, 0.0)] * 3)
    assert (tokens, reads) == (logits.argmax(-1).tolist(), [1])


def test_only_flat_distributions_wait_a_second_time() -> None:
    flat = torch.linspace(0.0, 0.5, 3 * FIRST_CANDIDATES).unsqueeze(0)
    logits = torch.cat([flat, 40 * flat, torch.full_like(flat, torch.nan), flat])
    samples = [SampleRow(0, 0, 1.0, 0, top_p, 0.3, logprobs=2) for top_p in (0.9, 0.9, 0.9, 0.2)]
    expected = draw_samples(queue_draws, logits, range(4), samples)
    with device_like() as reads:
        assert queue_draws(logits, range(4), samples).shape == (4,)
        assert draw_samples(queue_draws, logits, range(4), samples) == expected
    assert reads == [4, 4]
    assert queue_draws(logits, range(4), samples)[2] == NO_TOKEN
    assert expected[0] == [plain_draw(*each) for each in zip(logits, samples, strict=True)]


def test_large_batches_are_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 4 * torch.randn(23, 200, generator=torch.Generator().manual_seed(2))
    rows = mixed_rows(23)
    whole = draw_step(queue_draws, Logits(logits), rows)
    for numbers in (1, 200, 1400):
        monkeypatch.setattr(sampler, "_MOST_NUMBERS", numbers)
        assert draw_step(queue_draws, Logits(logits), rows) == whole
        with device_like() as reads:
            assert draw_step(queue_draws, Logits(logits), rows) == whole
        assert len(reads) == 1


# --- transfers, and the test of the test ---------------------------------------------------------------------------------

ARRAYS: tuple[transfers.Array, ...] = (
    np.arange(3, dtype=np.int32),
    np.linspace(0, 1, 8).reshape(4, 2)[:, 1:],
    np.zeros((0, 5), np.float32),
    np.array([[-7]]),
    np.arange(3, dtype=np.uint8),
)


def test_arrays_come_back_as_they_went() -> None:
    plain = transfers.upload(ARRAYS, torch.device("cpu"))
    with device_like():
        packed = transfers.upload(ARRAYS, torch.device("cpu"))
        back = transfers.read(packed)
    for array, *others in zip(ARRAYS, plain, packed, map(torch.from_numpy, back), strict=True):
        for other in others:
            assert torch.equal(other, torch.from_numpy(array))


def test_places_follow_from_shapes_and_types() -> None:
    first = transfers.pack(ARRAYS, is_pinned=False)
    second = transfers.pack([array + array.dtype.type(1) for array in ARRAYS], is_pinned=False)
    kept = transfers.unpack(first, ARRAYS)
    first.copy_(second)  # as one transfer into static buffers does
    for view, array in zip(kept, ARRAYS, strict=True):
        assert torch.equal(view, torch.from_numpy(array + array.dtype.type(1)))


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.tolist(),
        lambda x: x[0].item(),
        lambda x: bool(x.any()),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.to(device=torch.device("cpu")),
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x[x > 0],
        lambda x: x[[0, 1]],
        lambda x: x.masked_select(x > 0),
        lambda x: x.__setitem__(x > 0, 0.0),
        lambda x: x + torch.tensor([1.0]),
        lambda x: float(x.sum()),
    ],
)
def test_what_waits_is_found(waits: Any) -> None:
    x = torch.ones(3)
    with device_like(), pytest.raises(WaitError):
        waits(x)
