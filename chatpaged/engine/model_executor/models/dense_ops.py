"""What a dense decoder computes, apart from the order in which it does: behind one interface, as torch operations.

`PlainOps` is what everything else is measured by, and what runs on a CPU. `fused_ops.py` has the same in fewer kernels.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.forward_context import current_attention
from chatpaged.engine.model_executor.models.dense_config import NO_ROPE, DenseConfig
from chatpaged.engine.model_executor.models.dense_weights import DenseLayer
from chatpaged.engine.model_executor.models.few_rows import few_rows_product
from chatpaged.engine.model_executor.models.fp8_matrix import Fp8Matrix
from chatpaged.engine.model_executor.models.rope_table import RopeTable, rope_table, rotate

Turns = tuple[torch.Tensor, ...]
"""What `DenseOps.attend` needs of the positions of a step: only the operations know what that is."""


class DenseOps(Protocol):
    """The operations of one model."""

    def turns(self, positions: torch.Tensor) -> Turns:
        """What `attend` needs of positions `[T]` int64, computed once a step."""

    def attend(self, number: int, layer: DenseLayer, qkv: torch.Tensor, turns: Turns) -> torch.Tensor:
        """Attention of a layer, its keys and values stored.

        Args:
            number: index of the layer.
            layer: its weights.
            qkv: `[T, (num_heads + 2 num_kv_heads) head_dim]`: queries, keys and values as the projection gives them.
            turns: of the step's positions.

        Returns:
            `[T, num_heads * head_dim]`, before the output projection.
        """

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of x `[T, hidden]`, see `rms_norm`."""

    def add(
        self, x: torch.Tensor, change: torch.Tensor, change_norm: torch.Tensor | None, norm: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds to the residual stream what attention or an MLP gives, and norms the sum for what reads it next.

        Args:
            x: `[T, hidden]`.
            change: likewise; what is added, times the configuration's `residual_scale`.
            change_norm: `[hidden]`, weights of its norm before it is added; None is no norm.
            norm: `[hidden]`, weights of the norm of the sum; None is no norm.

        Returns:
            The sum and its norm, which is the sum itself without one.
        """

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`activation(gate) * up` for `[T, 2 I]`, the gate first: `[T, I]`."""


class PlainOps:
    """Torch operations. Satisfies `DenseOps`."""

    def __init__(self, config: DenseConfig, tables: list[RopeTable]) -> None:
        """Operations of a model; see `rope_tables`."""
        self._config = config
        self._tables = tables
        self._options = attention_options(config)
        self._split = [config.num_heads, config.num_kv_heads, config.num_kv_heads]

    def turns(self, positions: torch.Tensor) -> Turns:
        """See `DenseOps.turns`. Cosines and sines of each table, `[T, 1, rotary_dim / 2]` each."""
        return tuple(half[positions].unsqueeze(1) for table in self._tables for half in (table.cos, table.sin))

    def attend(self, number: int, layer: DenseLayer, qkv: torch.Tensor, turns: Turns) -> torch.Tensor:
        """See `DenseOps.attend`."""
        config = self._config
        rope = config.ropes[number]
        rotation = None if rope == NO_ROPE else (turns[2 * rope], turns[2 * rope + 1])
        heads = qkv.view(qkv.shape[0], -1, config.head_dim)
        query, key, value = torch.split(heads, self._split, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query = self._head_norm(query, layer.q_norm)
            key = self._head_norm(key, layer.k_norm)
            if rotation is not None:
                query, key = rotate(query, *rotation), rotate(key, *rotation)
        elif rotation is not None:  # they lie side by side: both at once
            query, key = torch.split(rotate(heads[:, : -config.num_kv_heads], *rotation), self._split[:2], dim=1)
        return current_attention().attend(number, query, key, value, self._options[number]).reshape(qkv.shape[0], -1)

    def _head_norm(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Norm of queries or keys `[T, heads, head_dim]`: of each head by itself, or of all together."""
        if self._config.qk_norm == "head":
            return rms_norm(heads, weight, self._config.norm_eps)
        return rms_norm(heads.flatten(1), weight, self._config.norm_eps).view(heads.shape)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `DenseOps.norm`."""
        return rms_norm(x, weight, self._config.norm_eps)

    def add(
        self, x: torch.Tensor, change: torch.Tensor, change_norm: torch.Tensor | None, norm: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DenseOps.add`."""
        if change_norm is not None:
            change = self.norm(change, change_norm)
        total = x + (change if self._config.residual_scale == 1.0 else change * self._config.residual_scale)
        return total, total if norm is None else self.norm(total, norm)

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `DenseOps.activate`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return (F.silu(gate) if self._config.activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def attention_options(config: DenseConfig) -> list[AttentionOptions]:
    """What each layer asks of attention."""
    return [AttentionOptions(scale=config.attention_scale, window=window, softcap=config.attention_softcap) for window in config.windows]


def rope_tables(config: DenseConfig, max_model_len: int, dtype: torch.dtype, device: torch.device) -> list[RopeTable]:
    """The rotary tables of a model whose activations have this type, on its device; wider than that with `wide_products`."""
    table_dtype = torch.promote_types(dtype, torch.float32) if config.wide_products else dtype
    return [rope_table(parameters, config.rotary_dim, max_model_len).to(table_dtype, device) for parameters in config.rope_parameters]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scales: torch.Tensor | None = None) -> torch.Tensor:
    """`x W' + bias` for x `[T, in]`, contiguous. All products with weights are made here.

    Args:
        x: see above.
        weight: `[out, in]`.
        bias: `[out]`, or None.
        scales: of the rows of weights that are codes of 8 bits, see `DenseLayer`.
    """
    if scales is not None:
        return Fp8Matrix(weight, scales).product(x, bias)
    if weight.dtype == torch.float32 and weight.device.type == "cpu":
        return few_rows_product(x, weight, bias)
    return F.linear(x, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, computed in float32, as transformers does even in float64.

    Args:
        x: `[..., n]`.
        weight: `[n]`; its type says where the product is rounded, see `DenseLayer`.
        eps: see above.

    Returns:
        `[..., n]`, of the type of x.
    """
    shape = weight.shape
    if x.dtype == weight.dtype == torch.float32:
        return F.rms_norm(x, shape, weight, eps)
    if x.dtype == weight.dtype != torch.float64:
        return F.rms_norm(x, shape, None, eps) * weight
    normed = F.rms_norm(x.to(torch.float32), shape, None, eps)
    return (normed.to(weight.dtype) * weight).to(x.dtype)
