"""Tiny models on the native kernels, and what they are held against."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch

from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.models.dense import DenseModel
from chatpaged.engine.model_executor.models.dense_config import DenseConfig
from chatpaged.engine.model_executor.models.dense_weights import DenseFiles, read_dense_weights
from chatpaged.engine.model_executor.models.native_dense import FORMATS, NativeDenseModel, NativeOptions, pack_model
from chatpaged.engine.model_executor.native.interface import I4, I8
from chatpaged.engine.model_executor.native.library import Team
from chatpaged.engine.model_executor.native.packing import pack, unpack
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from chatpaged.engine.scheduler_output import SchedulerOutput
from tests.model_executor.dense_cases import read_config, understood
from tests.model_executor.logits import BLOCK_SIZE, CPU, LENGTHS, STEPS, Rows, scheduled_row

MATRICES = ("qkv", "o", "gate_up", "down")


def native_model(
    directory: Path,
    quantize: str = "none",
    kv_dtype: str = "fp32",
    *,
    block_size: int = BLOCK_SIZE,
    threads: int = 1,
    instruction_set: str | None = None,
) -> NativeDenseModel:
    """The model of a directory, packed anew. It has a team of its own, which ends with it."""
    team = Team(threads, instruction_set)
    config = understood(read_config(directory))
    options = NativeOptions(quantize=quantize, kv_dtype=kv_dtype, block_size=block_size, max_model_len=config.context, threads=threads)
    with DenseFiles(directory, config, torch.float32) as files:
        packed = pack_model(files, config, quantize, team)
        return NativeDenseModel(config, files.stored_embedding(), packed, options, (), team)


def packed_reference(directory: Path, quantize: str, team: Team) -> DenseModel:
    """The model on torch operations in float64, with the weights that are left of it once they are packed."""
    config: DenseConfig = understood(read_config(directory))
    weights = read_dense_weights(directory, config, torch.float32)
    layout = FORMATS[quantize]

    def kept(weight: torch.Tensor, layout: int = layout) -> torch.Tensor:
        n, k = weight.shape
        return unpack(pack(weight, layout, team), n, k, layout)

    weights.lm_head = kept(weights.lm_head, I8 if layout == I4 else layout).double()
    for i, layer in enumerate(weights.layers):
        layer = replace(layer, **{name: kept(getattr(layer, name)) for name in MATRICES})  # noqa: PLW2901 - step by step
        tensors = {field.name: getattr(layer, field.name) for field in fields(layer)}
        weights.layers[i] = replace(layer, **{name: tensor.double() for name, tensor in tensors.items() if tensor is not None})
    weights.embedding, weights.final_norm = weights.embedding.double(), weights.final_norm.double()
    return DenseModel(config, weights, config.context, frozenset())


def native_logits(model: NativeDenseModel) -> Rows:
    """As `logits.computed`: of all tokens but the first of each step, on blocks in no order, NaN where nothing was written."""
    kv_cache = NativeKVCache(model.layout, 160 // model.layout.block_size + 4)
    kv_cache.pool.fill_(255)
    free = iter((torch.randperm(kv_cache.num_blocks - 1, generator=torch.Generator().manual_seed(1)) + 1).tolist())
    tables = {seq: [next(free) for _ in range(-(-length // model.layout.block_size))] for seq, length in LENGTHS.items()}
    done = dict.fromkeys(LENGTHS, 0)
    logits: dict[int, list[torch.Tensor]] = {seq: [] for seq in LENGTHS}
    for number, step in enumerate(STEPS):
        rows = [scheduled_row(seq, done[seq], count, tables[seq], model.layout.block_size) for seq, count in step.items()]
        batch = InputBatch.build(SchedulerOutput(number, tuple(rows), ()), model.layout.block_size, CPU)
        result = model.forward(replace(batch, logits_rows=torch.arange(1, len(batch.input_ids))), kv_cache)
        assert result.values.shape == (len(batch.input_ids) - 1, model.vocab_size)
        assert result.best == result.values.argmax(-1).tolist()
        every = torch.cat((torch.full_like(result.values[:1], torch.nan), result.values))
        for (seq, count), part in zip(step.items(), torch.split(every, list(step.values())), strict=True):
            logits[seq].append(part)
            done[seq] += count
    return {seq: torch.cat(parts) for seq, parts in logits.items()}
