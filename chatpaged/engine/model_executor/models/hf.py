"""Any transformers model whose attention can be exchanged, run without a cache of its own on a packed batch.

The model's layers call our attention through `transformers.AttentionInterface`; window, scale, softcap and sinks arrive as
arguments. Everything that would break silently is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.forward_context import current_attention, forward_context
from chatpaged.engine.model_executor.models.few_rows import use_few_rows_linear
from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import InvalidRequestError, ModelError

ATTENTION_NAME = "chatpaged"
SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

_Rotation = torch.Tensor | tuple[torch.Tensor, ...]


def chatpaged_attention(  # noqa: PLR0913, PLR0917 - transformers' signature
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' layers call. Query `[1, heads, T, dim]`; returns `[1, T, heads, value_dim]`."""
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} brings an attention mask of its own, which is not supported")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelError(f"{type(module).__name__} does not say which layer it is, which is needed to find its keys and values")
    if getattr(module, "is_causal", True) is False:  # encoders that transformers also lists as language models
        raise ModelError(f"{type(module).__name__} attends to later tokens as well, which is not supported")
    options = AttentionOptions(scale=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    query, key, value = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    return current_attention().attend(layer, query, key, value, options).unsqueeze(0), None


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What the layers of a model store: the number of layers, and the most heads and dimensions of any of them."""

    num_layers: int
    kv_heads: int
    head_dim: int


class _GeometryProbe:
    """Stands in for attention and notes what each layer stores. Satisfies `PagedAttention`."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int]] = {}
        self.windows: dict[int, int | None] = {}

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """Notes the shapes; the result is of the right shape, and zero."""
        if layer in self.shapes:
            raise ModelError("two attention layers of this model share one number, which is not supported")
        self.windows[layer] = options.window
        self.shapes[layer] = (key.shape[1], max(key.shape[2], value.shape[2]))
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


class HFModel:
    """A transformers causal language model behind one function.

    Attributes:
        vocab_size: columns of the logits.
        max_model_len: longest sequence.
        stop_token_ids: end tokens that the configuration and the generation configuration name.
    """

    def __init__(self, model: Any, max_model_len: int) -> None:
        """Wraps a model that `load_hf_model` has checked."""
        self._model = model
        self.max_model_len = max_model_len
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.stop_token_ids = frozenset(
            token_id
            for config in (model.config.get_text_config(), model.generation_config)
            for token_id in _as_ids(getattr(config, "eos_token_id", None))
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor:
        """One forward pass over a packed batch. Attention is the one of the current forward context.

        Args:
            input_ids: `[T]`.
            positions: `[T]`.
            logits_rows: `[R]`, tokens whose logits are wanted.

        Returns:
            Logits `[R, vocab_size]`.
        """
        output = self._model(
            input_ids=input_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logits_rows,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def geometry(self) -> KVGeometry:
        """Learns from one token what each layer stores, whatever the model is."""
        probe = _GeometryProbe()
        token = torch.zeros(1, dtype=torch.int64, device=self._model.device)
        with forward_context(probe):
            self.forward(token, token, token)
        layers = self._model.config.get_text_config().num_hidden_layers
        if sorted(probe.shapes) != list(range(layers)):
            raise ModelError(f"attention was reached in {len(probe.shapes)} of {layers} layers, which is not supported")
        self._check_windows(probe.windows)
        heads, dims = zip(*probe.shapes.values(), strict=True)
        return KVGeometry(layers, max(heads), max(dims))

    def _check_windows(self, windows: dict[int, int | None]) -> None:
        """Refuses models that put their window into the mask only, which is never built here."""
        text = self._model.config.get_text_config()
        window = getattr(text, "sliding_window", None)
        if not isinstance(window, int) or window >= self.max_model_len:
            return
        kinds = getattr(text, "layer_types", None) or []
        sliding = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
        if any(windows[layer] is None for layer in sliding) or not (kinds or any(windows.values())):
            raise ModelError(
                f"{type(self._model).__name__} does not pass its sliding window of {window} tokens on; --max-model-len {window} avoids it"
            )


def load_hf_model(directory: Path, *, dtype: torch.dtype, device: torch.device, max_model_len: int | None) -> HFModel:
    """Loads a model directory through transformers.

    Args:
        directory: `config.json` and safetensors.
        dtype: type of the weights.
        device: where they go.
        max_model_len: longest sequence; None is the model's context.

    Raises:
        ModelError: the architecture or one of its layers is not supported, or the files do not fit together.
    """
    silence_transformers()
    transformers.AttentionInterface.register(ATTENTION_NAME, chatpaged_attention)
    try:
        # A copy: transformers writes the attention's name into the configuration it is given.
        config = copy.deepcopy(transformers.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False))
    except Exception as error:  # whatever transformers makes of a configuration that somebody else wrote
        raise ModelError(f"cannot use {directory / 'config.json'}: {_first_line(error)}") from error
    check_supported(config)
    context = _context(config, max_model_len)
    read_json(directory / "generation_config.json")  # transformers ignores one that is damaged, and loses its end tokens
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            attn_implementation=ATTENTION_NAME,
            # torch's grouped matrix product, which transformers takes otherwise, has no float64.
            experts_implementation="eager" if dtype == torch.float64 else None,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # likewise: a package that it lacks, a type of tensor it does not know, sizes that do not fit
        raise ModelError(f"cannot load {directory}: {_first_line(error)}") from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers fills them with random numbers and goes on
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{directory} is incomplete: no weights for {missing[0]}{more}; download the model again")
    model.eval().requires_grad_(requires_grad=False).to(device)
    freeze_rope(model, context)
    use_few_rows_linear(model)
    return HFModel(model, context)


def silence_transformers() -> None:
    """Keeps progress bars and advice off the terminal; errors still come as exceptions."""
    logging: Any = transformers.utils.logging  # its functions have no types
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def check_supported(config: Any) -> None:
    """Refuses what would run and be wrong.

    Raises:
        ModelError: names what is not supported.
    """
    name = next(iter(config.architectures or ()), config.model_type)
    if config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder; only decoder-only models are supported")
    text = config.get_text_config()
    model_class = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001 - no public way
    if model_class is None:
        raise ModelError(f"{name} is no causal language model that transformers knows")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise ModelError(f"{name} does not let its attention be exchanged (no support for attention backends in transformers)")
    if text.num_hidden_layers < 1:
        raise ModelError(f"{name} has no layers (num_hidden_layers is {text.num_hidden_layers})")
    unsupported = sorted(set(getattr(text, "layer_types", None) or ()) - SUPPORTED_LAYER_TYPES)
    if unsupported:
        raise ModelError(f"{name} has layers of type {', '.join(unsupported)}; supported are {', '.join(sorted(SUPPORTED_LAYER_TYPES))}")
    refusals = {
        "attention_chunk_size": "chunked attention",
        "num_kv_shared_layers": "layers that share keys and values",
        "use_bidirectional_attention": "bidirectional attention",
    }
    for attribute, what in refusals.items():
        if getattr(text, attribute, None):
            raise ModelError(f"{name} uses {what} ({attribute}), which is not supported")


def _context(config: Any, max_model_len: int | None) -> int:
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        if max_model_len is None:
            raise ModelError("the model's configuration does not name its context (max_position_embeddings); use --max-model-len")
        return max_model_len
    if max_model_len is not None and max_model_len > context:
        raise InvalidRequestError(f"max_model_len {max_model_len} is more than the model's context of {context}")
    return max_model_len if max_model_len is not None else context


def freeze_rope(model: nn.Module, max_model_len: int) -> None:
    """Replaces each rotary embedding by a table.

    Some kinds (dynamic, longrope) choose their frequencies by the longest position in the batch, so that one long request would
    change the keys of all others. The choice is made once, for `max_model_len`.
    """
    for module in model.modules():
        if hasattr(module, "rope_type") or hasattr(module, "inv_freq"):
            # nn.Module forbids neither this nor typing it: forward is an ordinary attribute to it.
            module.forward = _RopeTable(module.forward, max_model_len)


class _RopeTable:
    """`forward(x, position_ids, ...)` of a rotary embedding, looked up. One table for each value of further arguments."""

    def __init__(self, forward: Callable[..., _Rotation], max_model_len: int) -> None:
        self._forward = forward
        self._max_model_len = max_model_len
        self._tables: dict[tuple[Any, ...], _Rotation] = {}

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> _Rotation:
        """Cosine and sine of the positions: each `[*position_ids.shape, dim]`."""
        key = (x.dtype, x.device, *args, *sorted(kwargs.items()))
        tables = self._tables.get(key)
        if tables is None:
            positions = torch.arange(self._max_model_len, device=x.device).unsqueeze(0)
            computed = self._forward(x, positions, *args, **kwargs)
            # Cosine and sine as a pair, or as one tensor of complex numbers.
            tables = computed[0] if isinstance(computed, torch.Tensor) else tuple(table[0] for table in computed)
            self._tables[key] = tables
        return tables[position_ids] if isinstance(tables, torch.Tensor) else tuple(table[position_ids] for table in tables)


def _as_ids(value: int | list[int] | None) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
