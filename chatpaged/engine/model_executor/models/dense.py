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
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.kv_cache import LayerKV
from chatpaged.engine.model_executor.models.dense_config import DenseConfig, NotDenseError, default_end_token, dense_config
from chatpaged.engine.model_executor.models.dense_ops import DenseOps, PlainOps, linear, rope_tables
from chatpaged.engine.model_executor.models.dense_weights import DenseFiles, DenseWeights
from chatpaged.engine.model_executor.models.fused_ops import FusedOps
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import WeightFiles
from chatpaged.errors import InvalidRequestError


class DenseModel:
    """A dense decoder behind the same functions as `HFModel`.

    Attributes:
        vocab_size: columns of the logits.
        max_model_len: longest sequence.
        stop_token_ids: end tokens that the configuration and the generation configuration name.
    """

    def __init__(
        self, config: DenseConfig, weights: DenseWeights, max_model_len: int, stop_token_ids: frozenset[int], *, fused: bool = False
    ) -> None:
        """Computes the rotary tables. All weights are on one device, on which it will run.

        Args:
            config: what it computes.
            weights: its weights.
            max_model_len: see above.
            stop_token_ids: see above.
            fused: with Triton's kernels between its products, and attention that is a `StoredAttention`; see `fused_problem`.
        """
        self.vocab_size = config.vocab_size
        self.max_model_len = max_model_len
        self.stop_token_ids = stop_token_ids
        self._config = config
        self._weights = weights
        dtype, device = weights.embedding.dtype, weights.embedding.device
        tables = rope_tables(config, max_model_len, dtype, device)
        self._ops: DenseOps = FusedOps(config, tables) if fused else PlainOps(config, tables)
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
        with torch.inference_mode(), forward_context(_OwnValue(self._config, self._weights.embedding)):
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
        ops, layers = self._ops, weights.layers
        turns = ops.turns(positions)
        normed = x if layers[0].input_norm is None else ops.norm(x, layers[0].input_norm)
        for i, layer in enumerate(layers):
            attended = ops.attend(i, layer, linear(normed, layer.qkv, layer.qkv_bias, layer.qkv_scales), turns)
            is_last = i == config.num_layers - 1
            if is_last:  # nobody looks at what the other tokens would become
                x, attended = x[logits_rows], attended[logits_rows]
            x, normed = ops.add(x, linear(attended, layer.o, layer.o_bias, layer.o_scales), layer.post_attention_norm, layer.pre_mlp_norm)
            change = linear(
                ops.activate(linear(normed, layer.gate_up, layer.gate_up_bias, layer.gate_up_scales)),
                layer.down,
                layer.down_bias,
                layer.down_scales,
            )
            x, normed = ops.add(x, change, layer.post_mlp_norm, weights.final_norm if is_last else layers[i + 1].input_norm)
        return self._logits(normed)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        config = self._config
        logits = linear(x, self._weights.lm_head, None)
        if config.logits_scale != 1.0:
            logits = logits * config.logits_scale
        if config.final_softcap is not None:
            logits = torch.tanh(logits / config.final_softcap) * config.final_softcap
        return logits


class _OwnValue:
    """Stands in for attention of one token, which attends to itself only. Satisfies `PagedAttention` and `StoredAttention`."""

    def __init__(self, config: DenseConfig, like: torch.Tensor) -> None:
        """Has room for one token, of the type and on the device of a tensor."""
        self._pool = like.new_zeros(2, 1, 1, config.num_kv_heads, config.head_dim)
        self._slot = torch.zeros(1, dtype=torch.int64, device=like.device)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:  # noqa: ARG002 - the protocol's
        """See `PagedAttention.attend`."""
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)

    def places(self, layer: int) -> tuple[LayerKV, torch.Tensor]:  # noqa: ARG002 - the protocol's
        """See `StoredAttention.places`."""
        return LayerKV(self._pool[0], self._pool[1]), self._slot

    def attend_stored(self, layer: int, query: torch.Tensor, options: AttentionOptions, kv_heads: int, value_dim: int) -> torch.Tensor:  # noqa: ARG002 - the protocol's
        """See `StoredAttention.attend_stored`."""
        return self._pool[1, 0].repeat_interleave(query.shape[1] // kv_heads, dim=1)


def load_dense_model(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int | None,
    files: WeightFiles | None = None,
    *,
    fused: bool = False,
    fp8: bool = False,
) -> DenseModel:
    """Loads a model directory without transformers.

    Args:
        directory: `config.json` and safetensors.
        dtype: type of the weights.
        device: where they go.
        max_model_len: longest sequence; None is the model's context.
        files: its weights, if they were looked at already.
        fused: see `DenseModel`.
        fp8: store the matrices of all layers with 8 bits; the embedding and the output layer stay what they are.

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
            # Layer by layer: a device never holds more than one in another type than it will have.
            layers=[layer.to(device).as_fp8() if fp8 else layer.to(device) for layer in opened.layers()],
            final_norm=opened.final_norm().to(device),
            lm_head=on_device if head is embedding else head.to(device),
        )
    return DenseModel(config, weights, context, stop_tokens(directory), fused=fused)


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
