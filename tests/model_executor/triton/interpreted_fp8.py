"""Keys and values of 8 bits in Triton's interpreter against torch's E4M3. Run by `test_triton.py`, in a process of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from chatpaged.engine.model_executor.attention import triton_kernels as kernels
from chatpaged.engine.model_executor.attention.fp8_kernels import read_fp8, round_fp8
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.fp8_numbers import fp8_rows
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.models import fused_kernels
from tests.model_executor.triton.interpreted_attention import CASES, CPU, LAYER, Bench, Case

NAN_CODE = 0x7F
COUNT = 1 << 16
PART = 1 << 12


@triton.jit  # type: ignore[untyped-decorator]
def _read(codes, numbers, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    places = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(numbers + places, read_fp8(tl.load(codes + places)).to(numbers.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _round(numbers, codes, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    places = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(codes + places, round_fp8(tl.load(numbers + places)))


def all_codes() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_all_codes_are_read(dtype: torch.dtype) -> None:
    numbers = torch.empty(256, dtype=dtype)
    _read[(1,)](all_codes(), numbers, COUNT=256)
    torch.testing.assert_close(numbers, all_codes().view(torch.float8_e4m3fn).to(dtype), rtol=0, atol=0, equal_nan=True)


def test_numbers_are_rounded_as_torch_rounds_them() -> None:
    exact = all_codes().view(torch.float8_e4m3fn).float()
    exact = exact[exact.isfinite()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2  # of two codes the even one
    near = [middles.nextafter(torch.tensor(end)) for end in (1e9, -1e9)]
    ends = torch.tensor([0.0, -0.0, 448.01, 464, 480, -500, 1e-45, -1e-40, torch.inf, -torch.inf, torch.nan])
    chosen = torch.cat((exact, middles, *near, ends))
    generator = torch.Generator().manual_seed(1)
    anything = torch.randint(-(2**31), 2**31, (COUNT // 2,), generator=generator).to(torch.int32).view(torch.float32)
    usual = (
        torch.randn(COUNT // 2 - len(chosen), generator=generator) * torch.randn(COUNT // 2 - len(chosen), generator=generator).exp2() * 9
    )
    numbers = torch.cat((chosen, anything, usual))
    codes = torch.empty(COUNT, dtype=torch.uint8)
    _round[(COUNT // PART,)](numbers, codes, COUNT=PART)
    expected = numbers.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(codes, expected.where(~numbers.isnan(), torch.tensor(NAN_CODE, dtype=torch.uint8)))


def dequantized(rows: torch.Tensor) -> torch.Tensor:
    codes, scales = fp8_rows(rows)
    return codes.double() * scales


class Fp8Bench(Bench):
    """The same over a pool of codes; what nobody has stored in it is NaN, scales too."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        wide = self.kv_cache
        layout = Fp8KVLayout(
            num_layers=wide.layout.num_layers,
            block_size=case.block_size,
            kv_heads=wide.layout.kv_heads,
            head_dim=wide.layout.head_dim,
        )
        self.unquantized = self.wide.pool.clone()
        self.fp8 = Fp8KVCache(layout, wide.num_blocks, CPU)
        self.fp8.pool.fill_(NAN_CODE)
        self.fp8.scales.fill_(torch.nan)
        for part, dim in enumerate((case.key_dim, case.value_dim)):
            heads = wide.pool[:, :, part, :, : case.kv_heads, :dim]
            stored = heads.isfinite().all(-1, keepdim=True)
            codes, scales = fp8_rows(heads)
            self.fp8.elements[:, :, part, :, : case.kv_heads, :dim] = codes.view(torch.uint8)
            self.fp8.scales[:, :, part, : case.kv_heads] = scales.where(stored, torch.nan).squeeze(-1).transpose(-1, -2)
            self.wide.pool[:, :, part, :, : case.kv_heads, :dim] = codes.double() * scales
        self.kv_cache = self.fp8  # type: ignore[assignment]  # what `run` hands to the kernels

    def expected(self) -> torch.Tensor:
        """What torch makes of the numbers that are stored, in float64."""
        return self.attended(self.wide.pool, quantized=True)

    def attended(self, pool: torch.Tensor, *, quantized: bool) -> torch.Tensor:
        """Torch's attention over a pool, with the step's keys and values rounded or not."""
        self.wide.pool.copy_(pool)
        batch, (query, key, value) = self.step(range(len(self.rows)))
        sinks = self.case.options.sinks
        options = replace(self.case.options, sinks=sinks.double() if sinks is not None else None)
        key, value = (dequantized(tensor) if quantized else tensor.double() for tensor in (key, value))
        return TorchPagedAttention(batch, self.wide).attend(LAYER, query.double(), key, value, options)


FP32_CASES = (
    "plain",
    "all",
    "three groups, 80 dimensions",
    "narrow values",
    "blocks of 1",
    "256 dimensions",
)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in FP32_CASES), *(("all", dtype) for dtype in (torch.float16, torch.bfloat16))],
)
def test_attention_over_codes(name: str, dtype: torch.dtype) -> None:
    bench = Fp8Bench(replace(CASES[name], dtype=dtype))
    before = bench.fp8.pool.clone()
    result = torch.cat(bench.run(range(len(bench.rows))))
    assert result.dtype == dtype
    assert float((result.double() - bench.expected()).abs().max()) <= TOLERANCE[dtype]
    # The step has stored what torch's rounding gives, to the bit, and nothing else.
    batch, (_, *new) = bench.step(range(len(bench.rows)))
    twin = Fp8KVCache(bench.fp8.layout, bench.fp8.num_blocks, CPU)
    twin.pool.copy_(before)
    for part, tensor in enumerate(new):
        codes, scales = fp8_rows(tensor)
        _, heads, dim = tensor.shape
        twin.elements[batch.slot_blocks, LAYER, part, batch.slot_offsets, :heads, :dim] = codes.view(torch.uint8)
        twin.scales[batch.slot_blocks, LAYER, part, :heads, batch.slot_offsets] = scales.squeeze(-1)
    assert torch.equal(bench.fp8.pool, twin.pool)


