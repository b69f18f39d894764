"""Drawing tokens: greedy, temperature, top-k, top-p, and independence of batch mates."""

from __future__ import annotations

import math

import pytest
import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor import sampler
from chatpaged.engine.model_executor.sampler import FIRST_CANDIDATES
from chatpaged.engine.scheduler_output import SampleRow
from tests.model_executor.plain_draws import sample

ALMOST_ONE = math.nextafter(1.0, 0.0)
"""The largest number that Python's generator draws."""
P = [0.1, 0.2, 0.3, 0.4]


def row(uniform: float = 0.0, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> SampleRow:
    return SampleRow(0, 0, temperature, top_k, top_p, uniform)


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def frequencies(logits: torch.Tensor, draws: int = 4000, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """How often each token is drawn when the uniform numbers lie evenly in [0, 1)."""
    rows = [row((i + 0.5) / draws, temperature=temperature, top_k=top_k, top_p=top_p) for i in range(draws)]
    tokens = sample(logits, [0] * draws, rows)
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[1]).to(torch.float64) / draws


def kept_by_top_p(probabilities: torch.Tensor, *top_p: float) -> torch.Tensor:
    changed = probabilities.clone()
    assert sampler.keep_top_p(changed, torch.tensor(top_p, dtype=torch.float64).unsqueeze(1) - 1e-6, FIRST_CANDIDATES) is None
    return changed


def kept(logits: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0) -> set[int]:
    """Tokens that can be drawn at all."""
    return set(frequencies(logits, 1000, top_k=top_k, top_p=top_p).nonzero().flatten().tolist())


# --- greedy --------------------------------------------------------------------------------------------------------------


def test_temperature_zero_takes_the_best_token_whatever_else_is_asked() -> None:
    logits = torch.tensor([[0.0, 3.0, -1.0], [5.0, 4.0, 6.0]])
    rows = [row(0.99, temperature=0), row(0.99, temperature=0, top_p=0.1), row(temperature=0, top_k=1)]
    assert sample(logits, [0, 1, 0], rows) == [1, 2, 1]


def test_greedy_ties_go_to_the_first_token_in_any_batch() -> None:
    tied = torch.zeros(1, 50)
    assert sample(tied, [0], [row(temperature=0)]) == [0]
    assert sample(torch.cat([torch.randn(3, 50), tied]), [3], [row(temperature=0)]) == [0]


def test_e10_greedy_and_sampled_rows_in_one_batch() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(4, 1)
    rows = [row(temperature=0), row(0.0), row(temperature=0, top_p=0.9), row(ALMOST_ONE, top_k=2)]
    assert sample(logits, [0, 1, 2, 3], rows) == [2, 0, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-40, 5e-324])
def test_e10_temperatures_near_zero_are_greedy_and_finite(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[-100.0, 7.0, 4.0, -7.0, 6.0]], dtype=dtype)
    rows = [row(uniform, temperature=temperature) for uniform in (0.0, 0.5, ALMOST_ONE)]
    assert sample(logits, [0] * 3, rows) == [1, 1, 1]


@pytest.mark.parametrize("temperature", [1e-8, 5e-324])
def test_temperatures_near_zero_share_between_equal_bests(temperature: float) -> None:
    logits = torch.tensor([[2.0, 5.0, 5.0, 0.0]])
    assert sample(logits, [0] * 4, [row(uniform, temperature=temperature) for uniform in (0.0, 0.49, 0.51, ALMOST_ONE)]) == [1, 1, 2, 2]


def test_large_logits_and_masked_tokens() -> None:
    logits = torch.tensor([[3e38, -torch.inf, 3e38, -3e38]])
    assert sample(logits, [0] * 3, [row(0.0), row(0.5), row(ALMOST_ONE)]) == [0, 2, 2]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_rows_without_numbers_have_no_token(broken: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, broken, 2.0], [-torch.inf] * 3])
    rows = [row(temperature=0), row(temperature=0), row(0.5), row(0.5, temperature=1), row(temperature=0)]
    assert sample(logits, [0, 1, 1, 0, 2], rows) == [2, NO_TOKEN, NO_TOKEN, 2, NO_TOKEN]


