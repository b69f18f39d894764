"""What the draws of a step ask for, as columns on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from chatpaged.engine.model_executor.transfers import upload
from chatpaged.engine.scheduler_output import SampleRow

_ROUNDING = 1e-6
"""What a sum of probabilities may lack of the share that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawColumns:
    """What D draws ask for. They stand in such an order that those with a limit are neighbours: limits apply to slices of rows.

    ```text
    draws     [ a b | c d | e f g | h ]
    top_k       k k   k k                 the first of them
    top_p             p p   p p p         `top_p_draws`
    ```

    Attributes:
        rows: int64 `[D]`, row of the logits.
        places: int64 `[D]`, index of the sample.
        temperatures: `[D, 1]`, above 0, of the type that probabilities have.
        min_p: likewise; 0 keeps all tokens.
        wanted: float64 `[D, 1]`, what the probabilities that top-p keeps have to sum up to.
        uniforms: float64 `[D, 1]`.
        last: int64 `[D, 1]`, rank of the last token that top-k keeps, from 0.
        top_k: how many tokens top-k keeps, of the draws that have one.
        top_p_draws: draws with a top-p.
        has_min_p: whether any draw has a min-p.
    """

    rows: torch.Tensor
    places: torch.Tensor
    temperatures: torch.Tensor
    min_p: torch.Tensor
    wanted: torch.Tensor
    uniforms: torch.Tensor
    last: torch.Tensor
    top_k: tuple[int, ...]
    top_p_draws: slice
    has_min_p: bool

    @classmethod
    def build(cls, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow], places: Sequence[int]) -> Self:
        """Lays out draws, with one transfer.

        Args:
            logits: `[R, vocabulary]`, which tokens are drawn from; only their shape and type count, and where they are.
            rows: for each sample its row of them.
            samples: how to draw.
            places: indices of the samples that are drawn, none of them greedy.
        """
        groups: tuple[list[int], ...] = ([], [], [], [])
        for place in places:
            limits_k, limits_p = 0 < samples[place].top_k < logits.shape[1], samples[place].top_p < 1
            groups[(1 if limits_p else 0) if limits_k else (2 if limits_p else 3)].append(place)
        only_k, both, only_p, _ = map(len, groups)
        order = [place for group in groups for place in group]
        draws = [samples[place] for place in order]
        numbers = np.array([(draw.temperature, draw.min_p, draw.top_p - _ROUNDING, draw.uniform) for draw in draws])
        dtype = np.float64 if logits.dtype == torch.float64 else np.float32
        with np.errstate(over="ignore", under="ignore"):
            narrow = numbers[:, :2].astype(dtype)
        # A temperature that is 0 in the type of the logits would make the largest of them NaN.
        np.maximum(narrow[:, 0], np.finfo(dtype).tiny, out=narrow[:, 0])
        integers = np.array([(rows[place], place, samples[place].top_k - 1) for place in order])
        wide, exact, whole = upload((numbers[:, 2:], narrow, integers), logits.device)
        return cls(
            rows=whole[:, 0],
            places=whole[:, 1],
            temperatures=exact[:, :1],
            min_p=exact[:, 1:],
            wanted=wide[:, :1],
            uniforms=wide[:, 1:],
            last=whole[:, 2:],
            top_k=tuple(draw.top_k for draw in draws[: only_k + both]),
            top_p_draws=slice(only_k, only_k + both + only_p),
            has_min_p=any(draw.min_p for draw in draws),
        )

    def piece(self, begin: int, end: int) -> Self:
        """Some of these draws."""
        first, last = (min(max(place - begin, 0), end - begin) for place in (self.top_p_draws.start, self.top_p_draws.stop))
        return replace(
            self,
            rows=self.rows[begin:end],
            places=self.places[begin:end],
            temperatures=self.temperatures[begin:end],
            min_p=self.min_p[begin:end],
            wanted=self.wanted[begin:end],
            uniforms=self.uniforms[begin:end],
            last=self.last[begin:end],
            top_k=self.top_k[begin:end],
            top_p_draws=slice(first, last),
        )
