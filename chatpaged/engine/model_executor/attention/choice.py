"""Which attention a model of torch operations gets, and why: by name, or the best that there is."""

from __future__ import annotations

import logging

import torch

from chatpaged.engine.model_executor.attention.base import AttentionBackend
from chatpaged.engine.model_executor.attention.flash_paged import FlashBackend, flash_problem, reads_in_place
from chatpaged.engine.model_executor.attention.torch_check import is_doubted, torch_problem
from chatpaged.engine.model_executor.attention.torch_paged import TorchBackend
from chatpaged.engine.model_executor.attention.triton_paged import TritonBackend, choose_chunk, triton_problem
from chatpaged.engine.model_executor.attention.varlen_paged import VarlenBackend, varlen_problem
from chatpaged.engine.model_executor.models.geometry import KVGeometry

_log = logging.getLogger(__name__)
KERNELS = {"triton": "Triton", "flash": "flash", "varlen": "varlen"}
"""Names of the attentions that are kernels of their own, and what people call them; the best first."""


def attention_problem(
    name: str, device: torch.device, dtype: torch.dtype, geometry: KVGeometry | None = None, *, block_size: int = 16
) -> str | None:
    """Why an attention cannot be had, or None.

    Args:
        name: "torch", or one of `KERNELS`.
        device: where the model runs.
        dtype: type of activations.
        geometry: what its layers store; None if that is not known yet.
        block_size: tokens a block holds.
    """
    head_dim = geometry.head_dim if geometry is not None else 0
    if name == "triton":
        return triton_problem(device, dtype, head_dim)
    if name == "flash":
        return flash_problem(device, dtype, head_dim, block_size=block_size)
    if name == "varlen":
        return varlen_problem(device, dtype, head_dim, softcap=geometry is not None and geometry.softcap)
    return None


def best_attention(device: torch.device, dtype: torch.dtype, geometry: KVGeometry, block_size: int) -> tuple[str, str]:
    """The best attention that can be had, and why it is this one: what speaks for it, and against each that would be better.

    Args:
        device: where the model runs.
        dtype: type of activations.
        geometry: what its layers store.
        block_size: tokens a block holds.
    """
    reasons: list[str] = []
    if device.type == "cuda":
        for name, title in KERNELS.items():
            problem = attention_problem(name, device, dtype, geometry, block_size=block_size)
            if problem is None:
                return name, "; ".join([*reasons, _advantage(name, block_size)])
            reasons.append(f"no {title} attention: {problem}")
            _log.info("no %s attention: %s", title, problem)
    if shown := torch_reason(device, dtype):
        reasons.append(shown)
    return "torch", "; ".join(reasons)


def torch_reason(device: torch.device, dtype: torch.dtype) -> str:
    """What a trial of torch's own attention has shown; empty where there is none."""
    if not is_doubted(device):
        return ""
    problem = torch_problem(device, dtype)
    return "torch's own attention is right here" if problem is None else f"{problem}; matrix products and a softmax instead"


def make_attention(name: str, device: torch.device, dtype: torch.dtype, max_model_len: int) -> AttentionBackend:
    """An attention that can be had.

    Args:
        name: as for `attention_problem`.
        device: where the model runs.
        dtype: type of activations.
        max_model_len: longest sequence.
    """
    if name == "triton":
        return TritonBackend(choose_chunk(max_model_len))
    if name == "flash":
        return FlashBackend()
    if name == "varlen":
        return VarlenBackend()
    return TorchBackend(plain=torch_problem(device, dtype) is not None)


def _advantage(name: str, block_size: int) -> str:
    if name == "triton":
        return "Triton's attention reads keys and values where they lie"
    if name == "flash":
        where = "reads keys and values where they lie" if reads_in_place(block_size) else "gets copies of keys and values"
        return f"flash-attn's attention {where}"
    return "torch's varlen attention gets copies of keys and values"
