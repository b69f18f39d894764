"""Weights of the dense decoder, read tensor by tensor from mapped safetensors files, whatever their family calls them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import safetensors
import torch

from chatpaged.engine.model_executor.models.dense_config import DenseConfig, NotDenseError
from chatpaged.engine.model_executor.models.fp8_matrix import Fp8Matrix
from chatpaged.engine.weight_files import Shape, WeightFiles, inspect_weights

_EMBEDDING, _FINAL_NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_IGNORED_END = "rotary_emb.inv_freq"  # older files keep them; they are computed
_MATRICES = ("qkv", "o", "gate_up", "down")
_FLOATING = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """Weights of one layer: H query heads, KV key heads of D dimensions, I dimensions in the MLP. Matrices are `[out, in]`.

    Norm weights are complete: what is to be added to them has been. Their type says where products with them are rounded: where it is
    wider than the model's, afterwards.

    Attributes:
        input_norm: `[hidden]`, before attention; None without `pre_norms`.
        qkv: `[(H + 2 KV) D, hidden]`.
        qkv_bias: `[(H + 2 KV) D]`.
        q_norm: `[D]`, or `[H D]` if it goes over all heads.
        k_norm: `[D]`, or `[KV D]`.
        o: `[hidden, H D]`.
        o_bias: `[hidden]`.
        post_attention_norm: `[hidden]`, of what attention gives; None without `post_norms`.
        pre_mlp_norm: `[hidden]`.
        gate_up: `[2 I, hidden]`, the gate's rows first.
        gate_up_bias: `[2 I]`.
        down: `[hidden, I]`.
        down_bias: `[hidden]`.
        post_mlp_norm: `[hidden]`.
        qkv_scales: float32 `[(H + 2 KV) D]`, of the rows of `qkv` where these are codes of 8 bits, see `Fp8Matrix`; else None.
        o_scales: likewise.
        gate_up_scales: likewise.
        down_scales: likewise.
    """

    input_norm: torch.Tensor | None
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    post_attention_norm: torch.Tensor | None
    pre_mlp_norm: torch.Tensor | None
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    post_mlp_norm: torch.Tensor | None
    qkv_scales: torch.Tensor | None = None
    o_scales: torch.Tensor | None = None
    gate_up_scales: torch.Tensor | None = None
    down_scales: torch.Tensor | None = None

    def to(self, device: torch.device) -> DenseLayer:
        """The same on a device."""
        tensors: dict[str, torch.Tensor | None] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: None if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        return DenseLayer(**moved)

    def as_fp8(self) -> DenseLayer:
        """The same with matrices of 8 bits, on the device where they are."""
        changed: dict[str, torch.Tensor] = {}
        for name in _MATRICES:
            matrix = Fp8Matrix.of(getattr(self, name))
            changed |= {name: matrix.codes, f"{name}_scales": matrix.scales}
        return replace(self, **changed)


@dataclass(slots=True)
class DenseWeights:
    """All weights.

    Attributes:
        embedding: `[vocab, hidden]`.
        layers: in order.
        final_norm: `[hidden]`; see `DenseLayer` about norms.
        lm_head: `[vocab, hidden]`; the same tensor as the embedding where they are tied.
    """

    embedding: torch.Tensor
    layers: list[DenseLayer]
    final_norm: torch.Tensor
    lm_head: torch.Tensor


def fits(config: DenseConfig, shapes: dict[str, Shape]) -> str | None:
    """Why files with these tensors are not the model's; None if they are. Decided by headers, nothing is read.

    Args:
        config: the model's.
        shapes: of all tensors, by name; see `WeightFiles`.
    """
    if config.num_layers > len(shapes):  # building a list of them could take all memory
        return f"{config.num_layers} layers, but only {len(shapes)} tensors"
    wanted = _wanted_shapes(config)
    for name, shape in wanted.items():
        if shapes.get(name) != shape:
            return f"{name} is {shapes.get(name, 'missing')}, not {shape}"
    optional = {_HEAD: wanted[_EMBEDDING]} if config.tied else {}
    for name in shapes.keys() - wanted.keys():
        if shapes[name] != optional.get(name) and not name.endswith(_IGNORED_END):
            return f"{name} is not known"
    return None


def read_dense_weights(directory: Path, config: DenseConfig, dtype: torch.dtype) -> DenseWeights:
    """Reads all weights into memory. `DenseFiles` gives them one layer at a time.

    Args:
        directory: the model.
        config: its configuration.
        dtype: type of the weights; norms may be wider.

    Raises:
        NotDenseError: the files do not fit the configuration.
        ModelError: a file is missing or damaged.
    """
    with DenseFiles(directory, config, dtype) as files:
        embedding = files.embedding()
        return DenseWeights(embedding, list(files.layers()), files.final_norm(), files.lm_head(embedding))


def read_rows(files: WeightFiles, name: str, count: int) -> torch.Tensor:
    """The first rows of a tensor, read without the rest.

    Raises:
        NotDenseError: it cannot be read.
    """
    for path in files.paths:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                if name in file.keys():  # noqa: SIM118 - no dictionary
                    rows: torch.Tensor = file.get_slice(name)[:count].clone()  # else the whole file stays mapped
                    return rows
        except (OSError, safetensors.SafetensorError) as error:
            raise NotDenseError(f"cannot read {name} in {path}: {error}") from error
    raise NotDenseError(f"no {name} in the weights")


class DenseFiles:
    """The open files of a model. A context manager; what was read stays valid after it is closed."""

    def __init__(self, directory: Path, config: DenseConfig, dtype: torch.dtype, files: WeightFiles | None = None) -> None:
        """Opens the files, reads headers only. Arguments and errors as for `read_dense_weights`.

        `files` is what was seen of the weights, if somebody has looked at them already.
        """
        self._directory = directory
        self._config = config
        self._dtype = dtype
        files = files if files is not None else inspect_weights(directory)
        reason = fits(config, files.shapes)
        if reason is not None:
            raise NotDenseError(f"the weights in {directory} do not fit its config.json: {reason}")
        self._stack = ExitStack()
        self._place: dict[str, Any] = {}
        try:
            for path in files.paths:
                file = self._stack.enter_context(safetensors.safe_open(path, framework="pt"))
                self._place |= dict.fromkeys(file.keys(), file)
        except BaseException as error:
            self._stack.close()
            if isinstance(error, safetensors.SafetensorError):
                raise NotDenseError(f"cannot read the weights in {directory}: {error}") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def embedding(self) -> torch.Tensor:
        """`[vocab, hidden]`."""
        return self._read(_EMBEDDING)

    def stored_embedding(self) -> torch.Tensor:
        """The same in the type of the files, which is not read as a whole: rows are where they are looked at. float64 becomes float32."""
        stored: torch.Tensor = self._place[_EMBEDDING].get_tensor(_EMBEDDING)
        return stored.float() if stored.dtype == torch.float64 else stored

    def final_norm(self) -> torch.Tensor:
        """`[hidden]`."""
        return self._norm(_FINAL_NORM)

    def lm_head(self, embedding: torch.Tensor) -> torch.Tensor:
        """`[vocab, hidden]`.

        Args:
            embedding: what `embedding` gave. It is returned where it is the output layer as well.
        """
        if _HEAD not in self._place:
            return embedding
        head = self._read(_HEAD)
        # As transformers: where the configuration says that they are one and the files hold two that differ, the files are believed.
        return embedding if self._config.tied and torch.equal(head, embedding) else head

    def layers(self) -> Iterator[DenseLayer]:
        """Layer by layer; each is read when it is asked for."""
        return (self._layer(f"model.layers.{i}.") for i in range(self._config.num_layers))

    def _layer(self, prefix: str) -> DenseLayer:
        config = self._config
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = [f"{attention}{name}" for name in (("qkv_proj",) if config.fused else ("q_proj", "k_proj", "v_proj"))]
        gate_up = [f"{mlp}{name}" for name in (("gate_up_proj",) if config.fused else ("gate_proj", "up_proj"))]
        norms = {role: self._norm(f"{prefix}{name}.weight") for role, name in _norm_names(config).items()}
        heads = {f"{part}_norm": self._norm(f"{attention}{part}_norm.weight") for part in ("q", "k") if config.qk_norm != "none"}
        return DenseLayer(
            input_norm=norms.get("input_norm"),
            qkv=self._joined(qkv, "weight"),
            qkv_bias=self._joined(qkv, "bias") if config.qkv_bias else None,
            q_norm=heads.get("q_norm"),
            k_norm=heads.get("k_norm"),
            o=self._read(f"{attention}o_proj.weight"),
            o_bias=self._read(f"{attention}o_proj.bias") if config.o_bias else None,
            post_attention_norm=norms.get("post_attention_norm"),
            pre_mlp_norm=norms.get("pre_mlp_norm"),
            gate_up=self._joined(gate_up, "weight"),
            gate_up_bias=self._joined(gate_up, "bias") if config.mlp_bias else None,
            down=self._read(f"{mlp}down_proj.weight"),
            down_bias=self._read(f"{mlp}down_proj.bias") if config.mlp_bias else None,
            post_mlp_norm=norms.get("post_mlp_norm"),
        )

    def _norm(self, name: str) -> torch.Tensor:
        weight = self._read(name)
        if self._config.norm_offset:
            return weight.to(torch.float32) + self._config.norm_offset  # Gemma's are added up in float32, whatever the model's type
        if self._config.wide_products and self._dtype.itemsize < torch.float32.itemsize:
            return weight.to(torch.float32)
        return weight

    def _joined(self, modules: list[str], kind: str) -> torch.Tensor:
        parts = [self._read(f"{module}.{kind}") for module in modules]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _read(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._place[name].get_tensor(name)
        except safetensors.SafetensorError as error:
            raise NotDenseError(f"cannot read {name} in {self._directory}: {error}") from error
        if tensor.dtype not in _FLOATING:
            raise NotDenseError(f"{name} in {self._directory} is {tensor.dtype}, which needs a scale")
        return tensor.to(self._dtype)


def _norm_names(config: DenseConfig) -> dict[str, str]:
    """Norms of a layer: role to name. The same name stands for different roles in different families."""
    if config.pre_norms and not config.post_norms:
        return {"input_norm": "input_layernorm", "pre_mlp_norm": "post_attention_layernorm"}
    post = {"post_attention_norm": "post_attention_layernorm", "post_mlp_norm": "post_feedforward_layernorm"}
    return post | ({"input_norm": "input_layernorm", "pre_mlp_norm": "pre_feedforward_layernorm"} if config.pre_norms else {})


def _wanted_shapes(config: DenseConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {_EMBEDDING: (config.vocab_size, hidden), _FINAL_NORM: (hidden,)}
    if not config.tied:
        shapes[_HEAD] = (config.vocab_size, hidden)
    layer = _layer_shapes(config)
    return shapes | {f"model.layers.{i}.{name}": shape for i in range(config.num_layers) for name, shape in layer.items()}


def _layer_shapes(config: DenseConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = {"qkv_proj": q + 2 * kv} if config.fused else {"q_proj": q, "k_proj": kv, "v_proj": kv}
    gate_up = {"gate_up_proj": 2 * inner} if config.fused else {"gate_proj": inner, "up_proj": inner}
    modules = (
        [(f"self_attn.{name}", rows, hidden, config.qkv_bias) for name, rows in qkv.items()]
        + [("self_attn.o_proj", hidden, q, config.o_bias)]
        + [(f"mlp.{name}", rows, hidden, config.mlp_bias) for name, rows in gate_up.items()]
        + [("mlp.down_proj", hidden, inner, config.mlp_bias)]
    )
    shapes: dict[str, Shape] = {f"{name}.weight": (rows, columns) for name, rows, columns, _ in modules}
    shapes |= {f"{name}.bias": (rows,) for name, rows, _, bias in modules if bias}
    shapes |= {f"{name}.weight": (hidden,) for name in _norm_names(config).values()}
    if config.qk_norm != "none":
        whole = config.qk_norm == "full"
        shapes |= {f"self_attn.{part}_norm.weight": (size if whole else config.head_dim,) for part, size in (("q", q), ("k", kv))}
    return shapes
