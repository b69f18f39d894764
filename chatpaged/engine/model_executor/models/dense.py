"""A dense decoder, written out: Llama and its relatives without modules, hooks and keyword arguments between its operations.

```text
x = embedding[ids] * embedding_scale
for each layer:
    a = x            (normed, with pre_norms)          q, k, v = qkv a
    a = o attention(turned q, turned k, v)             q, k normed first, with qk_norm
    x = x + a        (a normed, with post_norms)       times residual_scale
    m = x            (normed, with pre_norms)          gate, up = gate_up m
    m = down (activation(gate) * up)
    x = x + m        (m normed, with post_norms)       times residual_scale
logits = lm_head norm(x) * logits_scale                capped, with final_softcap
```

Where numbers are rounded is the same as in transformers' classes, so that both give the same answers.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from chatpaged.engine.end_tokens import end_token_ids
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.forward_context import current_attention, forward_context
from chatpaged.engine.model_executor.models.dense_config import NO_ROPE, DenseConfig, NotDenseError, default_end_token, dense_config
from chatpaged.engine.model_executor.models.dense_weights import DenseFiles, DenseLayer, DenseWeights
from chatpaged.engine.model_executor.models.few_rows import few_rows_product
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.rope_table import RopeTable, rope_table, rotate
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import WeightFiles
from chatpaged.errors import InvalidRequestError

_Rotation = tuple[torch.Tensor, torch.Tensor]


class DenseModel:
    """A dense decoder behind the same functions as `HFModel`.

    Attributes:
        vocab_size: columns of the logits.
        max_model_len: longest sequence.
        stop_token_ids: end tokens that the configuration and the generation configuration name.
    """

    def __init__(self, config: DenseConfig, weights: DenseWeights, max_model_len: int, stop_token_ids: frozenset[int]) -> None:
        """Computes the rotary tables. All weights are on one device, on which it will run."""
        self.vocab_size = config.vocab_size
        self.max_model_len = max_model_len
        self.stop_token_ids = stop_token_ids
        self._config = config
        self._weights = weights
        dtype, device = weights.embedding.dtype, weights.embedding.device
        table_dtype = torch.promote_types(dtype, torch.float32) if config.wide_products else dtype
        self._tables: list[RopeTable] = [
            rope_table(parameters, config.rotary_dim, max_model_len).to(table_dtype, device) for parameters in config.rope_parameters
        ]
        self._options = [
            AttentionOptions(scale=config.attention_scale, window=window, softcap=config.attention_softcap) for window in config.windows
        ]
        self._split = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        scale = config.embedding_scale
        self._embedding_scale = float(torch.tensor(scale, dtype=dtype)) if config.embedding_scale_rounded else scale

    @property
    def weight_bytes(self) -> int:
        """See `StepModel.weight_bytes`."""
        weights = self._weights
        layers = (getattr(layer, field.name) for layer in weights.layers for field in fields(layer))
        return sum(tensor.nbytes for tensor in (*layers, weights.final_norm, weights.lm_head) if tensor is not None)

    def geometry(self) -> KVGeometry:
        """What the layers store. Runs one token through the model to see that its weights are sound.

        Raises:
            ModelError: it computes no numbers.
        """
        token = torch.zeros(1, dtype=torch.int64, device=self._weights.embedding.device)
        with torch.inference_mode(), forward_context(_OwnValue()):
            logits = self.forward(token, token, token)
        if not bool(logits.isfinite().all()):
            raise NotDenseError("this model computes no numbers (NaN or infinity): damaged weights, or a --dtype that is too narrow")
        return dense_geometry(self._config)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor:
        """One forward pass over a packed batch. Attention is the one of the current forward context.

        Args:
            input_ids: `[T]` int64.
            positions: `[T]` int64.
            logits_rows: `[R]` int64, tokens whose logits are wanted.

        Returns:
            Logits `[R, vocab_size]`.
        """
        config, weights = self._config, self._weights
        x = F.embedding(input_ids, weights.embedding)
        if self._embedding_scale != 1.0:
            x = x * self._embedding_scale
        rotations = [(table.cos[positions].unsqueeze(1), table.sin[positions].unsqueeze(1)) for table in self._tables]
        last = config.num_layers - 1
        for i, layer in enumerate(weights.layers):
            rope = config.ropes[i]
            attended = self._attend(i, layer, x, None if rope == NO_ROPE else rotations[rope])
            if i == last:  # nobody looks at what the other tokens would become
                x, attended = x[logits_rows], attended[logits_rows]
            x = self._finish(layer, x, attended)
        return self._logits(rms_norm(x, weights.final_norm, config.norm_eps))

    def _attend(self, number: int, layer: DenseLayer, x: torch.Tensor, rotation: _Rotation | None) -> torch.Tensor:
        """What a layer's attention gives for x `[T, hidden]`, before its output projection: `[T, num_heads * head_dim]`."""
        config = self._config
        if layer.input_norm is not None:
            x = rms_norm(x, layer.input_norm, config.norm_eps)
        qkv = _linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, config.head_dim)
        query, key, value = torch.split(qkv, self._split, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query = self._head_norm(query, layer.q_norm)
            key = self._head_norm(key, layer.k_norm)
            if rotation is not None:
                query, key = rotate(query, *rotation), rotate(key, *rotation)
        elif rotation is not None:  # they lie side by side: both at once
            query, key = torch.split(rotate(qkv[:, : -config.num_kv_heads], *rotation), self._split[:2], dim=1)
        return current_attention().attend(number, query, key, value, self._options[number]).reshape(x.shape[0], -1)

    def _head_norm(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Norm of queries or keys `[T, heads, head_dim]`: of each head by itself, or of all together."""
        if self._config.qk_norm == "head":
            return rms_norm(heads, weight, self._config.norm_eps)
        return rms_norm(heads.flatten(1), weight, self._config.norm_eps).view(heads.shape)

    def _finish(self, layer: DenseLayer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer after attention, token by token. x `[T, hidden]`."""
        x = self._add(x, _linear(attended, layer.o, layer.o_bias), layer.post_attention_norm)
        inner = x if layer.pre_mlp_norm is None else rms_norm(x, layer.pre_mlp_norm, self._config.norm_eps)
        gate, up = _linear(inner, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        activated = F.silu(gate) if self._config.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self._add(x, _linear(activated * up, layer.down, layer.down_bias), layer.post_mlp_norm)

    def _add(self, x: torch.Tensor, change: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is not None:
            change = rms_norm(change, norm, self._config.norm_eps)
        return x + (change if self._config.residual_scale == 1.0 else change * self._config.residual_scale)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        config = self._config
        logits = _linear(x, self._weights.lm_head, None)
        if config.logits_scale != 1.0:
            logits = logits * config.logits_scale
        if config.final_softcap is not None:
            logits = torch.tanh(logits / config.final_softcap) * config.final_softcap
        return logits


class _OwnValue:
    """Stands in for attention: each token attends to itself only. Satisfies `PagedAttention`."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:  # noqa: ARG002 - the protocol's
        """See `PagedAttention.attend`."""
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, computed in float32, as transformers does even in float64.

    Args:
        x: `[..., n]`.
        weight: `[n]`; its type says where the product is rounded, see `DenseLayer`.
        eps: see above.

    Returns:
        `[..., n]`, of the type of x.
    """
    shape = weight.shape
    if x.dtype == weight.dtype == torch.float32:
        return F.rms_norm(x, shape, weight, eps)
    if x.dtype == weight.dtype != torch.float64:
        return F.rms_norm(x, shape, None, eps) * weight
    normed = F.rms_norm(x.to(torch.float32), shape, None, eps)
    return (normed.to(weight.dtype) * weight).to(x.dtype)


def load_dense_model(
    directory: Path, dtype: torch.dtype, device: torch.device, max_model_len: int | None, files: WeightFiles | None = None
) -> DenseModel:
    """Loads a model directory without transformers.

    Args:
        directory: `config.json` and safetensors.
        dtype: type of the weights.
        device: where they go.
        max_model_len: longest sequence; None is the model's context.
        files: its weights, if they were looked at already.

    Raises:
        NotDenseError: the dense decoder cannot run it; transformers' classes perhaps can.
        InvalidRequestError: `max_model_len` is more than the model's context.
        ModelError: files are missing or damaged.
    """
    settings = read_json(directory / "config.json")
    config = dense_config(settings)
    if isinstance(config, str):
        raise NotDenseError(f"no dense decoder for {directory}: {config}")
    context = choose_context(config, max_model_len)
    with DenseFiles(directory, config, dtype, files) as opened:
        embedding = opened.embedding()
        head = opened.lm_head(embedding)
        on_device = embedding.to(device)
        weights = DenseWeights(
            embedding=on_device,
            layers=[layer.to(device) for layer in opened.layers()],
            final_norm=opened.final_norm().to(device),
            lm_head=on_device if head is embedding else head.to(device),
        )
    return DenseModel(config, weights, context, stop_tokens(directory))


def dense_geometry(config: DenseConfig) -> KVGeometry:
    """What the layers of a dense decoder store."""
    return KVGeometry(config.num_layers, config.num_kv_heads, config.head_dim, softcap=config.attention_softcap is not None)


def choose_context(config: DenseConfig, max_model_len: int | None) -> int:
    """The longest sequence: what was asked for, else what the model was made for.

    Raises:
        InvalidRequestError: `max_model_len` is more than the model's context.
    """
    if max_model_len is not None and max_model_len > config.context:
        raise InvalidRequestError(f"max_model_len {max_model_len} is more than the model's context of {config.context}")
    return config.context if max_model_len is None else max_model_len


def stop_tokens(directory: Path) -> frozenset[int]:
    """The end tokens of a directory's configurations, and the one that transformers takes where they name none."""
    default = default_end_token(read_json(directory / "config.json"))
    return end_token_ids(directory) | (frozenset() if default is None else {default})


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`x W' + bias` for x `[T, in]`, contiguous."""
    if weight.dtype == torch.float32 and weight.device.type == "cpu":
        return few_rows_product(x, weight, bias)
    return F.linear(x, weight, bias)
