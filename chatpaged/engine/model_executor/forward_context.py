"""What attention needs beside its own arguments, during one forward pass.

A model's layers are not ours: some drop keyword arguments they do not know. So the step's state does not travel through them
but stands here while the model runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from chatpaged.engine.model_executor.attention.base import PagedAttention


@dataclass(frozen=True, slots=True)
class Logits:
    """What a forward pass gives.

    Attributes:
        values: `[R, vocabulary]`.
        best: the likeliest token of each row, `NO_TOKEN` where the logits are not numbers; None if the model code does not look for it.
        padding: tokens that a replayed graph computed beside those of the step; None if none was replayed.
    """

    values: torch.Tensor
    best: list[int] | None = None
    padding: int | None = None


_attention: ContextVar[PagedAttention] = ContextVar("chatpaged_attention")


@contextmanager
def forward_context(attention: PagedAttention) -> Iterator[None]:
    """Makes `attention` the one that layers reach while the block runs."""
    token = _attention.set(attention)
    try:
        yield
    finally:
        _attention.reset(token)


def current_attention() -> PagedAttention:
    """The attention of the forward pass that is running.

    Raises:
        LookupError: none is running.
    """
    return _attention.get()
