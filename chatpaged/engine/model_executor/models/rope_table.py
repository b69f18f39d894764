"""Rotary embeddings as tables: cosine and sine of all positions, computed once.

Formulas and the order of operations are those of transformers (`modeling_rope_utils.py`), so that keys are equal bit by bit. Kinds:
linear (kaiokendev), llama3 (Llama 3.1), yarn (https://huggingface.co/papers/2309.00071), longrope (https://huggingface.co/papers/2402.13753).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from chatpaged.engine.model_executor.models.rope_parameters import RopeParameters

_BETA_FAST, _BETA_SLOW = 32, 1  # the paper's


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosine and sine, each `[max_model_len, rotary_dim / 2]`. Dimensions i and `i + rotary_dim / 2` of a head turn together."""

    cos: torch.Tensor
    sin: torch.Tensor

    def to(self, dtype: torch.dtype, device: torch.device) -> RopeTable:
        """The same as another type, on a device."""
        return RopeTable(self.cos.to(dtype).to(device), self.sin.to(dtype).to(device))


def rope_table(parameters: RopeParameters, rotary_dim: int, max_model_len: int) -> RopeTable:
    """Computes a table in float32.

    Longrope has frequencies for short and for long contexts. The choice is made here, by `max_model_len`: made by the longest sequence
    of a batch it would change the keys of all others.

    Args:
        parameters: what it is computed from.
        rotary_dim: dimensions of a head that are turned; even.
        max_model_len: positions.
    """
    frequencies, attention_factor = _KINDS[parameters.kind](parameters, rotary_dim, max_model_len)
    angles = torch.arange(max_model_len).unsqueeze(1).float() * frequencies
    return RopeTable(angles.cos() * attention_factor, angles.sin() * attention_factor)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns queries or keys by their positions.

    Args:
        heads: `[T, heads, head_dim]`.
        cos: `[T, 1, rotary_dim / 2]`, of the same type or a wider one.
        sin: likewise.

    Returns:
        `[T, heads, head_dim]`, of the type of `heads`.
    """
    half = cos.shape[-1]
    first, second = heads[..., :half], heads[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin)
    if turned[0].dtype != heads.dtype:
        turned = (turned[0].to(heads.dtype), turned[1].to(heads.dtype))
    rest = heads[..., 2 * half :]
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, dim=-1)


def _exponents(rotary_dim: int) -> torch.Tensor:
    return torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim


def _default(rope: RopeParameters, rotary_dim: int, _: int) -> tuple[torch.Tensor, float]:
    return 1.0 / (rope.theta ** _exponents(rotary_dim)), 1.0


def _linear(rope: RopeParameters, rotary_dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    frequencies, _ = _default(rope, rotary_dim, max_model_len)
    return frequencies / _given(rope.factor), 1.0


def _llama3(rope: RopeParameters, rotary_dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    frequencies, _ = _default(rope, rotary_dim, max_model_len)
    factor, trained = _given(rope.factor), _given(rope.trained_context)
    low, high = _given(rope.low_freq_factor), _given(rope.high_freq_factor)
    lengths = 2 * math.pi / frequencies
    stretched = torch.where(lengths > trained / low, frequencies / factor, frequencies)
    # Between the two borders the stretch sets in gradually.
    share = (trained / lengths - low) / (high - low)
    between = (1 - share) * stretched / factor + share * stretched
    is_between = ~(lengths < trained / high) * ~(lengths > trained / low)
    return torch.where(is_between, between, stretched), 1.0


def _yarn(rope: RopeParameters, rotary_dim: int, _: int) -> tuple[torch.Tensor, float]:
    factor = _given(rope.factor)
    powers = rope.theta ** _exponents(rotary_dim)
    kept, stretched = 1.0 / powers, 1.0 / (factor * powers)
    low, high = _yarn_borders(rope, rotary_dim)
    ramp = torch.clamp((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    share = 1 - ramp
    return stretched * (1 - share) + kept * share, _yarn_attention_factor(rope, factor)


def _yarn_borders(rope: RopeParameters, rotary_dim: int) -> tuple[float, float]:
    """The dimensions between which frequencies change over from kept to stretched."""

    def dimension(turns: float) -> float:
        return (rotary_dim * math.log(_given(rope.trained_context) / (turns * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast or _BETA_FAST), dimension(rope.beta_slow or _BETA_SLOW)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_attention_factor(rope: RopeParameters, factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1)


def _longrope(rope: RopeParameters, rotary_dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    factor, trained = _given(rope.factor), _given(rope.trained_context)
    factors = torch.tensor(rope.long_factors if max_model_len > trained else rope.short_factors, dtype=torch.float32)
    attention_factor = rope.attention_factor
    if attention_factor is None:
        attention_factor = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return 1.0 / (factors * rope.theta ** _exponents(rotary_dim)), attention_factor


def _given(value: float | None) -> float:
    if value is None:
        raise ValueError("a parameter that this kind of rotary embedding needs is missing")
    return value


_KINDS: Mapping[str, Callable[[RopeParameters, int, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
