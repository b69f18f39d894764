"""Numbers on their way to a device and back: nothing but `read` waits for it.

A copy from pinned memory is queued like any other work. Torch keeps pinned memory until the copies from it are done, so nobody has to
wait before it is used again. All arrays of one call travel as one piece of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[Any]


def is_host(device: torch.device) -> bool:
    """Whether numbers of this device can be read without waiting."""
    return device.type == "cpu"


def upload(arrays: Sequence[Array], device: torch.device) -> tuple[torch.Tensor, ...]:
    """The same numbers on a device, queued there with one transfer. On a CPU they share the arrays' memory."""
    if is_host(device):
        return tuple(torch.from_numpy(array) for array in arrays)
    return unpack(pack(arrays, is_pinned=device.type == "cuda").to(device, non_blocking=True), arrays)


def pack(arrays: Sequence[Array], *, is_pinned: bool) -> torch.Tensor:
    """Arrays as one piece of host memory, uint8 `[bytes]`. Their places in it follow from their shapes and types alone."""
    packed = torch.empty(sum(array.nbytes for array in arrays), dtype=torch.uint8, pin_memory=is_pinned)
    for view, array in zip(unpack(packed, arrays), arrays, strict=True):
        view.numpy()[...] = array
    return packed


def unpack(packed: torch.Tensor, like: Sequence[Array | torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Views of packed arrays, wherever their bytes lie. Of `like` only shapes and types count."""
    views: dict[int, torch.Tensor] = {}
    begin = 0
    # The largest numbers come first, so that all are aligned without gaps.
    for i in sorted(range(len(like)), key=lambda i: -like[i].itemsize):
        entry = like[i]
        dtype = entry.dtype if isinstance(entry, torch.Tensor) else torch.from_numpy(np.empty(0, entry.dtype)).dtype
        views[i] = packed[begin : begin + entry.nbytes].view(dtype).view(entry.shape)
        begin += entry.nbytes
    return tuple(views[i] for i in range(len(like)))


def read(tensors: Sequence[torch.Tensor]) -> tuple[Array, ...]:
    """The numbers of tensors of one device, with one transfer. Waits for them, and so for all that was queued before."""
    if is_host(tensors[0].device):
        return tuple(tensor.numpy() for tensor in tensors)
    ordered = sorted(tensors, key=lambda tensor: -tensor.itemsize)
    packed = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in ordered]).cpu()
    return tuple(view.numpy() for view in unpack(packed, tensors))
