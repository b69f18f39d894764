"""A dense decoder's operations in few kernels, for CUDA: four launches in a layer beside its products and attention.

Triton is imported when it is wanted, never before: beside a CPU it need not be there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from chatpaged.engine.model_executor.attention.base import StoredAttention
from chatpaged.engine.model_executor.forward_context import current_attention
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.fp8_numbers import fp8_rows
from chatpaged.engine.model_executor.kv_cache import LayerKV
from chatpaged.engine.model_executor.libraries import import_problem
from chatpaged.engine.model_executor.models.dense_config import NO_ROPE, DenseConfig
from chatpaged.engine.model_executor.models.dense_ops import Turns, attention_options, rms_norm
from chatpaged.engine.model_executor.models.dense_weights import DenseLayer
from chatpaged.engine.model_executor.models.rope_table import RopeTable, rotate

_MAX_TRIAL_ERROR = 0.1
"""Rounding to bfloat16 gives a third of that; a kernel that is wrong, far more."""


def fused_problem(device: torch.device, dtype: torch.dtype, hidden_size: int, *, fp8: bool = False) -> str | None:
    """Why these kernels cannot run where Triton's attention runs, or None.

    Args:
        device: where they would run.
        dtype: of activations.
        hidden_size: of the model.
        fp8: whether keys and values are stored as fp8.
    """
    try:
        from chatpaged.engine.model_executor.models.fused_kernels import MAX_WIDTH  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return import_problem("triton", "triton", error)
    if hidden_size > MAX_WIDTH:
        return f"a hidden size of {hidden_size}, more than {MAX_WIDTH}"
    return _trial(device, dtype, fp8)


@cache
def _trial(device: torch.device, dtype: torch.dtype, fp8: bool) -> str | None:  # noqa: FBT001 - cached by place
    """Runs the kernels and compares what they compute with the formula: they are trusted on no device unseen."""
    try:
        error = max(_error(*pair) for pair in (*_residual_trial(device, dtype), *_heads_trial(device, dtype, fp8=fp8)))
    except Exception as problem:  # noqa: BLE001 - whatever is missing
        return f"they do not run here: {(str(problem).strip() or type(problem).__name__).splitlines()[0]}"
    return None if error < _MAX_TRIAL_ERROR else f"they are wrong here, by {error:.2g}"


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (found.float() - expected.float()).abs().max()
    return float(difference) if bool(difference.isfinite()) else torch.inf


def _numbers(seed: int, *shape: int) -> torch.Tensor:
    """About as large as activations are, and never so large that one rounding is more than a hundredth."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).clamp(-2, 2)


