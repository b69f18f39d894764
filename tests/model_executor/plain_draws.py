"""Drawing by the rules, written to be read: one sample after another, every number looked at when it is wanted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor.sampler import queue_draws
from chatpaged.engine.model_executor.step_draws import draw_samples
from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.scheduler_output import LogitChanges, SampleRow


def sample(logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> list[int]:
    """The engine's own draws, waited for."""
    return draw_samples(queue_draws, logits, rows, samples)[0]


def plain_changes(row: torch.Tensor, changes: LogitChanges | None) -> torch.Tensor:
    """A row's logits as they are drawn from."""
    if changes is None:
        return row
    row = row.to(torch.promote_types(row.dtype, torch.float32)).clone()
    for token in {*changes.prompt_ids, *changes.output_ids}:
        penalty = torch.tensor(changes.repetition_penalty, dtype=row.dtype)
        row[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
    presence, frequency = (torch.tensor(amount, dtype=row.dtype) for amount in (changes.presence_penalty, changes.frequency_penalty))
    for token in set(changes.output_ids):
        row[token] -= presence + frequency * changes.output_ids.count(token)
    for token, bias in changes.bias:
        row[token] += bias
    for token in changes.banned:
        if token < len(row):
            row[token] = -torch.inf
    return row


def plain_draw(row: torch.Tensor, asked: SampleRow) -> int:
    """The token that is drawn from a row's logits."""
    if not bool(row.max().isfinite()):
        return NO_TOKEN
    if asked.temperature == 0:
        return int(row.argmax())
    row = row.to(torch.promote_types(row.dtype, torch.float32))
    temperature = torch.tensor(asked.temperature, dtype=torch.float64).to(row.dtype).clamp_(min=torch.finfo(row.dtype).tiny)
    row = (row - row.max()) / temperature
    if 0 < asked.top_k < len(row):
        row = row.masked_fill(row < row.sort(descending=True).values[asked.top_k - 1], -torch.inf)
    probabilities = torch.softmax(row, dim=-1)
    least = torch.tensor(asked.min_p, dtype=row.dtype) * probabilities.max()
    if asked.top_p < 1:
        ranked = probabilities.sort(descending=True).values
        short = int((ranked.cumsum(0, dtype=torch.float64) < asked.top_p - 1e-6).sum())
        probabilities = probabilities.masked_fill(probabilities < ranked[min(short, len(row) - 1)], 0)
    sums = probabilities.masked_fill(probabilities < least, 0).cumsum(0, dtype=torch.float64)
    return min(int((sums <= asked.uniform * sums[-1]).sum()), len(row) - 1)


def plain_logprobs(row: torch.Tensor, asked: SampleRow, token: int) -> TokenLogprobs | None:
    """What is reported of a token that was drawn from a row's logits."""
    if asked.logprobs is None or token == NO_TOKEN:
        return None
    logprobs = torch.log_softmax(row.to(torch.promote_types(row.dtype, torch.float32)).unsqueeze(0), dim=-1)
    values, tokens = (part[0].tolist() for part in logprobs.topk(min(asked.logprobs, len(row))))
    top = tuple((other, value) for other, value in zip(tokens, values, strict=True) if value > -torch.inf)
    return TokenLogprobs(token, float(logprobs[0, token]), top)
