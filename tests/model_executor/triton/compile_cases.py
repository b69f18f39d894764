"""What is compiled ahead of time. Apart from the code that compiles it, which cannot be imported without Triton."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A kernel and what it is compiled for.

    `kernel` is single, split, several, combine or write; of the dense decoder residual, silu, gelu_tanh, or heads and the kind of norm.
    """

    kernel: str
    capability: int
    dtype: str = "bf16"
    head_dim: int = 128
    groups: int = 4
    window: int = 0
    softcap: bool = False
    sinks: bool = False
    width: int = 4096
    wide: bool = False
    fp8: bool = False


@dataclass(frozen=True)
class ProductCase:
    """A product with weights of 8 bits, of 4096 outputs and inputs. `kernel` is product or sum (of its parts)."""

    capability: int
    rows: int
    dtype: str = "bf16"
    kernel: str = "product"
