"""Which code runs a model, with what numbers, and why: decided before anything is loaded, and shown.

- native: the dense decoder on the native kernels; the fastest on a CPU, and the only one whose weights can be quantised.
- dense: the dense decoder on torch operations, on any device; fused, with Triton's kernels between its products.
- universal: transformers' own classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import ModelCode
from chatpaged.engine.model_executor.attention.choice import KERNELS
from chatpaged.engine.model_executor.attention.triton_paged import fp8_device_problem
from chatpaged.engine.model_executor.memory import memory_for
from chatpaged.engine.model_executor.models.dense_config import DenseConfig, dense_config
from chatpaged.engine.model_executor.models.dense_weights import fits, read_rows
from chatpaged.engine.model_executor.models.refusals import refuse_attention, refuse_fp8_kv, refuse_fp8_weights, refuse_requests
from chatpaged.engine.model_executor.models.stored_quantization import (
    StoredQuantization,
    check_packing,
    check_scales,
    packed_bytes,
    stored_quantization,
)
from chatpaged.engine.model_executor.native.interface import I4, PANEL
from chatpaged.engine.model_executor.native.library import Team, native_problem
from chatpaged.engine.model_executor.native.packing import pack, unpack
from chatpaged.engine.model_executor.weights import SHORT_NAMES
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import WeightFiles
from chatpaged.errors import InvalidRequestError, ModelError

MAX_NATIVE_HEAD_DIM = 256
FP8_BYTES = 1.02
"""A scale of four bytes for each output, of some hundred inputs at least, and norms."""
BYTES_PER_WEIGHT = {"none": 4.0, "fp16": 2.0, "int8": 34 / 32, "int4": 20 / 32}
"""Groups of 32 with a scale of two bytes, or two."""


@dataclass(frozen=True, slots=True)
class CodePath:
    """How a model will run.

    Attributes:
        kind: "native", "dense" or "universal".
        reason: why it is not native, or why its weights are stored as they are.
        dtype: type of activations; of weights too, unless they are quantised.
        quantize: "none", "fp16", "int8" or "int4"; of the dense decoder on torch operations "none" or "fp8".
        kv_dtype: "fp32", "fp16" or "int8"; on torch's paths also "bf16", "fp64" and "fp8".
        config: of the dense decoder.
        attention: "torch", "native", "triton", "flash" or "varlen"; means nothing on the native path, whose attention is its own.
        attention_reason: why, where there was a choice.
        fused: whether the dense decoder on torch operations has Triton's kernels between its products.
        fused_reason: why not, where it could have been expected.
        could_be_fp8: whether the device and the model are such that weights could be fp8.
        packed: how weights are kept that were quantised before they came here; None if they were not, or are widened.
    """

    kind: str
    reason: str
    dtype: torch.dtype
    quantize: str
    kv_dtype: str
    config: DenseConfig | None = None
    attention: str = "torch"
    attention_reason: str = ""
    fused: bool = False
    fused_reason: str = ""
    could_be_fp8: bool = False
    packed: StoredQuantization | None = None

    @property
    def weights(self) -> str:
        """Type of the weights, in a word or two."""
        if self.packed is not None:
            return self.packed.weights
        return SHORT_NAMES[self.dtype] if self.quantize == "none" else self.quantize

    @property
    def advice(self) -> str:
        """What to do where the weights do not fit."""
        if self.kind == "native" and self.quantize != "int4":
            return "use a smaller model or --quantize int4"
        if self.kind == "dense" and self.could_be_fp8:
            return "use a smaller model" if self.quantize == "fp8" else "use a smaller model or --quantize fp8"
        return "use a smaller model" if self.kind == "native" or self.packed is not None else "use a smaller model or another --dtype"

    def weight_bytes(self, files: WeightFiles) -> int:
        """Memory that the weights take, about."""
        if self.packed is not None:
            return packed_bytes(files, self.dtype)
        if self.kind == "native":
            return int(files.num_parameters * BYTES_PER_WEIGHT[self.quantize])
        if self.quantize == "fp8" and self.config is not None:
            kept = min(files.num_parameters, self.config.vocab_size * self.config.hidden_size * (1 if self.config.tied else 2))
            return kept * self.dtype.itemsize + int((files.num_parameters - kept) * FP8_BYTES)
        return files.num_parameters * self.dtype.itemsize

    def universal(self, reason: str) -> CodePath:
        """The same on the universal path, where nothing is quantised."""
        kv_dtype = "fp8" if self.kv_dtype == "fp8" else SHORT_NAMES[self.dtype]
        return replace(self, kind="universal", reason=reason, quantize="none", kv_dtype=kv_dtype, config=None, fused=False, fused_reason="")

    def with_quantizer(self, dtype: torch.dtype, *, widened: bool) -> CodePath:
        """The same as a quantizer runs it: the type of activations is the one that it wants, and widened weights are packed no more."""
        kv_dtype = "fp8" if self.kv_dtype == "fp8" else SHORT_NAMES[dtype]
        return replace(self, dtype=dtype, kv_dtype=kv_dtype, packed=None if widened else self.packed)

    def code(self, instruction_set: str, weight_bytes: int = 0) -> ModelCode:
        """This, for people.

        Args:
            instruction_set: that of the native kernels, if the model or its attention runs on them.
            weight_bytes: see `ModelCode`.
        """
        if self.kind == "native":
            return ModelCode(
                name=f"native {instruction_set}", weights=self.weights, kv=self.kv_dtype, weight_bytes=weight_bytes, reason=self.reason
            )
        name = "fused torch decoder" if self.fused else "torch decoder" if self.kind == "dense" else "transformers"
        if instruction_set:
            name += ", native attention"
        if self.attention in KERNELS:
            name += f", {KERNELS[self.attention]} attention"
        dtype = str(self.dtype).removeprefix("torch.")
        reason = "; ".join(dict.fromkeys(part for part in (self.reason, self.attention_reason, self.fused_reason) if part))
        kv = "fp8" if self.kv_dtype == "fp8" else dtype
        weights = "fp8" if self.quantize == "fp8" else dtype if self.packed is None else self.packed.weights
        return ModelCode(name=name, weights=weights, kv=kv, weight_bytes=weight_bytes, reason=reason)


def choose_code(directory: Path, files: WeightFiles, options: EngineConfig, device: torch.device, dtype: torch.dtype) -> CodePath:
    """Decides.

    Args:
        directory: the model.
        files: its weights, looked at.
        options: what the user asked for.
        device: where it runs.
        dtype: type of activations.

    Raises:
        InvalidRequestError: what was asked for by name cannot be had, with the reason.
        ModelError: the weights are packed in a way that nobody describes.
        MemoryBudgetError: the files cannot even be looked into.
    """
    refuse_attention(options, device, dtype)
    packed = _packed(directory, files)
    config, not_dense = _dense(directory, files) if packed is None else (None, packed.reason)
    not_native = not_dense or _not_native(config, dtype, device)
    if options.code_path not in {"auto", "native"} and not_native is None:
        not_native = f"{options.code_path} was asked for"
    if options.attention != "auto" and not_native is None:
        not_native = f"--attention {options.attention} was asked for"
    refuse_fp8_kv(options, device, dtype, could_be_int8=not_native is None)
    if options.kv_dtype == "fp8" and not_native is None:
        not_native = "--kv-dtype fp8 was asked for"
    if options.quantize == "fp8":
        refuse_fp8_weights(options, device, dtype, not_dense or "", could_be_int8=not_native is None)
        not_native = not_native or "--quantize fp8 was asked for"
    if not_native is None and config is not None:
        quantize, reason = _quantization(files, options)
        return CodePath("native", reason, dtype, quantize, _native_kv(options, quantize), config)
    refuse_requests(options, dtype, not_native or "")
    if options.code_path == "dense" and config is None:
        raise InvalidRequestError(f"the dense decoder was asked for, which cannot run this: {not_dense}")
    kv_dtype = "fp8" if options.kv_dtype == "fp8" else SHORT_NAMES[dtype]
    quantize = "fp8" if options.quantize == "fp8" else "none"
    could_be_fp8 = device.type == "cuda" and torch.cuda.is_available() and fp8_device_problem(device) is None
    path = CodePath("dense", not_native or "", dtype, quantize, kv_dtype, config, could_be_fp8=could_be_fp8)
    if config is None:
        return replace(path.universal(not_dense or ""), packed=packed)
    return path.universal("universal was asked for") if options.code_path == "universal" else path


def _packed(directory: Path, files: WeightFiles) -> StoredQuantization | None:
    packed = stored_quantization(read_json(directory / "config.json"))
    if packed is None:
        check_packing(files)
    else:
        check_scales(packed, files)
    return packed


def _dense(directory: Path, files: WeightFiles) -> tuple[DenseConfig | None, str | None]:
    given = read_json(directory / "config.json")
    layers = given.get("num_hidden_layers")
    if isinstance(layers, int) and layers > len(files.shapes):  # billions of layers would be thought of before they are missed
        return None, f"num_hidden_layers is {layers:,}, more than there are tensors"
    try:
        config = dense_config(given)
    except ModelError as error:
        return None, str(error)
    if isinstance(config, str):
        return None, config
    misfit = fits(config, files.shapes)
    return (config, None) if misfit is None else (None, misfit)


def _not_native(config: DenseConfig | None, dtype: torch.dtype, device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"the native decoder runs on CPUs only, this is {device.type}"
    if dtype != torch.float32:
        return f"its arithmetic is float32, not {str(dtype).removeprefix('torch.')}"
    if config is not None and config.head_dim > MAX_NATIVE_HEAD_DIM:
        return f"heads of {config.head_dim} dimensions, more than {MAX_NATIVE_HEAD_DIM}"
    return native_problem()


def _quantization(files: WeightFiles, options: EngineConfig) -> tuple[str, str]:
    """How the weights are stored, and why. Measured with `benchmarks.quality`: see docs/benchmarks.md."""
    if options.quantize != "auto":
        return options.quantize, "asked for"
    if options.dtype != "auto":
        return "none", f"--dtype {options.dtype} was asked for"
    with memory_for("the model", 2 * files.num_bytes, torch.device("cpu"), "use a smaller model"):  # safetensors maps files twice
        four_bits = _are_four_bits(files)
    if four_bits:
        return "int4", "the weights are of 4 bits already: nothing is lost"
    return "int8", "within 1 % of float32's perplexity"


def _are_four_bits(files: WeightFiles) -> bool:
    """Whether the weights come from a file in 4 bits (Q4_0, Q4_1), seen from some of their numbers."""
    team = Team(1)
    names = sorted(name for name in files.shapes if name.endswith("down_proj.weight"))
    for name in {names[0], names[len(names) // 2], names[-1]}:
        rows = read_rows(files, name, PANEL).float()
        count, width = rows.shape
        if not torch.equal(unpack(pack(rows, I4, team), count, width, I4), rows):
            return False
    return True


def _native_kv(options: EngineConfig, quantize: str) -> str:
    if options.kv_dtype != "auto":
        return options.kv_dtype
    return "fp32" if quantize == "none" else "fp16"
