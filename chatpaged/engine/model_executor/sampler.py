"""Drawing tokens from logits, for a whole step at once. On a device all of it is queued: nothing here waits for a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor import transfers
from chatpaged.engine.model_executor.draw_columns import DrawColumns
from chatpaged.engine.scheduler_output import SampleRow

UNDECIDED = -2
"""Stands where top-p needs more candidates than were looked at, which shows only when the numbers are read."""
FIRST_CANDIDATES = 1024
_MOST_NUMBERS = 2**23
"""Probabilities that are computed at once: some 200 MB with all that is made of them, whatever the size of the batch."""


def rows_at_once(vocabulary: int) -> int:
    """Rows of probabilities that are computed at once."""
    return max(1, _MOST_NUMBERS // vocabulary)


def queue_draws(
    logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow], candidates: int = FIRST_CANDIDATES
) -> torch.Tensor:
    """Draws one token for each sample.

    A token depends on its own row's logits and its own uniform number only, never on the other rows.

    Args:
        logits: `[R, vocabulary]`.
        rows: for each sample its row of the logits.
        samples: how to draw; at least one.
        candidates: likeliest tokens that top-p looks at. Where that is not enough, all are looked at if numbers can be read without
            waiting for them, else the token is undecided.

    Returns:
        Token ids, int64 `[S]`, on the device of the logits; `NO_TOKEN` where a row holds NaN or infinity, `UNDECIDED` where more
        candidates have to be looked at.
    """
    best = torch.max(logits, dim=-1)
    # The largest of some numbers is NaN where one of them is.
    tokens = torch.where(best.values.isfinite(), best.indices, NO_TOKEN)
    if list(rows) != list(range(logits.shape[0])):
        tokens = tokens.index_select(0, transfers.upload([np.array(rows)], logits.device)[0])
    drawn = [i for i, sample_row in enumerate(samples) if sample_row.temperature > 0]
    if drawn:
        columns = DrawColumns.build(logits, rows, samples, drawn)
        step = rows_at_once(logits.shape[1])
        pieces = [columns.piece(i, min(i + step, len(drawn))) for i in range(0, len(drawn), step)]
        chosen = torch.cat([_draw(logits, best.values, piece, candidates) for piece in pieces])
        greedy = tokens.index_select(0, columns.places)
        tokens.index_copy_(0, columns.places, torch.where(greedy == NO_TOKEN, NO_TOKEN, chosen))
    return tokens


def _draw(logits: torch.Tensor, best: torch.Tensor, draws: DrawColumns, candidates: int) -> torch.Tensor:
    """Tokens of some draws, int64 `[D]`; any where the logits are not numbers.

    Args:
        logits: `[R, vocabulary]`.
        best: `[R]`, the largest logit of each row.
        draws: some of the step's.
        candidates: see `queue_draws`.
    """
    scaled = logits.index_select(0, draws.rows).to(draws.temperatures.dtype)
    # The largest logit is taken off first: a temperature close to 0 would make all of them infinite.
    scaled.sub_(best.index_select(0, draws.rows).to(scaled.dtype).unsqueeze(1)).div_(draws.temperatures)
    keep_top_k(scaled[: len(draws.top_k)], draws.top_k, draws.last)
    probabilities = torch.softmax(scaled, dim=-1)
    least = draws.min_p * probabilities.amax(dim=-1, keepdim=True) if draws.has_min_p else None
    undecided = keep_top_p(probabilities[draws.top_p_draws], draws.wanted[draws.top_p_draws], candidates)
    if least is not None:
        probabilities.masked_fill_(probabilities < least, 0)
    # Inverse transform: the first token at which the summed probability exceeds uniform x total.
    sums = torch.cumsum(probabilities, dim=-1, dtype=torch.float64)
    chosen = torch.searchsorted(sums, draws.uniforms * sums[:, -1:], right=True).clamp_(max=sums.shape[1] - 1).squeeze(1)
    if undecided is not None:
        chosen[draws.top_p_draws].masked_fill_(undecided, UNDECIDED)
    return chosen


def keep_top_k(logits: torch.Tensor, top_k: Sequence[int], last: torch.Tensor) -> None:
    """Sets all but the k largest logits of each row to -inf, in place. Ties with the last kept one stay.

    Args:
        logits: `[K, vocabulary]`.
        top_k: k of each row, at least 1 and less than the vocabulary.
        last: int64 `[K or more, 1]`, the same numbers less 1, on the device.
    """
    if top_k:
        largest = torch.topk(logits, max(top_k), dim=-1).values
        logits.masked_fill_(logits < largest.gather(1, last[: len(top_k)]), -torch.inf)


def keep_top_p(probabilities: torch.Tensor, wanted: torch.Tensor, candidates: int) -> torch.Tensor | None:
    """Sets the probability of all but the most likely tokens of each row to 0, in place.

    The smallest set whose sum reaches what is wanted is kept, and what ties with its last member.

    Args:
        probabilities: `[P, vocabulary]`.
        wanted: float64 `[P, 1]`.
        candidates: see `queue_draws`.

    Returns:
        `[P]`, rows that need more candidates; None if there are none for sure.
    """
    if not len(probabilities):
        return None
    vocabulary = probabilities.shape[1]
    count = min(candidates, vocabulary)
    largest = torch.topk(probabilities, count, dim=-1).values
    sums = torch.cumsum(largest, dim=-1, dtype=torch.float64)
    short = sums[:, -1] < wanted[:, 0] if count < vocabulary else None
    if short is not None and transfers.is_host(short.device):
        if bool(short.any()):
            return keep_top_p(probabilities, wanted, vocabulary)
        short = None
    last = (sums < wanted).sum(dim=-1, keepdim=True).clamp_(max=count - 1)
    probabilities.masked_fill_(probabilities < largest.gather(1, last), 0)
    return short
