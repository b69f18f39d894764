"""A dense decoder on the native kernels: a whole step in one call, weights as panels, keys and values where they lie."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from chatpaged.engine.executor import NO_TOKEN
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.graphs.buckets import Bucket
from chatpaged.engine.model_executor.input_batch import InputBatch, RowSpan
from chatpaged.engine.model_executor.models.dense_config import NO_ROPE, DenseConfig, NotDenseError
from chatpaged.engine.model_executor.models.dense_weights import DenseFiles, DenseLayer
from chatpaged.engine.model_executor.models.rope_table import rope_table
from chatpaged.engine.model_executor.native.arrays import StepArrays
from chatpaged.engine.model_executor.native.draws import draw_tokens
from chatpaged.engine.model_executor.native.interface import BF16, F16, F32, I4, I8, PANEL, Layer, Linear, ModelConfig
from chatpaged.engine.model_executor.native.library import NativeError, Team
from chatpaged.engine.model_executor.native.packing import interleave, pack, packed_bytes
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache, NativeKVLayout
from chatpaged.engine.model_executor.quantized_weights import load_quantized, quantized_file, save_quantized
from chatpaged.engine.model_executor.step_numbers import StepNumbers
from chatpaged.engine.scheduler_output import SampleRow
from chatpaged.engine.weight_files import WeightFiles
from chatpaged.errors import MemoryBudgetError, ModelError

FORMATS: Mapping[str, int] = {"none": F32, "fp16": F16, "int8": I8, "int4": I4}
READY_TOKENS = 256
"""Of the largest step that no memory has to be found for."""
_EMBEDDING_FORMATS = {torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16}
_QK_NORMS = {"none": 0, "head": 1, "full": 2}
_MATRICES = ("qkv", "o", "gate_up", "down")
_NORMS = ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm", "q_norm", "k_norm")


def pack_model(files: DenseFiles, config: DenseConfig, quantize: str, team: Team) -> dict[str, torch.Tensor]:
    """All weights but the embedding, packed; norms and biases as float32.

    The output layer is int8 where the others are int4: it decides between tokens, and files in 4 bits keep it in 8 as well.

    Args:
        files: the model's, as float32.
        config: its configuration.
        quantize: one of `FORMATS`.
        team: does the work.

    Raises:
        ModelError: there are weights that are no numbers; nothing could be told from the answers.
    """
    layout = FORMATS[quantize]
    packed: dict[str, torch.Tensor] = {}
    for number, layer in enumerate(files.layers()):
        packed |= {f"{number}.{name}": tensor for name, tensor in _pack_layer(layer, layout, config.intermediate_size, team).items()}
    packed["final_norm"] = _sound("final_norm", files.final_norm()).float()
    packed["lm_head"] = pack(_sound("lm_head", files.lm_head(files.embedding())), _head_layout(layout), team)
    return packed


def packed_sizes(config: DenseConfig, quantize: str) -> dict[str, int]:
    """Bytes of each tensor that `pack_model` makes."""
    layout, hidden, f32 = FORMATS[quantize], config.hidden_size, 4
    shapes = _matrix_shapes(config)
    sizes = {name: packed_bytes(n, k, layout) for name, (n, k) in shapes.items()}
    biased = {"qkv": config.qkv_bias, "o": config.o_bias, "gate_up": config.mlp_bias, "down": config.mlp_bias}
    sizes |= {f"{name}_bias": f32 * -(-shapes[name][0] // PANEL) * PANEL for name, there in biased.items() if there}
    sizes |= dict.fromkeys(("input_norm", "pre_mlp_norm") if config.pre_norms else (), f32 * hidden)
    sizes |= dict.fromkeys(("post_attention_norm", "post_mlp_norm") if config.post_norms else (), f32 * hidden)
    if config.qk_norm != "none":
        heads = (config.num_heads, config.num_kv_heads) if config.qk_norm == "full" else (1, 1)
        sizes |= {name: f32 * count * config.head_dim for name, count in zip(("q_norm", "k_norm"), heads, strict=True)}
    whole = {f"{number}.{name}": size for number in range(config.num_layers) for name, size in sizes.items()}
    return whole | {"final_norm": f32 * hidden, "lm_head": packed_bytes(config.vocab_size, hidden, _head_layout(layout))}


def _matrix_shapes(config: DenseConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a layer's matrices."""
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    half = PANEL // 2
    return {
        "qkv": (heads + 2 * kv, config.hidden_size),
        "o": (config.hidden_size, heads),
        "gate_up": (2 * half * -(-config.intermediate_size // half), config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }


def _head_layout(layout: int) -> int:
    return I8 if layout == I4 else layout


def _sound(name: str, weight: torch.Tensor) -> torch.Tensor:
    """The weight itself. Packed, NaN and infinity would become numbers."""
    if not all(math.isfinite(end) for end in torch.aminmax(weight)):
        raise ModelError(f"this model's {name} holds NaN or infinity: damaged weights")
    return weight


def _pack_layer(layer: DenseLayer, layout: int, intermediate: int, team: Team) -> dict[str, torch.Tensor]:
    def paired(both: torch.Tensor) -> torch.Tensor:
        return interleave(both[:intermediate], both[intermediate:])

    for field in fields(layer):
        weight = getattr(layer, field.name)
        if weight is not None:
            _sound(field.name, weight)
    tensors = {name: pack(paired(layer.gate_up) if name == "gate_up" else getattr(layer, name), layout, team) for name in _MATRICES}
    for name in _MATRICES:
        bias = getattr(layer, f"{name}_bias")
        if bias is not None:
            bias = paired(bias) if name == "gate_up" else bias
            tensors[f"{name}_bias"] = torch.nn.functional.pad(bias.float(), (0, -bias.shape[0] % PANEL))
    for name in _NORMS:
        weight = getattr(layer, name)
        if weight is not None:
            tensors[name] = weight.float()
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How to run a model.

    Attributes:
        quantize: one of `FORMATS`.
        kv_dtype: one of `native_kv_cache.KV_FORMATS`.
        block_size: tokens of a KV block.
        max_model_len: longest sequence.
        threads: of the kernels.
        instruction_set: for tests and measurements; None is the best.
    """

    quantize: str
    kv_dtype: str
    block_size: int
    max_model_len: int
    threads: int
    instruction_set: str | None = None


def native_kv_layout(config: DenseConfig, block_size: int, kv_dtype: str) -> NativeKVLayout:
    """The KV blocks of a model; arguments as in `NativeOptions`."""
    return NativeKVLayout(
        num_layers=config.num_layers, block_size=block_size, kv_heads=config.num_kv_heads, head_dim=config.head_dim, kv_dtype=kv_dtype
    )


class NativeDenseModel:
    """A decoder behind one function.

    Attributes:
        vocab_size: columns of the logits.
        max_model_len: longest sequence.
        stop_token_ids: end tokens that the configurations name.
        layout: of its KV blocks.
        weight_bytes: of all packed weights: what a decoded token reads.
    """

    def __init__(
        self,
        config: DenseConfig,
        embedding: torch.Tensor,
        packed: Mapping[str, torch.Tensor],
        options: NativeOptions,
        stop_token_ids: Iterable[int],
        team: Team,
    ) -> None:
        """Hands everything to the kernels; the tensors are kept, not copied. `load` does so for a directory.

        Args:
            config: of the model.
            embedding: `[vocab, hidden]`, in a type of `_EMBEDDING_FORMATS`.
            packed: everything else, as `pack_model` makes it.
            options: how to run it.
            stop_token_ids: see above.
            team: does the work; it belongs to the model from now on, which ends it when it is closed.

        Raises:
            NativeError: no native library, or a shape that it does not do.
        """
        self.vocab_size = config.vocab_size
        self.max_model_len = options.max_model_len
        self.stop_token_ids = frozenset(stop_token_ids)
        self.layout = native_kv_layout(config, options.block_size, options.kv_dtype)
        self.weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in packed.values())
        self._team = team
        self._library = self._team.library
        self._logits = torch.empty(0, -(-config.vocab_size // PANEL) * PANEL)
        tables = [rope_table(parameters, config.rotary_dim, options.max_model_len) for parameters in config.rope_parameters]
        self._kept = [embedding, *packed.values(), *(part for table in tables for part in (table.cos, table.sin))]
        described = _Description(config, embedding, packed, FORMATS[options.quantize])
        layers = (Layer * config.num_layers)(*(described.layer(i) for i in range(config.num_layers)))
        for layer, rope in zip(layers, config.ropes, strict=True):
            if rope != NO_ROPE:
                layer.cosine, layer.sine = tables[rope].cos.data_ptr(), tables[rope].sin.data_ptr()
        model = described.model(layers, self.layout)
        self._handle = self._library.cp_model_create(self._team.handle, ctypes.byref(model))
        if not self._handle or self._library.cp_model_block_bytes(self._handle) != self.layout.block_bytes:
            raise NativeError("the native kernels do not do a model of this shape")
        self._library.cp_model_reserve(self._handle, READY_TOKENS)  # where that fails, a step will say so
        self.instruction_set = self._team.instruction_set

    @classmethod
    def load(
        cls,
        directory: Path,
        files: WeightFiles,
        config: DenseConfig,
        options: NativeOptions,
        stop_token_ids: Iterable[int],
        tell: Callable[[str], None] = lambda _: None,
    ) -> NativeDenseModel:
        """Maps the packed weights of a directory, after packing them if that was not done before. `tell` is told if it takes long.

        Raises:
            NotDenseError: the files do not fit the configuration.
            NativeError: no native library, or a shape that it does not do.
        """
        kept = quantized_file(files, directory, options.quantize)
        team = Team(options.threads, options.instruction_set)
        with DenseFiles(directory, config, torch.float32, files) as opened:
            sizes = packed_sizes(config, options.quantize)
            packed = load_quantized(kept, sizes)
            if packed is None:
                tell(f"packing weights as {options.quantize} (once)" if options.quantize != "none" else "packing weights (once)")
                packed = pack_model(opened, config, options.quantize, team)
                if save_quantized(kept, packed):
                    packed = load_quantized(kept, sizes) or packed  # mapped: memory can be given to others, and is shared
            return cls(config, opened.stored_embedding(), packed, options, stop_token_ids, team)

    def forward(self, batch: InputBatch, kv_cache: NativeKVCache) -> Logits:
        """One step. The logits are valid until the next.

        Raises:
            MemoryBudgetError: no memory for intermediate results.
        """
        arrays = StepArrays(batch, kv_cache.pool)
        logits = self._room(arrays.num_logits)
        best = torch.empty(arrays.num_logits, dtype=torch.int32)
        best_logit = torch.empty(arrays.num_logits)
        step = arrays.step
        step.logits, step.best, step.best_logit = logits.data_ptr(), best.data_ptr(), best_logit.data_ptr()
        if self._library.cp_model_step(self._handle, ctypes.byref(step)):
            raise MemoryBudgetError("no memory for the intermediate results of a step; use a smaller --max-batched-tokens")
        tokens = torch.where(best_logit.isfinite(), best, NO_TOKEN).tolist()
        return Logits(logits[:, : self.vocab_size], tokens)

    graphs = (0, "")

    def replay(self, numbers: StepNumbers) -> Logits | None:
        """See `StepModel.replay`."""

    def record_graphs(self, kv_cache: NativeKVCache, max_blocks: int, buckets: Sequence[Bucket], tell: Callable[[str], None]) -> int:  # noqa: ARG002 - the protocol's
        """See `StepModel.record_graphs`: a step is one call already."""
        return 0

    def drop_graphs(self) -> None:
        """See `StepModel.drop_graphs`."""

    def draw(self, logits: torch.Tensor, rows: Sequence[int], samples: Sequence[SampleRow]) -> torch.Tensor:
        """See `StepModel.draw`."""
        return draw_tokens(self._team, logits, rows, samples)

    def _room(self, rows: int) -> torch.Tensor:
        """Memory for logits, the same each time: fresh memory costs more than filling it."""
        if self._logits.shape[0] < rows:
            self._logits = torch.empty(rows, self._logits.shape[1])
        return self._logits[:rows]

    def check_numbers(self) -> None:
        """Runs one token to see that the weights are sound.

        Raises:
            NotDenseError: it computes no numbers. Perhaps others do, or know its name at least.
        """
        zero = torch.zeros(1, dtype=torch.int64)
        batch = InputBatch(zero, zero, zero, zero, zero, (RowSpan(0, 1, 0, (0,)),))
        if self.forward(batch, NativeKVCache(self.layout, 1)).best == [NO_TOKEN]:
            raise NotDenseError("this model computes no numbers (NaN or infinity): damaged weights")

    def close(self) -> None:
        """Ends the threads and lets go of all memory."""
        if self._handle:
            self._library.cp_model_destroy(self._handle)
            self._handle = None
        self._team.close()
        self._kept.clear()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class _Description:
    """A model as the structures of the native interface."""

    def __init__(self, config: DenseConfig, embedding: torch.Tensor, packed: Mapping[str, torch.Tensor], layout: int) -> None:
        self._config = config
        self._embedding = embedding
        self._packed = packed
        self._layout = layout

    def _pointer(self, name: str) -> int | None:
        tensor = self._packed.get(name)
        return None if tensor is None else tensor.data_ptr()

    def _linear(self, name: str, n: int, k: int, layout: int) -> Linear:
        return Linear(layout, n, k, self._packed[name].data_ptr(), self._pointer(f"{name}_bias"))

    def layer(self, number: int) -> Layer:
        pointers = {name: self._pointer(f"{number}.{name}") for name in _NORMS}
        matrices = {name: self._linear(f"{number}.{name}", n, k, self._layout) for name, (n, k) in _matrix_shapes(self._config).items()}
        return Layer(window=self._config.windows[number] or 0, **pointers, **matrices)

    def model(self, layers: ctypes.Array[Layer], kv: NativeKVLayout) -> ModelConfig:
        config = self._config
        return ModelConfig(
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab_size,
            rotary_dim=config.rotary_dim,
            activation=int(config.activation == "gelu_tanh"),
            qk_norm=_QK_NORMS[config.qk_norm],
            norm_eps=config.norm_eps,
            embedding_scale=config.embedding_scale,
            residual_scale=config.residual_scale,
            logits_scale=config.logits_scale,
            attention_scale=config.attention_scale,
            attention_softcap=config.attention_softcap or 0.0,
            final_softcap=config.final_softcap or 0.0,
            embedding_format=_EMBEDDING_FORMATS[self._embedding.dtype],
            embedding=self._embedding.data_ptr(),
            final_norm=self._packed["final_norm"].data_ptr(),
            lm_head=self._linear("lm_head", config.vocab_size, config.hidden_size, _head_layout(self._layout)),
            layers=layers,
            kv_format=kv.format,
            block_size=kv.block_size,
        )
