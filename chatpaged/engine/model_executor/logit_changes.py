"""Penalties, biases and bans: changes to single rows of logits before tokens are drawn from them.

What is changed, and by how much, is worked out on the host, and goes to the device in one transfer for all rows of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from chatpaged.engine.model_executor.transfers import Array, upload
from chatpaged.engine.scheduler_output import LogitChanges, SampleRow


def change_logits(logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> tuple[torch.Tensor, list[int]]:
    """Applies what each sample asks for.

    Args:
        logits: `[R, vocabulary]`; left as they are.
        rows: for each sample its row of the logits.
        samples: how to draw.

    Returns:
        The logits that are drawn from, in at least float32 where any are changed; each sample that changes its own has a row for itself.
        And for each sample its row of them.
    """
    if all(sample_row.changes is None for sample_row in samples):
        return logits, list(rows)
    taken = sorted({row for row, sample_row in zip(rows, samples, strict=True) if sample_row.changes is None})
    shared = {row: i for i, row in enumerate(taken)}
    edits = _Edits(logits.shape[1], np.float64 if logits.dtype == torch.float64 else np.float32)
    own_rows = []
    for row, sample_row in zip(rows, samples, strict=True):
        if sample_row.changes is None:
            own_rows.append(shared[row])
        else:
            edits.add(len(taken), sample_row.changes)
            own_rows.append(len(taken))
            taken.append(row)
    places, *numbers = upload([np.array(taken), *edits.arrays()], logits.device)
    own = logits.index_select(0, places).to(torch.promote_types(logits.dtype, torch.float32))
    _apply(own.view(-1), *numbers)
    return own, own_rows


class _Edits:
    """What is done to which numbers of `[rows, vocabulary]`, seen as one row. No list has a number twice."""

    def __init__(self, vocabulary: int, dtype: type[np.floating[Any]]) -> None:
        self._vocabulary = vocabulary
        self._dtype = dtype
        self._repeated: list[Array] = []
        self._penalties: list[Array] = []
        self._counted: list[Array] = []
        self._reductions: list[Array] = []
        self._biased: list[Array] = []
        self._biases: list[Array] = []
        self._banned: list[Array] = []

    def add(self, row: int, changes: LogitChanges) -> None:
        """Notes what one row is to become."""
        if changes.repetition_penalty != 1:
            # Transformers' `RepetitionPenaltyLogitsProcessor` (CTRL, Keskar et al. 2019): prompt and answer count alike.
            seen = {*changes.prompt_ids, *changes.output_ids}
            self._repeated.append(self._places(row, seen))
            self._penalties.append(np.full(len(seen), changes.repetition_penalty, self._dtype))
        if changes.output_ids and (changes.presence_penalty or changes.frequency_penalty):
            counts = Counter(changes.output_ids)
            self._counted.append(self._places(row, counts))
            times = np.fromiter(counts.values(), self._dtype, len(counts))
            self._reductions.append(self._dtype(changes.presence_penalty) + self._dtype(changes.frequency_penalty) * times)
        if changes.bias:
            self._biased.append(self._places(row, [token for token, _ in changes.bias]))
            self._biases.append(np.array([bias for _, bias in changes.bias], self._dtype))
        self._banned.append(self._places(row, [token for token in changes.banned if token < self._vocabulary]))

    def arrays(self) -> list[Array]:
        """What `_apply` takes, in its order: places and amounts by turns."""
        kinds = (self._repeated, self._penalties, self._counted, self._reductions, self._biased, self._biases, self._banned)
        types: list[Any] = [np.int64, self._dtype] * 4
        return [np.concatenate([np.empty(0, dtype), *parts]) for dtype, parts in zip(types, kinds, strict=False)]

    def _places(self, row: int, tokens: Collection[int]) -> Array:
        return np.fromiter(tokens, np.int64, len(tokens)) + row * self._vocabulary


def _apply(
    logits: torch.Tensor,
    repeated: torch.Tensor,
    penalties: torch.Tensor,
    counted: torch.Tensor,
    reductions: torch.Tensor,
    biased: torch.Tensor,
    biases: torch.Tensor,
    banned: torch.Tensor,
) -> None:
    """Changes logits, `[rows x vocabulary]`, in place."""
    if len(repeated):
        seen = logits[repeated]
        logits[repeated] = torch.where(seen < 0, seen * penalties, seen / penalties)
    if len(counted):
        logits[counted] -= reductions
    if len(biased):
        logits[biased] += biases
    logits.index_fill_(0, banned, -torch.inf)
