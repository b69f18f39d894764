"""Numbers of 8 bits on a GPU: what its instructions round, attention over codes, and products with weights of 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.attention.triton_paged import TritonPagedAttention, fp8_device_problem, triton_problem
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.fp8_numbers import fp8_rows
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.models.fp8_matrix import Fp8Matrix, fp8_matrix_problem
from chatpaged.engine.model_executor.models.fused_ops import fused_problem
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput
from tests.model_executor.harness import Arrival, greedy, serve
from tests.model_executor.tiny_models import save_family

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
CUDA = torch.device("cuda")
HALVES = (torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _is_able() -> None:
    problem = fp8_device_problem(CUDA)
    if problem is not None:
        pytest.skip(problem)


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device=CUDA)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_trials(dtype: torch.dtype) -> None:
    assert triton_problem(CUDA, dtype, fp8=True) is None
    assert fused_problem(CUDA, dtype, 4096, fp8=True) is None
    assert fp8_matrix_problem(CUDA, dtype) is None


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_attention_stores_and_reads_what_torch_rounds(head_dim: int, dtype: torch.dtype) -> None:
    shape = {"num_layers": 2, "block_size": 16, "kv_heads": 4, "head_dim": head_dim}
    cache, exact = Fp8KVCache(Fp8KVLayout(**shape), 200, CUDA), KVCache(KVLayout(**shape, dtype=torch.float64), 200, CUDA)
    cache.pool.fill_(0x7F)
    exact.pool.fill_(torch.nan)
    lengths = (1100, 40, 7)
    tables = (range(1, 70), range(70, 73), range(73, 74))
    begin: tuple[int, ...] = (0, 0, 0)
    for counts in (tuple(length - 1 for length in lengths), (1, 1, 1)):  # prompts, then decodes over what they have stored
        rows = tuple(
            ScheduledRow(i, (0,) * count, start, tuple(table), ())
            for i, (count, start, table) in enumerate(zip(counts, begin, tables, strict=True))
        )
        batch = InputBatch.build(SchedulerOutput(0, rows, ()), 16, CUDA)
        query, key, value = (numbers(seed + counts[0], sum(counts), heads, head_dim).to(dtype) for seed, heads in ((1, 16), (2, 4), (3, 4)))
        options = AttentionOptions(window=900)
        found = TritonPagedAttention(StepRows.build(batch, 16), cache, 256).attend(1, query, key, value, options)
        rounded = [codes.double() * scales for codes, scales in (fp8_rows(key), fp8_rows(value))]
        expected = TorchPagedAttention(batch, exact).attend(1, query.double(), rounded[0], rounded[1], options)
        assert float((found.double() - expected).abs().max()) <= TOLERANCE[dtype]
        for part, tensor in enumerate((key, value)):
            codes, scales = fp8_rows(tensor)
            assert torch.equal(cache.elements[batch.slot_blocks, 1, part, batch.slot_offsets], codes.view(torch.uint8))
            assert torch.equal(cache.scales[batch.slot_blocks, 1, part, :, batch.slot_offsets], scales.squeeze(-1))
        begin = counts


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("outputs", "inputs"), [(6144, 4096), (1024, 3072), (4096, 14336), (1000, 1000)])
def test_products(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    matrix, bias = Fp8Matrix.of(numbers(1, outputs, inputs).to(dtype)), numbers(2, outputs).to(dtype)
    for rows in (1, 7, 16, 17, 33, 64, 65, 200, 2048):
        x = numbers(rows, rows, inputs).to(dtype)
        expected = x.double() @ matrix.numbers().double().T + bias.double()
        error = (matrix.product(x, bias).double() - expected).abs().max() / expected.abs().max()
        assert float(error) <= 2 * torch.finfo(dtype).eps, rows


def test_products_in_float32() -> None:
    matrix, x = Fp8Matrix.of(numbers(1, 1024, 2048)), numbers(2, 40, 2048)
    expected = x.double() @ matrix.numbers().double().T
    assert float((matrix.product(x, None).double() - expected).abs().max() / expected.abs().max()) <= 1e-6


@pytest.mark.parametrize("quantize", ["none", "fp8"])
def test_engines_replay_graphs_over_codes(quantize: str, tmp_path: Path) -> None:
    directory = save_family("llama", tmp_path / "llama")
    options: dict[str, Any] = {"device": "cuda", "dtype": "float32", "kv_dtype": "fp8", "quantize": quantize, "kv_blocks": 60}
    arrivals = {"short": Arrival(list(range(20, 25))), "long": Arrival(list(range(30, 63)), step=1)}
    answers, told = [], []
    for eager in (False, True):
        with LLMEngine.from_pretrained(directory, EngineConfig(**options, enforce_eager=eager)) as engine:
            done = serve(engine, arrivals, greedy(20))
            answers.append({name: answer.token_ids for name, answer in done.items()})
            told.append((engine.code.kv, engine.code.weights, engine.snapshot().counters["graph_steps"] > 0))
    assert told == [("fp8", "fp8" if quantize == "fp8" else "float32", replayed) for replayed in (True, False)]
    assert answers[0] == answers[1]
    assert [len(tokens[0]) for tokens in answers[0].values()] == [20, 20]
