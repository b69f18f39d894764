"""Weights to the panels that the native kernels read; see `src/kernels.h` for the layouts.

What a GGUF file held as Q4_0, Q4_1 or Q8_0 comes back exactly: its groups are found again in the numbers (`src/packing.cpp`).
"""

from __future__ import annotations

import torch

from chatpaged.engine.model_executor.native.interface import F16, F32, GROUP, I8, PANEL
from chatpaged.engine.model_executor.native.library import Team

_HALF_MAX = 65504.0


def pack(weight: torch.Tensor, layout: int, team: Team) -> torch.Tensor:
    """Packs a matrix.

    Args:
        weight: `[n, k]`, any floating type.
        layout: `F32`, `F16`, `I8` or `I4`.
        team: does the work.

    Returns:
        Bytes, one-dimensional.
    """
    n, k = weight.shape
    if layout in {F32, F16}:
        dtype = torch.float32 if layout == F32 else torch.float16
        narrow = weight.float().clamp(-_HALF_MAX, _HALF_MAX).to(dtype) if layout == F16 else weight.to(dtype)
        panels = _padded(narrow, n, k).view(-1, PANEL, k)
        return panels.transpose(1, 2).contiguous().view(torch.uint8).flatten()
    packed = torch.empty(packed_bytes(n, k, layout), dtype=torch.uint8)
    rows = weight.float().contiguous()
    team.library.cp_pack(team.handle, rows.data_ptr(), n, k, layout, packed.data_ptr())
    return packed


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


def _halves(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.float16).float()