def _residual_trial(device: torch.device, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the kernels of the residual stream and of the MLP give, each with what the formula gives."""
    from chatpaged.engine.model_executor.models import fused_kernels  # noqa: PLC0415

    x, change, norm = (_numbers(seed, 5, 48).to(device, dtype) for seed in range(3))
    total, normed = fused_kernels.add_and_norm(x, change, norm[0], norm[1].float(), 1e-6, 0.5)
    expected = x + rms_norm(change, norm[0], 1e-6) * 0.5
    gate, up = x.chunk(2, dim=1)
    return [
        (total, expected),
        (normed, rms_norm(expected, norm[1].float(), 1e-6)),
        (fused_kernels.activate(x, "silu"), F.silu(gate) * up),
        (fused_kernels.activate(x, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up),
    ]


def _heads_trial(device: torch.device, dtype: torch.dtype, *, fp8: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same for queries, keys and values: 4 heads and 2, half of 16 dimensions turned; one of the tokens is stored nowhere."""
    from chatpaged.engine.model_executor.models import fused_kernels  # noqa: PLC0415

    qkv, norms = (_numbers(seed, 3, 128).to(device, dtype) for seed in (3, 4))
    positions, slots = (torch.tensor(numbers, device=device) for numbers in ([2, 0, 5], [37, -1, 16]))
    angles = _numbers(5, 6, 4)
    rotation = (angles.cos().to(device, dtype), angles.sin().to(device, dtype))
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for norm, sizes in (("head", (16, 16)), ("full", (64, 32))):
        pool = torch.zeros(2, 3, 16, 2, 16, dtype=dtype, device=device)
        q_norm, k_norm = norms[0, : sizes[0]], norms[1, : sizes[1]]
        store = partial(
            fused_kernels.store_heads,
            qkv,
            slots=slots,
            positions=positions,
            num_heads=4,
            q_norm=q_norm,
            k_norm=k_norm,
            norm=norm,
            eps=1e-6,
            rotation=rotation,
        )
        query = store(LayerKV(pool[0], pool[1]))
        if fp8:
            pairs.append(_fp8_trial(store, pool))
        turn = [table[positions].unsqueeze(1) for table in rotation]
        q, k, v = (
            rms_norm(part.reshape(3, -1, weight.shape[0]), weight, 1e-6).view(3, -1, 16) if weight is not None else part.view(3, -1, 16)
            for part, weight in zip(torch.split(qkv, [64, 32, 32], dim=1), (q_norm, k_norm, None), strict=True)
        )
        stored = torch.zeros_like(pool)
        for token, (block, place) in {0: (2, 5), 2: (1, 0)}.items():
            stored[0, block, place], stored[1, block, place] = rotate(k, turn[0], turn[1])[token], v[token]
        pairs += [(query, rotate(q, turn[0], turn[1])), (pool, stored)]
    return pairs


def _fp8_trial(store: Callable[[LayerKV], torch.Tensor], pool: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is stored as fp8, and what should be by what was stored unrounded in a pool `[2, blocks, 16, 2, 16]`."""
    kv_cache = Fp8KVCache(Fp8KVLayout(num_layers=1, block_size=16, kv_heads=2, head_dim=16), pool.shape[1], pool.device)
    kv_cache.pool.zero_()
    store(kv_cache.layer(0))
    codes, scales = fp8_rows(pool)
    return kv_cache.numbers()[:, 0].transpose(0, 1), codes.float() * scales


class FusedOps:
    """Triton's kernels. Satisfies `DenseOps`. The attention of the forward context has to be a `StoredAttention`."""

    def __init__(self, config: DenseConfig, tables: list[RopeTable]) -> None:
        """Operations of a model; see `rope_tables`."""
        from chatpaged.engine.model_executor.models import fused_kernels  # noqa: PLC0415

        self._kernels = fused_kernels
        self._config = config
        self._options = attention_options(config)
        self._rotations = [None if rope == NO_ROPE else (tables[rope].cos, tables[rope].sin) for rope in config.ropes]

    def turns(self, positions: torch.Tensor) -> Turns:
        """See `DenseOps.turns`. The kernels look positions up themselves."""
        return (positions,)

    def attend(self, number: int, layer: DenseLayer, qkv: torch.Tensor, turns: Turns) -> torch.Tensor:
        """See `DenseOps.attend`."""
        config = self._config
        attention = cast("StoredAttention", current_attention())
        stored, slots = attention.places(number)
        query = self._kernels.store_heads(
            *(qkv, stored, slots, turns[0]),
            num_heads=config.num_heads,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            norm=config.qk_norm,
            eps=config.norm_eps,
            rotation=self._rotations[number],
        )
        attended = attention.attend_stored(number, query, self._options[number], config.num_kv_heads, config.head_dim)
        return attended.view(qkv.shape[0], -1)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `DenseOps.norm`."""
        normed: torch.Tensor = self._kernels.add_and_norm(x, None, None, weight, self._config.norm_eps)[1]
        return normed

    def add(
        self, x: torch.Tensor, change: torch.Tensor, change_norm: torch.Tensor | None, norm: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DenseOps.add`."""
        added: tuple[torch.Tensor, torch.Tensor] = self._kernels.add_and_norm(
            x, change, change_norm, norm, self._config.norm_eps, self._config.residual_scale
        )
        return added

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `DenseOps.activate`."""
        activated: torch.Tensor = self._kernels.activate(gate_up, self._config.activation)
        return activated