# --- filters -------------------------------------------------------------------------------------------------------------


def test_e11_top_p_keeps_the_boundary_token() -> None:
    assert kept(logits_of(P), top_p=0.6) == {2, 3}


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [
        (0.399, {3}),
        (0.4, {3}),
        (0.401, {2, 3}),
        (0.7, {2, 3}),
        (0.701, {1, 2, 3}),
        (0.9, {1, 2, 3}),
        (0.901, {0, 1, 2, 3}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, tokens: set[int]) -> None:
    assert kept(logits_of(P), top_p=top_p) == tokens


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_top_p_is_not_confused_by_rounding(dtype: torch.dtype) -> None:
    # Ten tenths sum to a little less than the decimal fraction says.
    probabilities = torch.tensor([[0.1] * 10]).to(dtype) * torch.linspace(1.0, 0.99, 10, dtype=dtype)
    probabilities /= probabilities.sum()
    for count in range(1, 11):
        wanted = float(probabilities[0, :count].sum())
        assert int((kept_by_top_p(probabilities, wanted) > 0).sum()) == count


@pytest.mark.parametrize("options", [{}, {"top_p": 1.0}, {"top_k": 40}, {"top_k": 41}, {"top_k": 10_000}])
def test_e11_no_ops(options: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(torch, "topk", pytest.fail)  # nothing is ranked where nobody asks for it
    assert kept(logits[:1] / 100, **options) == set(range(40))  # type: ignore[arg-type]


@pytest.mark.parametrize("top_p", [1e-300, 1e-9, 1e-3])
def test_e11_one_token_always_survives(top_p: float) -> None:
    logits = torch.randn(1, 2000, generator=torch.Generator().manual_seed(2))
    assert kept(logits, top_p=top_p) == {int(logits.argmax())}
    assert kept(logits, top_p=top_p, top_k=5) == {int(logits.argmax())}
    assert kept(logits, top_k=1) == {int(logits.argmax())}


def test_e11_ties_at_the_boundary_all_stay() -> None:
    # Which of two equals goes would be chance; so neither does.
    assert kept(logits_of([0.25, 0.25, 0.25, 0.25]), top_p=0.3) == {0, 1, 2, 3}
    assert kept(logits_of([0.4, 0.2, 0.2, 0.2]), top_k=2) == {0, 1, 2, 3}
    assert kept(logits_of([0.4, 0.3, 0.2, 0.1]), top_k=2) == {0, 1}


def test_filters_are_for_those_draws_alone_that_ask_for_them() -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(3))
    before = logits.clone()
    limits: list[dict[str, float]] = [{}, {"top_k": 3}, {"top_k": 5, "top_p": 0.6}, {"top_p": 0.5}]
    rows = [row((i // 4 + 0.5) / 2000, **limits[i % 4]) for i in range(8000)]  # type: ignore[arg-type]
    tokens = sample(logits, [0] * 8000, rows)
    assert torch.equal(logits, before)
    for i, options in enumerate(limits):
        assert tokens[i::4] == sample(logits, [0] * 2000, rows[i::4])
        assert set(tokens[i::4]) == kept(logits, **options)  # type: ignore[arg-type]


def test_top_k_then_top_p() -> None:
    # Of the two best, renormalized to 3/7 and 4/7, the best alone reaches a half.
    assert kept(logits_of(P), top_k=2, top_p=0.5) == {3}
    assert kept(logits_of(P), top_k=2, top_p=0.6) == {2, 3}


def test_filtered_tokens_at_the_end_are_never_drawn() -> None:
    logits = logits_of([0.5, 0.3, 0.1, 0.05, 0.05])
    for options in ({"top_k": 2}, {"top_k": 3}):
        assert sample(logits, [0], [row(ALMOST_ONE, **options)]) == [options["top_k"] - 1]
    assert sample(logits, [0], [row(ALMOST_ONE, top_p=0.8)]) == [1]


def test_flat_distributions_have_all_of_the_vocabulary_sorted() -> None:
    # More tokens are needed than are looked at first.
    size = 3 * FIRST_CANDIDATES
    logits = torch.linspace(0.0, 0.5, size, dtype=torch.float64).unsqueeze(0)
    probabilities = torch.softmax(logits, -1)
    limited = kept_by_top_p(probabilities, 0.9)
    count = int((limited > 0).sum())
    assert count > FIRST_CANDIDATES
    assert torch.equal(limited[0, -count:], probabilities[0, -count:])
    assert float(limited.sum()) >= 0.9 - 1e-6 > float(limited[0, -count + 1 :].sum())
    # A peaked mate in the batch changes nothing, in either direction.
    peaked = torch.zeros(1, size, dtype=torch.float64)
    peaked[0, 17] = 20.0
    both = kept_by_top_p(torch.softmax(torch.cat([peaked, logits]), -1), 0.5, 0.9)
    assert torch.equal(both[1], limited[0])
    assert both[0].nonzero().flatten().tolist() == [17]


# --- distributions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(4))
    expected = torch.softmax(logits[0].double() / temperature, -1)
    # Evenly spread numbers miss a token's share by at most one draw at either edge of it.
    torch.testing.assert_close(frequencies(logits, temperature=temperature), expected, rtol=0, atol=1 / 4000 + 1e-5)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 1), (1.0, 4), (0.5, 7)])
def test_frequencies_under_top_k(temperature: float, top_k: int) -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(5))
    scaled = logits[0].double() / temperature
    best = scaled.topk(top_k).indices
    expected = torch.zeros(30, dtype=torch.float64).scatter(0, best, torch.softmax(scaled[best], -1))
    torch.testing.assert_close(frequencies(logits, temperature=temperature, top_k=top_k), expected, rtol=0, atol=1 / 4000 + 1e-5)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 0.5), (1.0, 0.95), (1.7, 0.8)])
