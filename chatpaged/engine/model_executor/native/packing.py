"""Weights to the panels that the native kernels read; see `src/kernels.h` for the layouts.

What a GGUF file held as Q4_0, Q4_1 or Q8_0 comes back exactly: its groups are found again in the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chatpaged.engine.model_executor.native.interface import F16, F32, GROUP, I8, PANEL

_HALF_MAX = 65504.0
_WORTH_A_SEARCH = 0.5
"""Where this share of the groups fits exactly at once, the others were made in the same way and are looked at closely."""


def pack(weight: torch.Tensor, layout: int) -> torch.Tensor:
    """Packs a matrix.

    Args:
        weight: `[n, k]`, any floating type.
        layout: `F32`, `F16`, `I8` or `I4`.

    Returns:
        Bytes, one-dimensional.
    """
    n, k = weight.shape
    if layout in {F32, F16}:
        dtype = torch.float32 if layout == F32 else torch.float16
        narrow = weight.float().clamp(-_HALF_MAX, _HALF_MAX).to(dtype) if layout == F16 else weight.to(dtype)
        panels = _padded(narrow, n, k).view(-1, PANEL, k)
        return panels.transpose(1, 2).contiguous().view(torch.uint8).flatten()
    groups = _padded(weight.float(), n, -(-k // GROUP) * GROUP).view(-1, PANEL, _groups(k), GROUP)
    return _pack_i8(groups) if layout == I8 else _pack_i4(groups)


def unpack(data: torch.Tensor, n: int, k: int, layout: int) -> torch.Tensor:
    """What a packed matrix stands for: `[n, k]` float32."""
    if layout in {F32, F16}:
        panels = data.view(torch.float32 if layout == F32 else torch.float16).view(-1, k, PANEL)
        return panels.transpose(1, 2).reshape(-1, k)[:n].float()
    groups = data.view(-1, _groups(k), data.numel() // (-(-n // PANEL) * _groups(k)))
    scale = _halves(groups[:, :, : 2 * PANEL])
    if layout == I8:
        codes = groups[:, :, 2 * PANEL :].view(*groups.shape[:2], GROUP // 4, PANEL, 4)
        values = (codes.to(torch.float32) - 128) * scale[:, :, None, :, None]
    else:
        least = _halves(groups[:, :, 2 * PANEL : 4 * PANEL])
        pairs = groups[:, :, 4 * PANEL :].view(*groups.shape[:2], GROUP // 8, 1, PANEL, 4)
        codes = torch.cat((pairs & 15, pairs >> 4), dim=3).view(*groups.shape[:2], GROUP // 4, PANEL, 4)
        values = codes.to(torch.float32) * scale[:, :, None, :, None] + least[:, :, None, :, None]
    # [panels, groups, quads, outputs, 4] -> [outputs, inputs]
    return values.permute(0, 3, 1, 2, 4).reshape(-1, _groups(k) * GROUP)[:n, :k]


def packed_bytes(n: int, k: int, layout: int) -> int:
    """Bytes of a packed matrix."""
    panels = -(-n // PANEL)
    if layout in {F32, F16}:
        return panels * PANEL * k * (4 if layout == F32 else 2)
    return panels * _groups(k) * PANEL * (2 + GROUP if layout == I8 else 4 + GROUP // 2)


def interleave(gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    """Gates and what they are multiplied with in turn, 16 of each; `[n, ...]` both, padded to a multiple of 16."""
    half = PANEL // 2
    rows = -(-gates.shape[0] // half) * half
    both = [part.new_zeros(rows, *part.shape[1:]) for part in (gates, ups)]
    for room, part in zip(both, (gates, ups), strict=True):
        room[: part.shape[0]] = part
    return torch.stack([part.view(-1, half, *part.shape[1:]) for part in both], dim=1).flatten(0, 2)


def _groups(k: int) -> int:
    return -(-k // GROUP)


def _padded(weight: torch.Tensor, n: int, k: int) -> torch.Tensor:
    rows = -(-n // PANEL) * PANEL
    if weight.shape == (rows, k):
        return weight
    padded = weight.new_zeros(rows, k)
    padded[:n, : weight.shape[1]] = weight
    return padded


def _pack_i8(groups: torch.Tensor) -> torch.Tensor:
    """`groups` is `[panels, outputs, groups, 32]`."""
    largest = groups.abs().amax(-1)
    scale, codes = _best_fit(groups, lambda top, part, chosen: _fit_i8(part, largest[chosen], top), 127)
    quads = (codes + 128).to(torch.uint8).view(*codes.shape[:3], GROUP // 4, 4).permute(0, 2, 3, 1, 4)
    return torch.cat((_bytes(scale[0]), quads.reshape(*quads.shape[:2], -1)), dim=-1).flatten()


def _pack_i4(groups: torch.Tensor) -> torch.Tensor:
    least, most = groups.amin(-1), groups.amax(-1)
    fitted, codes = _best_fit(groups, lambda top, part, chosen: _fit_i4(part, least[chosen], most[chosen], top), 15)
    quads = codes.to(torch.uint8).view(*codes.shape[:3], GROUP // 8, 2, 4).permute(0, 2, 3, 4, 1, 5)
    data = (quads[:, :, :, 0] | (quads[:, :, :, 1] << 4)).reshape(*quads.shape[:2], -1)
    return torch.cat((_bytes(fitted[0]), _bytes(fitted[1]), data), dim=-1).flatten()


_Fit = Callable[[int, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def _fit_i8(groups: torch.Tensor, largest: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales, codes and values, with the largest magnitude as code `top`."""
    scale = _half(largest / top).unsqueeze(-1)
    codes = (groups / _divisor(scale)).round_().clamp_(-127, 127)
    return scale.movedim(-1, 0), codes, codes * scale


def _fit_i4(groups: torch.Tensor, least: torch.Tensor, most: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales and least values, codes and values, with the largest number as code `top`."""
    scale, offset = _half((most - least) / top).unsqueeze(-1), _half(least).unsqueeze(-1)
    codes = ((groups - offset) / _divisor(scale)).round_().clamp_(0, 15)
    return torch.stack((scale, offset)).squeeze(-1), codes, codes * scale + offset


def _best_fit(groups: torch.Tensor, fit: _Fit, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fits all groups; where nearly all were made like this once, tries smaller codes for the largest number of the others.

    Returns:
        What was fitted `[1 or 2, panels, outputs, groups]`, and codes as `groups`.
    """
    fitted, codes, values = fit(top, groups, ...)
    inexact = (values != groups).any(-1)
    if not 0 < inexact.float().mean() < 1 - _WORTH_A_SEARCH:
        return fitted, codes
    for smaller in range(top - 1, 0, -1):
        chosen = inexact.nonzero(as_tuple=True)
        if not len(chosen[0]):
            break
        part = groups[chosen]
        new_fitted, new_codes, new_values = fit(smaller, part, chosen)
        good = (new_values == part).all(-1)
        places = tuple(axis[good] for axis in chosen)
        codes[places] = new_codes[good]
        for kept, new in zip(fitted, new_fitted, strict=True):
            kept[places] = new[good]
        inexact[places] = False
    return fitted, codes


def _half(values: torch.Tensor) -> torch.Tensor:
    """Rounded to half precision, as float."""
    return values.clamp(-_HALF_MAX, _HALF_MAX).half().float()


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, torch.inf, scale)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """`[panels, outputs, groups]` to halves `[panels, groups, 2 x outputs]`."""
    return values.transpose(1, 2).contiguous().half().view(torch.uint8)


def _halves(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.float16).float()