def test_what_is_lost() -> None:
    bench = Fp8Bench(CASES["plain"])
    result = torch.cat(bench.run(range(len(bench.rows)))).double()
    exact = bench.attended(bench.unquantized, quantized=False)
    lost = float((result - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert 0.005 < lost < 0.03  # three bits of fraction: 2.6 % of a number, as a root of mean squares


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_weights_of_large_and_of_tiny_values(dtype: torch.dtype) -> None:
    """Scales of 1e-6, and of 80: their products with weights are no numbers of float16."""
    for factor in (4e-4, 1e4):
        bench = Fp8Bench(replace(CASES["decodes"], dtype=dtype))
        bench.fp8.scales[:, :, 1] *= factor
        bench.wide.pool[:, :, 1] *= factor
        bench.parts = [(query, key, (value.double() * factor).to(dtype)) for query, key, value in bench.parts]
        expected = bench.expected()
        result = torch.cat(bench.run(range(len(bench.rows)))).double()
        assert float((result - expected).abs().max() / expected.abs().max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("name", "dtype"), [("plain", torch.float32), ("all", torch.float16)])
def test_a_sequence_is_the_same_to_the_bit_in_any_company(name: str, dtype: torch.dtype) -> None:
    bench = Fp8Bench(replace(CASES[name], dtype=dtype))
    together = bench.run(range(len(bench.rows)))
    for company in ([0], [2, 4]):
        for sequence, alone in zip(company, bench.run(company), strict=True):
            assert torch.equal(alone, together[sequence]), f"sequence {sequence} in {company}"


def test_what_is_no_number_stays_none_and_zeros_stay_zeros() -> None:
    cache = Fp8KVCache(Fp8KVLayout(num_layers=1, block_size=4, kv_heads=3, head_dim=8), 3, CPU)
    cache.pool.zero_()
    stored = cache.layer(0)
    new = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    new[0, 0] = 0
    new[0, 1, 2], new[0, 1, 5] = torch.nan, torch.inf
    new[0, 2] *= 1e-38
    kernels.write(stored.keys, stored.values, new, -new, torch.tensor([5, -1]), stored.scales)
    codes = cache.elements[1, 0, 0, 1]
    assert torch.equal(codes[0], torch.zeros(8, dtype=torch.uint8))
    assert (codes[1] == NAN_CODE).nonzero().flatten().tolist() == [2, 5]
    read = cache.elements[1, 0, :, 1].view(torch.float8_e4m3fn).float() * cache.scales[1, 0, :, :, 1, None]
    torch.testing.assert_close(read[0, 1, [0, 1, 3, 4, 6, 7]], new[0, 1, [0, 1, 3, 4, 6, 7]], rtol=0.07, atol=0.01)
    torch.testing.assert_close(read[1, 1], -read[0, 1], rtol=0, atol=0, equal_nan=True)
    assert bool((read[:, 2].abs() < 1e-30).all())
    cache.pool[1] = 0
    assert not bool(cache.pool.any())  # slot -1 is nowhere


@pytest.mark.parametrize("norm", ["none", "head", "full"])
def test_the_dense_decoder_stores_the_same(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_kernels, "_TILE_ELEMENTS", 32)  # a tile has queries and keys, another keys and values
    dim, num_heads, kv_heads = 6, 6, 3
    qkv = torch.randn(4, (num_heads + 2 * kv_heads) * dim, generator=torch.Generator().manual_seed(1)).half()
    sizes = {"head": (dim, dim), "full": (num_heads * dim, kv_heads * dim)}.get(norm)
    weights = [None, None] if sizes is None else [torch.linspace(0.5, 1.5, size).half() for size in sizes]
    angles = torch.linspace(0, 3, 24).view(12, 2)
    slots = torch.tensor([5, -1, 11, 16])
    layout = Fp8KVLayout(num_layers=2, block_size=4, kv_heads=kv_heads, head_dim=dim)
    exact = KVCache(KVLayout(num_layers=2, block_size=4, kv_heads=kv_heads, head_dim=dim, dtype=torch.float16), 5, CPU)
    found, expected = Fp8KVCache(layout, 5, CPU), Fp8KVCache(layout, 5, CPU)
    exact.pool.zero_()
    for cache in (found, expected):
        cache.pool.fill_(7)
    for stored in (exact.layer(1), found.layer(1)):
        fused_kernels.store_heads(
            *(qkv, stored, slots, torch.tensor([3, 0, 9, 1])),
            num_heads=num_heads,
            q_norm=weights[0],
            k_norm=weights[1],
            norm=norm,
            eps=1e-5,
            rotation=(angles.cos().half(), angles.sin().half()),
        )
    for slot in slots[slots >= 0].tolist():
        block, place = divmod(slot, 4)
        codes, scales = fp8_rows(exact.pool[block, 1, :, place])
        expected.elements[block, 1, :, place] = codes.view(torch.uint8)
        expected.scales[block, 1, :, :, place] = scales.squeeze(-1)
    assert torch.equal(found.pool, expected.pool)
    torch.testing.assert_close(found.numbers()[1, 1, :, 1], exact.pool[1, 1, :, 1].float(), rtol=0.07, atol=0.01)
