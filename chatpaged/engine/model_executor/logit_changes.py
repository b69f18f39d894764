"""Penalties, biases and bans: changes to single rows of logits before tokens are drawn from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chatpaged.engine.scheduler_output import LogitChanges, SampleRow


def change_logits(logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> tuple[torch.Tensor, list[int]]:
    """Applies what each sample asks for.

    Args:
        logits: `[R, vocabulary]`; left as they are.
        rows: for each sample its row of the logits.
        samples: how to draw.

    Returns:
        Logits with one more row for each sample that changes its own, and for each sample its row of them.
    """
    rows = list(rows)
    changed = [i for i, sample_row in enumerate(samples) if sample_row.changes is not None]
    if not changed:
        return logits, rows
    own = logits[[rows[i] for i in changed]].to(torch.promote_types(logits.dtype, torch.float32))
    for row, i in enumerate(changed):
        changes = samples[i].changes
        if changes is not None:
            _change(own[row], changes)
        rows[i] = logits.shape[0] + row
    return torch.cat([logits.to(own.dtype), own]), rows


def _change(row: torch.Tensor, changes: LogitChanges) -> None:
    """Changes one row, `[vocabulary]`, in place."""
    if changes.repetition_penalty != 1:
        _penalize_repetition(row, changes)
    if changes.output_ids and (changes.presence_penalty or changes.frequency_penalty):
        tokens, counts = torch.unique(_ids(changes.output_ids, row), return_counts=True)
        row[tokens] -= changes.presence_penalty + changes.frequency_penalty * counts.to(row.dtype)
    if changes.bias:
        tokens = _ids([token for token, _ in changes.bias], row)
        row[tokens] += torch.tensor([bias for _, bias in changes.bias], dtype=row.dtype, device=row.device)
    if changes.banned:
        row[_ids([token for token in changes.banned if token < row.shape[0]], row)] = -torch.inf


def _penalize_repetition(row: torch.Tensor, changes: LogitChanges) -> None:
    """Transformers' `RepetitionPenaltyLogitsProcessor` (CTRL, Keskar et al. 2019): prompt and answer count alike."""
    tokens = torch.unique(_ids((*changes.prompt_ids, *changes.output_ids), row))
    seen = row[tokens]
    row[tokens] = torch.where(seen < 0, seen * changes.repetition_penalty, seen / changes.repetition_penalty)


def _ids(token_ids: Sequence[int], row: torch.Tensor) -> torch.Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=row.device)
