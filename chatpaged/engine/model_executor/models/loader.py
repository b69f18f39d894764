"""Loading a model with the code that was chosen for it, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention.base import AttentionBackend, PagedAttention
from chatpaged.engine.model_executor.attention.choice import best_attention, make_attention, torch_reason
from chatpaged.engine.model_executor.attention.native_paged import NativePagedAttention
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.attention.torch_paged import TorchBackend
from chatpaged.engine.model_executor.attention.triton_paged import TritonBackend
from chatpaged.engine.model_executor.forward_context import Logits, forward_context
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache, Fp8KVLayout
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.graphs.model_graphs import ModelGraphs
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import BlockLayout, KVCache, KVLayout
from chatpaged.engine.model_executor.memory import memory_for
from chatpaged.engine.model_executor.models.code_path import (
    MAX_NATIVE_HEAD_DIM,
    CodePath,
    refuse_attention,
    refuse_fp8_kv,
    refuse_fp8_weights,
    refuse_requests,
)
from chatpaged.engine.model_executor.models.dense import choose_context, dense_geometry, load_dense_model, stop_tokens
from chatpaged.engine.model_executor.models.dense_config import NotDenseError
from chatpaged.engine.model_executor.models.fused_ops import fused_problem
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.native_dense import NativeDenseModel, NativeOptions
from chatpaged.engine.model_executor.native.draws import draw_tokens
from chatpaged.engine.model_executor.native.library import NativeError, Team, native_problem
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache, NativeKVLayout
from chatpaged.engine.model_executor.sampler import queue_draws
from chatpaged.engine.scheduler_output import SampleRow
from chatpaged.engine.weight_files import WeightFiles, model_name
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.engine.model_executor.models.quantizer import Quantizer  # imports transformers

FEW_THREADS = 4
"""With more, torch's attention on all of them is faster than the native one on one of them."""


