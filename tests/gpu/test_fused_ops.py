"""The dense decoder's Triton kernels on a GPU: shapes of real models, against torch operations on the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.triton_paged import TritonPagedAttention, choose_chunk
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout, LayerKV
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models.dense import load_dense_model
from chatpaged.engine.model_executor.models.dense_ops import rms_norm
from chatpaged.engine.model_executor.models.fused_ops import fused_problem
from chatpaged.engine.model_executor.models.rope_table import rotate
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput
from tests.model_executor.dense_cases import FAMILY_CASES, save_case

CUDA = torch.device("cuda")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}
"""Two or three roundings of numbers of order one."""
TOKENS = (1, 33, 700)

dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def numbers(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator(CUDA).manual_seed(seed), device=CUDA).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[expected.dtype], atol=TOLERANCE[expected.dtype])


@dtypes
def test_they_are_trusted(dtype: torch.dtype) -> None:
    assert fused_problem(CUDA, dtype, 4096) is None


@dtypes
@pytest.mark.parametrize("width", [576, 1024, 4096, 16_384])
def test_residual(width: int, dtype: torch.dtype) -> None:
    from chatpaged.engine.model_executor.models import fused_kernels  # noqa: PLC0415 - triton may be missing

    for tokens in TOKENS:
        x, change = (numbers(seed, tokens, width, dtype=dtype) for seed in (0, 1))
        for kind in {dtype, torch.float32}:
            first, second = (1 + 0.1 * numbers(seed, width, dtype=kind) for seed in (2, 3))
            total, normed = fused_kernels.add_and_norm(x, change, first, second, 1e-6, 0.22)
            close(total, x + rms_norm(change, first, 1e-6) * 0.22)
            close(normed, rms_norm(total, second, 1e-6))


@dtypes
@pytest.mark.parametrize("width", [1536, 3072, 14_336])
def test_activation(width: int, dtype: torch.dtype) -> None:
    from chatpaged.engine.model_executor.models import fused_kernels  # noqa: PLC0415 - triton may be missing

    for tokens in TOKENS:
        gate_up = numbers(0, tokens, 2 * width, dtype=dtype)
        gate, up = gate_up.chunk(2, dim=1)
        close(fused_kernels.activate(gate_up, "silu"), F.silu(gate) * up)
        close(fused_kernels.activate(gate_up, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up)


@dtypes
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "turned"), [(16, 8, 128, 128), (9, 3, 64, 64), (8, 4, 256, 256), (32, 32, 96, 48)])
@pytest.mark.parametrize("norm", ["none", "head", "full"])
def test_heads(norm: str, heads: int, kv_heads: int, dim: int, turned: int, dtype: torch.dtype) -> None:
    from chatpaged.engine.model_executor.models import fused_kernels  # noqa: PLC0415 - triton may be missing

    for tokens in TOKENS:
        qkv = numbers(0, tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
        positions = torch.arange(tokens, device=CUDA) * 3
        slots = torch.randperm(1024, device=CUDA)[:tokens]
        slots[tokens // 2] = -1
        angles = numbers(1, 3 * tokens, turned // 2, dtype=torch.float32)
        rotation = (angles.cos().to(dtype), angles.sin().to(dtype))
        q, k, v = torch.split(qkv.view(tokens, -1, dim), [heads, kv_heads, kv_heads], dim=1)
        q_norm = k_norm = None
        if norm != "none":
            q_norm, k_norm = (1 + 0.1 * numbers(2, dim * (count if norm == "full" else 1), dtype=dtype) for count in (heads, kv_heads))
            q, k = (
                rms_norm(part.reshape(tokens, -1, len(weight)), weight, 1e-6).view(part.shape)
                for part, weight in ((q, q_norm), (k, k_norm))
            )
        q, k = (rotate(part, *(table[positions].unsqueeze(1) for table in rotation)) for part in (q, k))
        pool = torch.zeros(64, 3, 2, 16, kv_heads, dim, dtype=dtype, device=CUDA)
        keys, values = pool[:, 1].unbind(1)
        queries = fused_kernels.store_heads(
            *(qkv, LayerKV(keys, values), slots, positions),
            num_heads=heads,
            q_norm=q_norm,
            k_norm=k_norm,
            norm=norm,
            eps=1e-6,
            rotation=rotation,
        )
        close(queries, q)
        stored = slots >= 0
        places = (slots[stored] // 16, slots[stored] % 16)
        close(keys[places], k[stored])
        assert torch.equal(values[places], v[stored])
        keys[places] = 0
        values[places] = 0
        assert not bool(pool.any())  # nothing else was written


@pytest.mark.parametrize("name", FAMILY_CASES)
def test_models(name: str, tmp_path: Path) -> None:
    directory = save_case(name, tmp_path)
    logits = []
    for fused in (True, False):
        model = load_dense_model(directory, torch.float32, CUDA, None, fused=fused)
        geometry = model.geometry()
        layout = KVLayout(
            num_layers=geometry.num_layers, block_size=16, kv_heads=geometry.kv_heads, head_dim=geometry.head_dim, dtype=torch.float32
        )
        kv_cache = KVCache(layout, 4, CUDA)
        kv_cache.pool.fill_(torch.nan)
        parts = []
        for start, count in ((0, 25), (25, 1), (26, 6)):
            row = ScheduledRow(0, tuple(range(3 + start, 3 + start + count)), start, (3, 1)[: -(-(start + count) // 16)], ())
            batch = InputBatch.build(SchedulerOutput(0, (row,), ()), 16, CUDA)
            attention = TritonPagedAttention(StepRows.build(batch, 16), kv_cache, choose_chunk(128))
            with torch.inference_mode(), forward_context(attention):
                parts.append(model.forward(batch.input_ids, batch.positions, torch.arange(count, device=CUDA)))
        logits.append(torch.cat(parts))
    assert float((logits[0] - logits[1]).abs().max() / logits[1].std()) < 1e-4


def test_what_is_told(tmp_path: Path) -> None:
    runner = ModelRunner.load(save_case("llama", tmp_path), EngineConfig(device="cuda", kv_blocks=8))
    assert runner.code.name == "fused torch decoder, Triton attention"
    runner.close()
