"""Log-probabilities of drawn tokens, and of the likeliest ones at their places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor.sampler import rows_at_once
from chatpaged.engine.model_executor.transfers import Array, upload
from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.scheduler_output import SampleRow


def queue_logprobs(
    logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow], tokens: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Computes what A samples ask to have reported, without waiting for it.

    Args:
        logits: `[R, vocabulary]`, penalties and biases applied.
        rows: for each sample its row of the logits.
        samples: how to draw.
        tokens: int64 `[S]`, for each sample the token that is drawn.

    Returns:
        What `token_logprobs` takes: the drawn tokens' `[A]`, those of the K likeliest `[A, K]`, and which these are, int64 `[A, K]`.
        Nothing if no sample asks.
    """
    asked = [i for i, sample_row in enumerate(samples) if sample_row.logprobs is not None]
    if not asked:
        return ()
    (places,) = upload([np.array([(i, rows[i]) for i in asked])], logits.device)
    most = min(max(samples[i].logprobs or 0 for i in asked), logits.shape[1])
    drawn = tokens.index_select(0, places[:, 0]).clamp_(min=0).unsqueeze(1)  # whatever stands where no token is
    parts = []
    step = rows_at_once(logits.shape[1])
    for begin in range(0, len(asked), step):
        piece = slice(begin, begin + step)
        part = logits.index_select(0, places[piece, 1]).to(torch.promote_types(logits.dtype, torch.float32))
        logprobs = torch.log_softmax(part, dim=-1)
        values, likeliest = torch.topk(logprobs, most, dim=-1)
        parts.append((logprobs.gather(1, drawn[piece])[:, 0], values, likeliest))
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))


def token_logprobs(samples: Sequence[SampleRow], token_ids: Sequence[int], numbers: Sequence[Array]) -> list[TokenLogprobs | None]:
    """Reports each draw whose sample asks for it, unless it has given no token.

    Args:
        samples: how to draw.
        token_ids: for each sample the token that was drawn.
        numbers: what `queue_logprobs` has computed for them.
    """
    reports: list[TokenLogprobs | None] = [None] * len(samples)
    if not numbers:
        return reports
    asked = [i for i, sample_row in enumerate(samples) if sample_row.logprobs is not None]
    for i, value, values, likeliest in zip(asked, *(column.tolist() for column in numbers), strict=True):
        if token_ids[i] != NO_TOKEN:
            ranked = zip(likeliest, values, strict=True)
            top = tuple(pair for pair in ranked if math.isfinite(pair[1]))[: samples[i].logprobs]
            reports[i] = TokenLogprobs(token_ids[i], value, top)
    return reports
