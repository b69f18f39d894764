"""Loading a model with the code that was chosen for it, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention.choice import make_attention
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.graphs.model_graphs import ModelGraphs
from chatpaged.engine.model_executor.kv_cache import BlockLayout, KVCache
from chatpaged.engine.model_executor.memory import memory_for
from chatpaged.engine.model_executor.models.code_path import CodePath
from chatpaged.engine.model_executor.models.dense import choose_context, dense_geometry, load_dense_model, stop_tokens
from chatpaged.engine.model_executor.models.dense_config import NotDenseError
from chatpaged.engine.model_executor.models.native_dense import NativeDenseModel, NativeOptions
from chatpaged.engine.model_executor.models.refusals import refuse_fp8_weights, refuse_requests
from chatpaged.engine.model_executor.models.step_model import StepModel, TorchStepModel
from chatpaged.engine.model_executor.models.torch_path import choose_attention, choose_ops, num_threads, quantized_path, torch_kv_layout
from chatpaged.engine.model_executor.native.library import NativeError, Team
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache, NativeKVLayout
from chatpaged.engine.weight_files import WeightFiles, model_name


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can run.

    Attributes:
        model: its code and weights.
        layout: of its KV blocks.
        make_kv_cache: makes a pool of so many blocks.
        path: how it runs, which may differ from what was chosen if its files did not allow that.
    """

    model: StepModel
    layout: BlockLayout
    make_kv_cache: Callable[[int], KVCache | Fp8KVCache | NativeKVCache]
    path: CodePath


def load_model(
    directory: Path, files: WeightFiles, path: CodePath, options: EngineConfig, device: torch.device, tell: Callable[[str], None]
) -> LoadedModel:
    """Loads a model.

    Args:
        directory: the model.
        files: its weights, looked at.
        path: how it shall run.
        options: what the user asked for.
        device: where it runs.
        tell: is told what is being done, if that takes long.

    Raises:
        ModelError: it is damaged, or not supported.
        InvalidRequestError: the context that was asked for is too long, or something else that was asked for cannot be had.
        MemoryBudgetError: memory that was there is gone.
    """
    memory = memory_for(f"the model {model_name(directory)}", path.weight_bytes(files), device, path.advice)
    if path.kind != "native":
        with memory:
            return _load_on_torch(directory, files, path, options, device)
    try:
        with memory:
            return _load_native(directory, files, path, options, tell)
    except (NotDenseError, NativeError) as error:  # transformers may know better, or says better what is wrong
        refuse_requests(options, path.dtype, str(error))
        path = path.universal(str(error))
    return load_model(directory, files, path, options, device, tell)


def _load_on_torch(directory: Path, files: WeightFiles, path: CodePath, options: EngineConfig, device: torch.device) -> LoadedModel:
    try:
        if path.kind == "dense" and path.config is not None:
            path = choose_ops(choose_attention(dense_geometry(path.config), path, options, device), device)
            dense = load_dense_model(
                directory, path.dtype, device, options.max_model_len, files, fused=path.fused, fp8=path.quantize == "fp8"
            )
            return _on_torch(dense, path, options, device)
    except NotDenseError as error:  # likewise
        if path.quantize == "fp8":
            refuse_fp8_weights(options, device, path.dtype, str(error))
        path = path.universal(str(error))
    # Importing transformers takes seconds, which the other paths do not need.
    from chatpaged.engine.model_executor.models.hf import load_hf_model  # noqa: PLC0415

    model = load_hf_model(
        directory,
        dtype=path.dtype,
        device=device,
        max_model_len=options.max_model_len,
        trust_remote_code=options.trust_remote_code,
    )
    return _on_torch(model, quantized_path(path, model.quantizer, options), options, device)


def _on_torch(model: Any, path: CodePath, options: EngineConfig, device: torch.device) -> LoadedModel:
    geometry = model.geometry()
    path = choose_attention(geometry, path, options, device)
    layout = torch_kv_layout(geometry, path, options)
    if isinstance(layout, NativeKVLayout):
        # One thread: torch's own threads still spin after each of its products, and would be in the way of others.
        return LoadedModel(TorchStepModel(model, Team(1)), layout, lambda num_blocks: NativeKVCache(layout, num_blocks), path)
    attention = make_attention(path.attention, device, path.dtype, model.max_model_len)
    graphs = ModelGraphs.choose(options, device, capturable=attention.capturable)
    if path.packed is not None and device.type == "cuda":  # what its kernels decide on the host, a graph would keep for ever
        graphs = ModelGraphs(None, f"no CUDA graphs: they have not been tried with {path.packed.label} weights")
    step_model = TorchStepModel(model, attention=attention, graphs=graphs)
    if isinstance(layout, Fp8KVLayout):
        return LoadedModel(step_model, layout, lambda num_blocks: Fp8KVCache(layout, num_blocks, device), path)
    return LoadedModel(step_model, layout, lambda num_blocks: KVCache(layout, num_blocks, device), path)


def _load_native(directory: Path, files: WeightFiles, path: CodePath, options: EngineConfig, tell: Callable[[str], None]) -> LoadedModel:
    if path.config is None:
        raise NotDenseError("no configuration")
    native = NativeOptions(
        quantize=path.quantize,
        kv_dtype=path.kv_dtype,
        block_size=options.block_size,
        max_model_len=choose_context(path.config, options.max_model_len),
        threads=num_threads(options),
    )
    model = NativeDenseModel.load(directory, files, path.config, native, stop_tokens(directory), tell)
    model.check_numbers()
    layout = model.layout
    return LoadedModel(model, layout, lambda num_blocks: NativeKVCache(layout, num_blocks), path)
