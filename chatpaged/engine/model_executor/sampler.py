"""Drawing tokens from logits, for a whole step at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.scheduler_output import SampleRow

_FIRST_CANDIDATES = 1024
_ROUNDING = 1e-6


def sample(logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> list[int]:
    """Draws one token for each sample.

    A token depends on its own row's logits and its own uniform number only, never on the other rows.

    Args:
        logits: `[R, vocabulary]`.
        rows: for each sample its row of the logits.
        samples: how to draw.

    Returns:
        Token ids, one a sample; `NO_TOKEN` where a row holds NaN or infinity.
    """
    best = torch.max(logits, dim=-1)
    # The largest of some numbers is NaN where one of them is.
    greedy = torch.where(best.values.isfinite(), best.indices, NO_TOKEN).tolist()
    tokens = [greedy[row] for row in rows]
    drawn = [i for i, sample_row in enumerate(samples) if sample_row.temperature > 0 and tokens[i] != NO_TOKEN]
    if drawn:
        chosen = _draw(logits[[rows[i] for i in drawn]], [samples[i] for i in drawn])
        for i, token in zip(drawn, chosen, strict=True):
            tokens[i] = token
    return tokens


def _draw(logits: torch.Tensor, samples: list[SampleRow]) -> list[int]:
    if logits.device.type == "mps":
        logits = logits.cpu()  # sums are taken in float64, which is not there

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # The largest logit is taken off first: a temperature close to 0 would make all of them infinite. One that is 0 in the
    # logits' type would make the largest NaN.
    temperatures = column([s.temperature for s in samples]).to(logits.dtype).clamp_(min=torch.finfo(logits.dtype).tiny)
    logits = (logits - logits.max(dim=-1, keepdim=True).values) / temperatures
    logits = keep_top_k(logits, [s.top_k for s in samples])
    probabilities = torch.softmax(logits, dim=-1)
    least = min_p_threshold(probabilities, [s.min_p for s in samples])
    probabilities = keep_top_p(probabilities, [s.top_p for s in samples])
    if least is not None:
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    # Inverse transform: the first token at which the summed probability exceeds uniform x total.
    sums = torch.cumsum(probabilities, dim=-1, dtype=torch.float64)
    targets = column([s.uniform for s in samples]) * sums[:, -1:]
    chosen = torch.searchsorted(sums, targets, right=True).clamp_(max=sums.shape[1] - 1)
    return [int(token) for token in chosen.squeeze(1).tolist()]


def min_p_threshold(probabilities: torch.Tensor, min_p: Sequence[float]) -> torch.Tensor | None:
    """The probability, `[rows, 1]`, that a token of each row must have to be kept; None if no row has a limit."""
    if not any(min_p):
        return None
    shares = torch.tensor(min_p, dtype=probabilities.dtype, device=probabilities.device).unsqueeze(1)
    return shares * probabilities.max(dim=-1, keepdim=True).values


def keep_top_k(logits: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """Sets all but the k largest logits of each row to -inf. Ties with the last kept one stay; 0 keeps all."""
    limited = [row for row, k in enumerate(top_k) if 0 < k < logits.shape[1]]
    if not limited:
        return logits
    largest = torch.topk(logits[limited], max(top_k[row] for row in limited), dim=-1).values
    last = torch.tensor([top_k[row] - 1 for row in limited], device=logits.device).unsqueeze(1)
    logits = logits.clone()
    logits[limited] = logits[limited].masked_fill(logits[limited] < largest.gather(1, last), -torch.inf)
    return logits


def keep_top_p(probabilities: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """Sets the probability of all but the most likely tokens of each row to 0.

    The smallest set whose sum reaches p is kept, and what ties with its last member. The sum has a tolerance for rounding.
    """
    limited = [row for row, p in enumerate(top_p) if p < 1]
    if not limited:
        return probabilities
    part = probabilities[limited]
    wanted = torch.tensor([top_p[row] for row in limited], dtype=torch.float64, device=part.device).unsqueeze(1) - _ROUNDING
    count = min(_FIRST_CANDIDATES, part.shape[1])
    while True:
        largest = torch.topk(part, count, dim=-1).values
        sums = torch.cumsum(largest, dim=-1, dtype=torch.float64)
        if count == part.shape[1] or bool((sums[:, -1:] >= wanted).all()):
            break
        count = part.shape[1]  # flat distributions need all of the vocabulary sorted
    last = (sums < wanted).sum(dim=-1, keepdim=True).clamp_(max=count - 1)
    probabilities = probabilities.clone()
    probabilities[limited] = part.masked_fill(part < largest.gather(1, last), 0)
    return probabilities
