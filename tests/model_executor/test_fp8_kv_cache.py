"""Blocks of numbers of 8 bits: where elements and scales lie, and that they move together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chatpaged.engine.model_executor.block_moves import BlockMoves
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.fp8_numbers import fp8_rows
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind

CPU = torch.device("cpu")
LAYOUTS = [
    Fp8KVLayout(num_layers=2, block_size=16, kv_heads=2, head_dim=8),
    Fp8KVLayout(num_layers=1, block_size=1, kv_heads=1, head_dim=6),  # neither elements nor scales fill 16 bytes
    Fp8KVLayout(num_layers=3, block_size=4, kv_heads=5, head_dim=7),
]


def test_sizes() -> None:
    assert LAYOUTS[0].block_bytes == 2 * 2 * 16 * 2 * (8 + 4)
    assert (LAYOUTS[1].scale_begin, LAYOUTS[1].block_bytes) == (16, 32)
    # Of Llama-3-8B: 128 dimensions to a scale.
    llama = Fp8KVLayout(num_layers=32, block_size=16, kv_heads=8, head_dim=128)
    assert llama.block_bytes == 32 * 2 * 16 * 8 * 132


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_number_has_a_place_of_its_own_on_a_boundary(layout: Fp8KVLayout) -> None:
    cache = Fp8KVCache(layout, 3, CPU)
    cache.pool.zero_()
    cache.elements.copy_(torch.arange(cache.elements.numel()).view(cache.elements.shape) % 251 + 1)
    elements = cache.elements.clone()
    cache.scales.copy_(torch.arange(1.0, cache.scales.numel() + 1).view(cache.scales.shape))
    assert torch.equal(cache.elements, elements)
    assert cache.scales.flatten().tolist() == list(range(1, cache.scales.numel() + 1))
    assert (layout.scale_begin % 16, layout.block_bytes % 16) == (0, 0)
    for layer in range(layout.num_layers):
        stored = cache.layer(layer)
        assert stored.scales is not None
        for part, (tensor, scales) in enumerate(zip((stored.keys, stored.values), stored.scales, strict=True)):
            assert torch.equal(tensor, cache.elements[:, layer, part])
            assert torch.equal(scales, cache.scales[:, layer, part])
            assert tensor.stride() == stored.keys.stride()
            assert scales.stride() == (layout.block_bytes // 4, layout.block_size, 1)  # what kernels go by


def test_blocks_move_with_their_scales() -> None:
    cache = Fp8KVCache(LAYOUTS[2], 4, CPU)
    codes, scales = fp8_rows(torch.randn(cache.elements.shape, generator=torch.Generator().manual_seed(1)))
    cache.elements.copy_(codes.view(torch.uint8))
    cache.scales.copy_(scales.squeeze(-1).transpose(-1, -2))
    moves = BlockMoves(cache.pool, torch.empty(1, LAYOUTS[2].block_bytes, dtype=torch.uint8))
    before = cache.pool[1].clone()
    for kind, source, destination in (
        (BlockOperationKind.SWAP_OUT, 1, 0),
        (BlockOperationKind.COPY, 2, 1),
        (BlockOperationKind.SWAP_IN, 0, 3),
    ):
        moves.apply([BlockOperation(kind, source, destination)])
    assert torch.equal(cache.pool[3], before)
    assert torch.equal(cache.elements[1], cache.elements[2])
    assert torch.equal(cache.scales[1], cache.scales[2])


def test_rows_of_zeros_and_of_what_is_no_number() -> None:
    rows = torch.tensor([[0.0, -0.0, 0.0], [1.0, torch.nan, -448.0], [torch.inf, 2.0, -1.0], [torch.nan] * 3])
    codes, scales = fp8_rows(rows)
    numbers = codes.float() * scales
    expected = torch.tensor([[0.0, -0.0, 0.0], [1.0, torch.nan, -448.0], [torch.nan, 2.0, -1.0], [torch.nan] * 3])
    torch.testing.assert_close(numbers, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_nothing_is_divided_by_a_plain_number() -> None:
    """On CUDA that is a product with its reciprocal, which the kernels' quotients would differ from in the last place."""
    divisors = []

    class Divisions(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is torch.ops.aten.div:
                divisors.append(args[1])
            return func(*args, **(kwargs or {}))

    with Divisions():  # type: ignore[no-untyped-call]
        fp8_rows(torch.ones(2, 3))
    assert divisors
    assert all(isinstance(divisor, torch.Tensor) for divisor in divisors)
