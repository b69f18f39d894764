"""Drawing tokens with the native library, by the rules of `sampler.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from chatpaged.engine.model_executor.native.interface import Draw
from chatpaged.engine.model_executor.native.library import Team
from chatpaged.engine.scheduler_output import SampleRow
from chatpaged.errors import MemoryBudgetError


def draw_tokens(team: Team, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> torch.Tensor:
    """Draws one token for each sample.

    Args:
        team: does the work.
        logits: `[R, vocabulary]` float32, each row in one piece.
        rows: for each sample its row of the logits.
        samples: how to draw.

    Returns:
        Token ids, int64 `[S]`; `NO_TOKEN` where a row holds NaN, or nothing but infinity.

    Raises:
        MemoryBudgetError: no memory for intermediate results.
    """
    width, start = logits.stride(0) * logits.element_size(), logits.data_ptr()
    draws = (Draw * len(samples))(
        *(
            Draw(start + width * row, sample.temperature, sample.top_p, sample.min_p, sample.top_k, sample.uniform)
            for row, sample in zip(rows, samples, strict=True)
        )
    )
    tokens = (ctypes.c_int32 * len(samples))()
    if team.library.cp_sample(team.handle, len(samples), draws, logits.shape[1], tokens):
        raise MemoryBudgetError("no memory for drawing tokens")
    return torch.frombuffer(tokens, dtype=torch.int32).to(torch.int64)