class StepModel(Protocol):
    """What the runner needs of a model."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """End tokens that the model's configurations name."""

    def forward(self, batch: InputBatch, kv_cache: Any) -> Logits:
        """Stores keys and values of the batch's tokens, and computes the logits that it asks for."""

    def record_graphs(self, kv_cache: Any, max_blocks: int, buckets: Sequence[Bucket], tell: Callable[[str], None]) -> int:
        """Records graphs of steps on a pool, in place of those there are; see `ModelGraphs.record`. Returns how many there are now."""

    def drop_graphs(self) -> None:
        """Forgets them, and the pool they work on."""

    @property
    def graphs(self) -> tuple[int, str]:
        """How many graphs there are, and why there are none; empty where nobody would expect any."""

    def draw(self, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> torch.Tensor:
        """Draws a token for each sample from its row of the logits, int64 `[S]`, without waiting. See `sampler.queue_draws`."""

    @property
    def weight_bytes(self) -> int:
        """Of the weights that a decode step reads: all but the embedding, unless it is the output layer as well."""

    @property
    def instruction_set(self) -> str:
        """What native kernels run on; empty without any."""

    def close(self) -> None:
        """Lets go of threads and memory."""


class _TorchModel(Protocol):
    vocab_size: int
    max_model_len: int
    stop_token_ids: frozenset[int]

    @property
    def weight_bytes(self) -> int: ...

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor: ...


class TorchStepModel:
    """A model of torch operations, with attention over the blocks of a `KVCache`. Satisfies `StepModel`."""

    def __init__(
        self,
        model: _TorchModel,
        team: Team | None = None,
        attention: AttentionBackend | None = None,
        graphs: ModelGraphs | None = None,
    ) -> None:
        """Wraps a model.

        Args:
            model: it.
            team: with one its attention is the native one, over a `NativeKVCache`.
            attention: makes its attention otherwise; None is torch's.
            graphs: records its steps, if that can be done.
        """
        self._model = model
        self._team = team
        self._backend = attention if attention is not None else TorchBackend()
        self._graphs = graphs if graphs is not None else ModelGraphs(None)
        self.vocab_size = model.vocab_size
        self.max_model_len = model.max_model_len
        self.stop_token_ids = model.stop_token_ids
        self.weight_bytes = model.weight_bytes
        self.instruction_set = team.instruction_set if team is not None else ""

    def forward(self, batch: InputBatch, kv_cache: Any) -> Logits:
        """See `StepModel.forward`."""
        replayed = self._graphs.replay(batch, kv_cache.layout.block_size)
        if replayed is not None:
            return replayed
        with forward_context(self._attention(batch, kv_cache)):
            return Logits(self._model.forward(batch.input_ids, batch.positions, batch.logits_rows))

    def _attention(self, batch: InputBatch, kv_cache: Any) -> PagedAttention:
        if self._team is not None:
            return NativePagedAttention(batch, kv_cache, self._team)
        return self._backend.step(batch, kv_cache)

    def record_graphs(self, kv_cache: Any, max_blocks: int, buckets: Sequence[Bucket], tell: Callable[[str], None] = lambda _: None) -> int:
        """See `StepModel.record_graphs`."""

        def forward(rows: StepRows, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor:
            with forward_context(self._attention_of(rows, kv_cache)):
                return self._model.forward(input_ids, positions, logits_rows)

        return self._graphs.record(forward, max_blocks, buckets, kv_cache.pool.device, tell)

    def _attention_of(self, rows: StepRows, kv_cache: Any) -> PagedAttention:
        if not isinstance(self._backend, TritonBackend):
            raise TypeError("this attention looks at a batch on the host: no graph of it can be replayed")
        return self._backend.over_rows(rows, kv_cache)

    def drop_graphs(self) -> None:
        """See `StepModel.drop_graphs`."""
        self._graphs.drop()

    @property
    def graphs(self) -> tuple[int, str]:
        """See `StepModel.graphs`."""
        return len(self._graphs), self._graphs.reason

    def draw(self, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> torch.Tensor:
        """See `StepModel.draw`."""
        return queue_draws(logits, rows, samples) if self._team is None else draw_tokens(self._team, logits.contiguous(), rows, samples)

    def close(self) -> None:
        """See `StepModel.close`."""
        self._graphs.drop()
        del self._model
        if self._team is not None:
            self._team.close()


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


def num_threads(options: EngineConfig) -> int:
    """CPU threads: what the user asked for, else one for each physical core."""
    return options.threads if options.threads is not None else psutil.cpu_count(logical=False) or 1


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
    if path.kind != "native":
        with memory_for(f"the model {model_name(directory)}", path.weight_bytes(files), device, path.advice):
            return _load_on_torch(directory, files, path, options, device)
    try:
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


def quantized_path(path: CodePath, quantizer: Quantizer | None, options: EngineConfig) -> CodePath:
    """How a model runs whose weights a quantizer reads, if one does.

    Raises:
        InvalidRequestError: a type of activations was asked for by name that the quantizer does not have.
    """
    if quantizer is None:
        return path
    if options.dtype != "auto" and quantizer.dtype != path.dtype:
        wanted = str(quantizer.dtype).removeprefix("torch.")
        raise InvalidRequestError(f"--dtype {options.dtype} cannot be had with {quantizer.stored.label} weights; use --dtype {wanted}")
    return path.with_quantizer(quantizer.dtype, widened=quantizer.widens)


def can_attend_natively(geometry: KVGeometry, path: CodePath, options: EngineConfig, device: torch.device) -> bool:
    """Whether a model of torch operations gets the native attention."""
    return (
        device.type == "cpu"
        and options.attention == "auto"
        and path.dtype == torch.float32
        and options.code_path in {"auto", "native"}
        and geometry.uniform
        and geometry.head_dim <= MAX_NATIVE_HEAD_DIM
        and num_threads(options) <= FEW_THREADS
        and native_problem() is None
    )


def choose_attention(geometry: KVGeometry, path: CodePath, options: EngineConfig, device: torch.device) -> CodePath:
    """How a model of torch operations runs, with its attention decided.

    Raises:
        InvalidRequestError: an attention was asked for by name that this model cannot have.
    """
    if can_attend_natively(geometry, path, options, device):
        return replace(path, attention="native")
    refuse_fp8_kv(options, device, path.dtype, geometry)
    if options.attention == "auto":
        if path.kv_dtype == "fp8":
            return replace(path, attention="triton", attention_reason="only Triton's attention has --kv-dtype fp8")
        name, reason = best_attention(device, path.dtype, geometry, options.block_size)
        return replace(path, attention=name, attention_reason=reason)
    refuse_attention(options, device, path.dtype, geometry)
    reason = f"--attention {options.attention} was asked for"
    if options.attention == "torch" and (shown := torch_reason(device, path.dtype)):
        reason = f"{reason}; {shown}"
    return replace(path, attention=options.attention, attention_reason=reason)


def choose_ops(path: CodePath, device: torch.device) -> CodePath:
    """How a model of torch operations whose attention is decided runs, with its other operations decided.

    Triton's kernels store keys and values themselves, so they need an attention that finds them stored: Triton's.
    """
    if path.kind != "dense" or path.attention != "triton" or path.config is None:
        return path
    problem = fused_problem(device, path.dtype, path.config.hidden_size, fp8=path.kv_dtype == "fp8")
    return replace(path, fused=True) if problem is None else replace(path, fused_reason=f"no fused kernels: {problem}")


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


def torch_kv_layout(geometry: KVGeometry, path: CodePath, options: EngineConfig) -> KVLayout | Fp8KVLayout | NativeKVLayout:
    """The KV blocks of a model of torch operations whose attention is decided."""
    shape = {
        "num_layers": geometry.num_layers,
        "block_size": options.block_size,
        "kv_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
    }
    if path.attention == "native":
        return NativeKVLayout(**shape, kv_dtype="fp32")
    if path.kv_dtype == "fp8":
        return Fp8KVLayout(**shape)
    return KVLayout(**shape, dtype=path.dtype)


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
