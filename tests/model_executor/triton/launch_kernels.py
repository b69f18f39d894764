"""`python -m tests.model_executor.triton.launch_kernels`: launches of batches of several sizes, up to where a GPU would be needed.

Arguments are bound and kernels compiled as they would be on a GPU. Tells, as JSON, how often each kernel was launched, and how many
versions of it had to be compiled. Not to be run with TRITON_INTERPRET.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from chatpaged.engine.model_executor.attention import triton_kernels as kernels
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.triton_paged import TritonPagedAttention, choose_chunk
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.models import fused_kernels
from chatpaged.engine.model_executor.models.dense import DenseModel
from chatpaged.engine.model_executor.models.dense_config import DenseConfig, dense_config
from chatpaged.engine.model_executor.models.dense_weights import DenseLayer, DenseWeights
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, BLOCK_SIZE, WIDTH = 8, 2, 64, 16, 96
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 8,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


class _Driver:
    """As much of a driver as compiling needs."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return CPU


def main() -> None:
    """Launches batches of decodes and mixed ones; the longest sequence of all but the first has two chunks."""
    driver.set_active(_Driver())
    launched: dict[str, list[str]] = defaultdict(list)
    fused = (fused_kernels.residual_kernel, fused_kernels.activation_kernel, fused_kernels.heads_kernel)
    for kernel in (kernels.attention_kernel, kernels.combine_kernel, kernels.write_kernel, *fused):
        _compile_only(kernel, launched[kernel.__name__])
    layout = KVLayout(num_layers=2, block_size=BLOCK_SIZE, kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.bfloat16)
    kv_cache = KVCache(layout, 40, CPU)
    model = _model()
    for counts in ((1,), (7,), (1,) * 3, (1,) * 16, (1,) * 17, (5, 1), (1, 9, 1, 30)):
        for start in (20, 300):
            table = tuple(range(1, -(-(start + max(counts)) // BLOCK_SIZE) + 1))
            rows = tuple(ScheduledRow(i, (0,) * count, start, table, ()) for i, count in enumerate(counts))
            batch = InputBatch.build(SchedulerOutput(0, rows, ()), BLOCK_SIZE, CPU)
            attention = TritonPagedAttention(StepRows.build(batch, BLOCK_SIZE), kv_cache, choose_chunk(4096))
            query, key, value = (torch.zeros(sum(counts), heads, DIM, dtype=torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS))
            for layer in range(2):
                attention.attend(layer, query, key, value, AttentionOptions())
            with torch.inference_mode(), forward_context(attention):
                model.forward(batch.input_ids, batch.positions, torch.arange(len(counts)))
    print(json.dumps({name: (len(versions), len(set(versions))) for name, versions in launched.items()}))


def _model() -> DenseModel:
    """A fused decoder whose activations are never computed. Its weights lie where they come to lie."""
    config = dense_config(_CONFIG)
    assert isinstance(config, DenseConfig)

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.bfloat16)

    layer = DenseLayer(
        input_norm=zeros(WIDTH),
        qkv=zeros((HEADS + 2 * KV_HEADS) * DIM, WIDTH),
        qkv_bias=None,
        q_norm=zeros(DIM),
        k_norm=zeros(DIM),
        o=zeros(WIDTH, HEADS * DIM),
        o_bias=None,
        post_attention_norm=None,
        pre_mlp_norm=zeros(WIDTH),
        gate_up=zeros(2 * WIDTH, WIDTH),
        gate_up_bias=None,
        down=zeros(WIDTH, WIDTH),
        down_bias=None,
        post_mlp_norm=None,
    )
    embedding = zeros(8, WIDTH)
    return DenseModel(config, DenseWeights(embedding, [layer] * 2, zeros(WIDTH), embedding), config.context, frozenset(), fused=True)


def _compile_only(kernel: Any, versions: list[str]) -> None:
    run = kernel.run

    def compile_only(*arguments: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        assert all(size > 0 for size in grid)
        versions.append(run(*arguments, grid=grid, warmup=True, **options).hash)

    kernel.run = compile_only


if __name__ == "__main__":
    main()