def test_frequencies_under_top_p(temperature: float, top_p: float) -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(6))
    probabilities = torch.softmax(logits[0].double() / temperature, -1)
    chosen: list[int] = []
    for token in probabilities.argsort(descending=True).tolist():
        chosen.append(token)
        if float(probabilities[chosen].sum()) >= top_p:
            break
    assert 1 < len(chosen) < 30
    expected = torch.zeros(30, dtype=torch.float64)
    expected[chosen] = probabilities[chosen] / probabilities[chosen].sum()
    torch.testing.assert_close(frequencies(logits, temperature=temperature, top_p=top_p), expected, rtol=0, atol=1 / 4000 + 1e-5)


def test_a_large_vocabulary_is_summed_exactly_enough() -> None:
    # Rounded to float32, the sums near 1 are off by some hundredths of such small shares.
    size = 150_000
    wanted = [*range(0, size, 2000), size - 1]
    tokens = sample(torch.zeros(1, size), [0] * len(wanted), [row((token + 0.001) / size) for token in wanted])
    assert tokens == wanted


# --- batches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_depends_on_its_own_row_and_number_only(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    logits = (3 * torch.randn(12, 3000, generator=generator)).to(dtype)
    kinds = [
        {},
        {"temperature": 0.0},
        {"temperature": 0.2},
        {"top_k": 3},
        {"top_k": 2000},
        {"top_p": 0.3},
        {"top_p": 0.9999},
        {"temperature": 3.0, "top_p": 0.99},
        {"temperature": 30.0, "top_p": 0.95, "top_k": 2500},
    ]
    numbers = torch.rand(40, generator=generator).tolist()
    order = torch.randint(12, (40,), generator=generator).tolist()
    rows = [row(numbers[i], **kinds[i % len(kinds)]) for i in range(40)]  # type: ignore[arg-type]
    alone = [sample(logits[[order[i]]], [0], [rows[i]])[0] for i in range(40)]
    assert sample(logits, order, rows) == alone
    backwards = sample(logits.flip(0), [11 - i for i in reversed(order)], rows[::-1])
    assert backwards == alone[::-1]
    assert len(set(alone)) > 10


def test_several_samples_of_one_row() -> None:
    rows = [row(uniform) for uniform in (0.05, 0.15, 0.45, 0.95)] + [row(temperature=0)]
    assert sample(logits_of(P), [0] * 5, rows) == [0, 1, 2, 3, 3]
