"""What was asked for by name and cannot be had: refused in one line, with the reason."""

from __future__ import annotations

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention.choice import attention_problem
from chatpaged.engine.model_executor.attention.triton_paged import triton_problem
from chatpaged.engine.model_executor.models.fp8_matrix import fp8_matrix_problem
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.weights import SHORT_NAMES
from chatpaged.errors import InvalidRequestError


def refuse_attention(options: EngineConfig, device: torch.device, dtype: torch.dtype, geometry: KVGeometry | None = None) -> None:
    """Called before a model is loaded, and again when its layers are known.

    Args:
        options: what the user asked for.
        device: where the model runs.
        dtype: type of activations.
        geometry: what its layers store; None if that is not known.

    Raises:
        InvalidRequestError: an attention was asked for by name that cannot be had, with the reason.
    """
    problem = attention_problem(options.attention, device, dtype, geometry, block_size=options.block_size)
    if problem is not None:
        raise InvalidRequestError(f"--attention {options.attention} cannot be had: {problem}; use --attention auto")


def refuse_fp8_kv(
    options: EngineConfig, device: torch.device, dtype: torch.dtype, geometry: KVGeometry | None = None, *, could_be_int8: bool = False
) -> None:
    """Called like `refuse_attention`.

    Args:
        options: what the user asked for.
        device: where the model runs.
        dtype: type of activations.
        geometry: what its layers store; None if that is not known.
        could_be_int8: keys and values of that type could be had.

    Raises:
        InvalidRequestError: keys and values of 8 bits were asked for and cannot be had, with the reason.
    """
    if options.kv_dtype != "fp8":
        return
    if device.type != "cuda" and options.attention == "auto":
        other = ": use --kv-dtype int8" if could_be_int8 else ""
        raise InvalidRequestError(f"--kv-dtype fp8 needs CUDA, this is {device.type}{other}")
    if options.attention not in {"auto", "triton"}:
        raise InvalidRequestError(f"--kv-dtype fp8 needs Triton's attention, but --attention {options.attention} was asked for")
    problem = triton_problem(device, dtype, geometry.head_dim if geometry is not None else 0, fp8=True)
    if problem is not None:
        raise InvalidRequestError(f"--kv-dtype fp8 cannot be had: {problem}")


def refuse_fp8_weights(
    options: EngineConfig, device: torch.device, dtype: torch.dtype, not_dense: str, *, could_be_int8: bool = False
) -> None:
    """Called where weights of 8 bits were asked for.

    Args:
        options: what the user asked for.
        device: where the model runs.
        dtype: type of activations.
        not_dense: why the dense decoder cannot run it, if that is so.
        could_be_int8: weights of that type could be had.

    Raises:
        InvalidRequestError: they cannot be had, with the reason.
    """
    not_dense = not_dense or ("universal was asked for" if options.code_path == "universal" else "")
    if not_dense:
        raise InvalidRequestError(f"--quantize fp8 needs the dense decoder, which cannot run this: {not_dense}")
    if device.type != "cuda" and options.attention != "triton":
        other = ": use --quantize int8" if could_be_int8 else ""
        raise InvalidRequestError(f"--quantize fp8 needs CUDA, this is {device.type}{other}")
    problem = fp8_matrix_problem(device, dtype)
    if problem is not None:
        raise InvalidRequestError(f"--quantize fp8 cannot be had: {problem}")


def refuse_requests(options: EngineConfig, dtype: torch.dtype, reason: str) -> None:
    """Called where a model does not run on the native decoder.

    Args:
        options: what the user asked for.
        dtype: type of activations.
        reason: why it does not.

    Raises:
        InvalidRequestError: something was asked for by name that only the native decoder has.
    """
    asked = []
    if options.quantize not in {"auto", "none", "fp8"}:
        asked.append(f"--quantize {options.quantize}")
    if options.kv_dtype not in {"auto", "fp8", SHORT_NAMES[dtype]}:
        asked.append(f"--kv-dtype {options.kv_dtype}")
    if options.code_path == "native":
        asked.append("code path native")
    if asked:
        raise InvalidRequestError(f"{asked[0]} needs the native dense decoder, which cannot run this: {reason}")
