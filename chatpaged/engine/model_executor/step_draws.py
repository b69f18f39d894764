"""All that is drawn in one step, and the only place where a step waits for its device: once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch

from chatpaged.engine.model_executor import transfers
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.logit_changes import change_logits
from chatpaged.engine.model_executor.logprobs import queue_logprobs, token_logprobs
from chatpaged.engine.model_executor.sampler import UNDECIDED, queue_draws
from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow

Draw: TypeAlias = Callable[[torch.Tensor, Sequence[int], Sequence[SampleRow]], torch.Tensor]
"""See `sampler.queue_draws`."""
StepDraws: TypeAlias = tuple[tuple[tuple[int, ...], ...], tuple[tuple[TokenLogprobs | None, ...], ...]]


def draw_step(draw: Draw, computed: Logits, rows: Sequence[ScheduledRow]) -> StepDraws:
    """Draws all tokens of a step, and waits for them.

    Args:
        draw: the model's way to draw.
        computed: the logits of those rows that have samples.
        rows: the step's.

    Returns:
        The tokens, and what was asked to be reported of them, row by row; no reports where nobody asks.
    """
    samples = [sample_row for row in rows for sample_row in row.samples]
    if not samples:
        return ((),) * len(rows), ()
    if computed.best is not None and all(is_plain_greedy(sample_row) for sample_row in samples):
        best = iter(computed.best)
        return tuple((next(best),) * len(row.samples) if row.samples else () for row in rows), ()
    sampling = (row for row in rows if row.samples)
    logits, places = change_logits(computed.values, [i for i, row in enumerate(sampling) for _ in row.samples], samples)
    drawn, reported = draw_samples(draw, logits, places, samples)
    tokens, reports = iter(drawn), iter(reported)
    return (
        tuple(tuple(next(tokens) for _ in row.samples) for row in rows),
        tuple(tuple(next(reports) for _ in row.samples) for row in rows),
    )


def is_plain_greedy(sample_row: SampleRow) -> bool:
    """Whether nothing but the likeliest token is asked for."""
    return sample_row.temperature == 0 and sample_row.changes is None and sample_row.logprobs is None


def draw_samples(
    draw: Draw, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]
) -> tuple[list[int], list[TokenLogprobs | None]]:
    """Draws a token for each sample, and waits for them.

    Args:
        draw: the model's way to draw.
        logits: `[R, vocabulary]`, penalties and biases applied.
        rows: for each sample its row of the logits.
        samples: how to draw; at least one.

    Returns:
        Token ids, `NO_TOKEN` where the logits are not numbers; and what was asked to be reported of them.
    """
    if logits.device.type == "mps" and any(sample_row.temperature > 0 for sample_row in samples):
        logits = logits.cpu()  # sums are taken in float64, which is not there
    queued = draw(logits, rows, samples)
    token_ids, *numbers = transfers.read((queued, *queue_logprobs(logits, rows, samples, queued)))
    tokens: list[int] = token_ids.tolist()
    reports = token_logprobs(samples, tokens, numbers)
    undecided = [i for i, token in enumerate(tokens) if token == UNDECIDED]
    if undecided:  # flat distributions, which are rare, wait a second time
        whole = partial(queue_draws, candidates=logits.shape[1])
        again = draw_samples(whole, logits, [rows[i] for i in undecided], [samples[i] for i in undecided])
        for i, token, report in zip(undecided, *again, strict=True):
            tokens[i], reports[i] = token, report
    return tokens, reports
