"""How a model of torch operations runs: its attention, its other operations, its blocks. Decided for loading, and for telling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention.choice import best_attention, torch_reason
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVLayout
from chatpaged.engine.model_executor.kv_cache import KVLayout
from chatpaged.engine.model_executor.models.code_path import MAX_NATIVE_HEAD_DIM, CodePath
from chatpaged.engine.model_executor.models.fused_ops import fused_problem
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.refusals import refuse_attention, refuse_fp8_kv
from chatpaged.engine.model_executor.native.library import native_problem
from chatpaged.engine.model_executor.native_kv_cache import NativeKVLayout
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.engine.model_executor.models.quantizer import Quantizer  # imports transformers

FEW_THREADS = 4
"""With more, torch's attention on all of them is faster than the native one on one of them."""


def num_threads(options: EngineConfig) -> int:
    """CPU threads: what the user asked for, else one for each physical core."""
    return options.threads if options.threads is not None else psutil.cpu_count(logical=False) or 1


def quantized_path(path: CodePath, quantizer: Quantizer | None, options: EngineConfig) -> CodePath:
    """How a model runs whose weights a quantizer reads, if one does.

    Raises:
        InvalidRequestError: a type of activations was asked for by name that the quantizer does not have.
    """
    if quantizer is None:
        return path
    if options.dtype != "auto" and quantizer.dtype != path.dtype:
        wanted = str(quantizer.dtype).removeprefix("torch.")
        raise InvalidRequestError(f"--dtype {options.dtype} cannot be had with {quantizer.stored.label} weights; use --dtype {wanted}")
    return path.with_quantizer(quantizer.dtype, widened=quantizer.widens)


def can_attend_natively(geometry: KVGeometry, path: CodePath, options: EngineConfig, device: torch.device) -> bool:
    """Whether a model of torch operations gets the native attention."""
    return (
        device.type == "cpu"
        and options.attention == "auto"
        and path.dtype == torch.float32
        and options.code_path in {"auto", "native"}
        and geometry.uniform
        and geometry.head_dim <= MAX_NATIVE_HEAD_DIM
        and num_threads(options) <= FEW_THREADS
        and native_problem() is None
    )


def choose_attention(geometry: KVGeometry, path: CodePath, options: EngineConfig, device: torch.device) -> CodePath:
    """How a model of torch operations runs, with its attention decided.

    Raises:
        InvalidRequestError: an attention was asked for by name that this model cannot have.
    """
    if can_attend_natively(geometry, path, options, device):
        return replace(path, attention="native")
    refuse_fp8_kv(options, device, path.dtype, geometry)
    if options.attention == "auto":
        if path.kv_dtype == "fp8":
            return replace(path, attention="triton", attention_reason="only Triton's attention has --kv-dtype fp8")
        name, reason = best_attention(device, path.dtype, geometry, options.block_size)
        return replace(path, attention=name, attention_reason=reason)
    refuse_attention(options, device, path.dtype, geometry)
    reason = f"--attention {options.attention} was asked for"
    if options.attention == "torch" and (shown := torch_reason(device, path.dtype)):
        reason = f"{reason}; {shown}"
    return replace(path, attention=options.attention, attention_reason=reason)


def choose_ops(path: CodePath, device: torch.device) -> CodePath:
    """How a model of torch operations whose attention is decided runs, with its other operations decided.

    Triton's kernels store keys and values themselves, so they need an attention that finds them stored: Triton's.
    """
    if path.kind != "dense" or path.attention != "triton" or path.config is None:
        return path
    problem = fused_problem(device, path.dtype, path.config.hidden_size, fp8=path.kv_dtype == "fp8")
    return replace(path, fused=True) if problem is None else replace(path, fused_reason=f"no fused kernels: {problem}")


def torch_kv_layout(geometry: KVGeometry, path: CodePath, options: EngineConfig) -> KVLayout | Fp8KVLayout | NativeKVLayout:
    """The KV blocks of a model of torch operations whose attention is decided."""
    shape = {
        "num_layers": geometry.num_layers,
        "block_size": options.block_size,
        "kv_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
    }
    if path.attention == "native":
        return NativeKVLayout(**shape, kv_dtype="fp32")
    if path.kv_dtype == "fp8":
        return Fp8KVLayout(**shape)
    return KVLayout(**shape, dtype=path.dtype)
