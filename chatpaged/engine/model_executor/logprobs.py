"""Log-probabilities of drawn tokens, and of the likeliest ones at their places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.scheduler_output import SampleRow


def token_logprobs(
    logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow], token_ids: Sequence[int]
) -> list[TokenLogprobs | None]:
    """Reports each draw whose sample asks for it.

    Args:
        logits: `[R, vocabulary]`, penalties and biases applied.
        rows: for each sample its row of the logits.
        samples: how to draw.
        token_ids: for each sample the token that was drawn.
    """
    reports: list[TokenLogprobs | None] = [None] * len(samples)
    asked = [i for i, sample_row in enumerate(samples) if sample_row.logprobs is not None and token_ids[i] != NO_TOKEN]
    if not asked:
        return reports
    logprobs = torch.log_softmax(logits[[rows[i] for i in asked]].to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    most = max(samples[i].logprobs or 0 for i in asked)
    values, tokens = torch.topk(logprobs, min(most, logprobs.shape[1]), dim=-1)
    drawn = logprobs.gather(1, torch.tensor([[token_ids[i]] for i in asked], device=logprobs.device))
    for i, value, top_values, top_tokens in zip(asked, drawn[:, 0].tolist(), values.tolist(), tokens.tolist(), strict=True):
        ranked = zip(top_tokens, top_values, strict=True)
        top = tuple(pair for pair in ranked if math.isfinite(pair[1]))[: samples[i].logprobs]
        reports[i] = TokenLogprobs(token_ids[i], value, top)
    return reports
