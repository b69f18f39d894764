"""What config.json says about a model that the dense decoder can run; or why another way of running it has to be found.

Nothing is guessed: whatever is not understood for certain is a reason to leave the model to transformers' own classes (`hf.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chatpaged.engine.model_executor.models.config_reader import ConfigReader, UnclearError
from chatpaged.engine.model_executor.models.dense_families import FAMILIES, Family
from chatpaged.engine.model_executor.models.rope_parameters import RopeParameters, flat_rope, nested_rope, phi3_rope
from chatpaged.errors import ModelError

NO_ROPE = -1
_ACTIVATIONS: Mapping[str, str] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LAYER_TYPES = ("full_attention", "sliding_attention")
# Each of them changes what is computed, if it is there and says yes.
_REFUSED = (
    "quantization_config",
    "compression_config",
    "is_encoder_decoder",
    "use_bidirectional_attention",
    "attention_chunk_size",
    "num_kv_shared_layers",
    "per_layer_config",
)


class NotDenseError(ModelError):
    """The dense decoder cannot run a model. The universal path perhaps can, or tells the user more about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """A dense decoder.

    Attributes:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the MLP.
        num_layers: decoder layers.
        num_heads: query heads; a multiple of `num_kv_heads`.
        num_kv_heads: key and value heads.
        head_dim: dimensions of a head, keys and values alike.
        context: longest sequence that the model was made for, in tokens.
        norm_eps: what norms add to the mean square.
        norm_offset: what is added to stored norm weights: 1.0 for Gemma, else 0.0.
        wide_products: products with norm weights, and rotations, are rounded to the model's type after they are complete, not
            operand by operand (OLMo 2; the norms of Gemma as well, see `norm_offset`).
        activation: "silu" or "gelu_tanh".
        qk_norm: "none"; "head", an RMS norm of each head with weights `[head_dim]` (Qwen 3, Gemma 3); "full", one of all heads
            together (OLMo 2).
        pre_norms: there are norms before attention and MLP.
        post_norms: what attention and MLP give is normed before it is added to the residual stream.
        tied: the output layer is the embedding, unless the files hold another.
        fused: the files hold q, k, v as one tensor, gate and up as another.
        qkv_bias: q, k and v have biases.
        o_bias: the output projection has one.
        mlp_bias: the three projections of the MLP have them.
        embedding_scale: factor of the embedding.
        embedding_scale_rounded: the factor is rounded to the model's type first (Gemma).
        residual_scale: factor of what attention and MLP add (Granite).
        logits_scale: factor of the logits.
        attention_scale: factor of the attention scores.
        attention_softcap: see `AttentionOptions.softcap`.
        final_softcap: logits become `softcap * tanh(logits / softcap)`.
        windows: of each layer, how many tokens a token attends to, itself included; None is all.
        ropes: of each layer, the index of its rotary table, or `NO_ROPE`.
        rotary_dim: dimensions of a head that are turned, the first ones; even.
        rope_parameters: what each table is computed from.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    norm_offset: float
    wide_products: bool
    activation: str
    qk_norm: str
    pre_norms: bool
    post_norms: bool
    tied: bool
    fused: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    embedding_scale: float
    embedding_scale_rounded: bool
    residual_scale: float
    logits_scale: float
    attention_scale: float
    attention_softcap: float | None
    final_softcap: float | None
    windows: tuple[int | None, ...]
    ropes: tuple[int, ...]
    rotary_dim: int
    rope_parameters: tuple[RopeParameters, ...]


def dense_config(config: dict[str, Any]) -> DenseConfig | str:
    """Understands a configuration.

    Args:
        config: the contents of config.json.

    Returns:
        What it says, or the reason why it is not understood.
    """
    name = _architecture(config)
    family = FAMILIES.get(name)
    if family is None:
        return f"{name or 'the architecture'} is none of the dense decoder's"
    if config.get("model_type") != family.model_type:
        return f"model_type is {config.get('model_type')!r}, not {family.model_type}"
    try:
        return _read(ConfigReader(config, family.defaults), family)
    except UnclearError as error:
        return str(error)


def default_end_token(config: dict[str, Any]) -> int | None:
    """The end token that transformers takes where config.json has no `eos_token_id`; None where it has one, or needs none."""
    family = FAMILIES.get(_architecture(config))
    return None if family is None or "eos_token_id" in config else family.defaults.get("eos_token_id")


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str) else ""


def _read(config: ConfigReader, family: Family) -> DenseConfig:
    config.require_absent(_REFUSED)
    if config.value("is_causal") not in (None, True):
        raise config.unclear("is_causal")
    num_layers, hidden_size = config.count("num_hidden_layers"), config.count("hidden_size")
    num_heads, num_kv_heads, head_dim = _heads(config, family, hidden_size)
    windows = _windows(config, family, num_layers)
    ropes, rope_parameters, rotary_dim = _ropes(config, family, windows, head_dim)
    return DenseConfig(
        vocab_size=config.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context=config.count("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps"),
        norm_offset=1.0 if family.gemma else 0.0,
        wide_products=family.wide_products,
        activation=_activation(config, "hidden_activation" if family.gemma else "hidden_act"),
        qk_norm=family.qk_norm,
        pre_norms=family.pre_norms,
        post_norms=family.post_norms,
        tied=config.flag("tie_word_embeddings"),
        fused=family.fused,
        qkv_bias=config.flag("attention_bias") if family.qkv_bias is None else family.qkv_bias,
        o_bias=config.flag("attention_bias") if family.o_bias is None else family.o_bias,
        mlp_bias=config.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias,
        embedding_scale_rounded=family.gemma,
        windows=windows,
        ropes=ropes,
        rotary_dim=rotary_dim,
        rope_parameters=rope_parameters,
        **_factors(config, family, hidden_size, head_dim),
    )


def _factors(config: ConfigReader, family: Family, hidden_size: int, head_dim: int) -> dict[str, Any]:
    factors: dict[str, Any] = dict.fromkeys(("embedding_scale", "residual_scale", "logits_scale"), 1.0)
    factors |= {"attention_scale": head_dim**-0.5, "attention_softcap": None, "final_softcap": None}
    if family.model_type == "granite":
        factors |= {
            "embedding_scale": config.number("embedding_multiplier"),
            "residual_scale": config.number("residual_multiplier"),
            "logits_scale": 1.0 / config.number("logits_scaling"),
            "attention_scale": config.number("attention_multiplier"),
        }
    if family.gemma:
        factors |= {
            "embedding_scale": hidden_size**0.5,
            "attention_scale": config.number("query_pre_attn_scalar") ** -0.5,
            "final_softcap": config.optional_number("final_logit_softcapping"),
        }
    if family.model_type == "gemma2":
        factors["attention_softcap"] = config.optional_number("attn_logit_softcapping")
    else:  # no other class hands it on, whatever it says
        config.require_absent(("attn_logit_softcapping",))
    return factors


def _activation(config: ConfigReader, name: str) -> str:
    activation = config.value(name)
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise config.unclear(name)
    return _ACTIVATIONS[activation]


def _heads(config: ConfigReader, family: Family, hidden_size: int) -> tuple[int, int, int]:
    """Query heads, key and value heads, dimensions of each."""
    num_heads = config.count("num_attention_heads")
    num_kv_heads = config.optional_count("num_key_value_heads") or num_heads
    if "head_dim" in config.names() and not family.null_head_dim:
        config.count("head_dim")
    head_dim = config.optional_count("head_dim") or hidden_size // num_heads
    if (hidden_size % num_heads and (family.whole_heads or head_dim == hidden_size // num_heads)) or num_heads % num_kv_heads:
        raise UnclearError(f"{hidden_size} dimensions, {num_heads} heads and {num_kv_heads} heads of keys do not go together")
    return num_heads, num_kv_heads, head_dim


def _windows(config: ConfigReader, family: Family, num_layers: int) -> tuple[int | None, ...]:
    if family.windows == "types":
        types = _layer_types(config, family, num_layers)
        sliding = "sliding_attention" in types
        if sliding and "use_sliding_window" in family.defaults and not config.flag("use_sliding_window"):
            raise UnclearError("layers have sliding_attention, but use_sliding_window is false")
        window = config.count("sliding_window") if sliding else None
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if config.value("layer_types") not in (None, ["full_attention"] * num_layers):
        raise config.unclear("layer_types")
    if family.windows == "none":
        config.require_absent(("sliding_window",))
        return (None,) * num_layers
    if config.value("layer_types") is not None:
        raise config.unclear("layer_types")
    return (config.optional_count("sliding_window"),) * num_layers


def _layer_types(config: ConfigReader, family: Family, num_layers: int) -> list[str]:
    given = config.value("layer_types")
    if given is not None:
        if not isinstance(given, list) or len(given) != num_layers or any(kind not in _LAYER_TYPES for kind in given):
            raise config.unclear("layer_types")
        return given
    if family.gemma:
        period = config.count("sliding_window_pattern") if family.model_type == "gemma3_text" else 2
        sliding = [bool((i + 1) % period) for i in range(num_layers)]
    elif not config.flag("use_sliding_window") or config.value("sliding_window") is None:
        sliding = [False] * num_layers
    elif family.model_type == "smollm3":
        sliding = [not turned for turned in _turned_layers(config, num_layers)]
    else:
        first = config.value("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int):
            raise config.unclear("max_window_layers")
        sliding = [i >= first for i in range(num_layers)]
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def _turned_layers(config: ConfigReader, num_layers: int) -> list[bool]:
    """Which layers of SmolLM 3 have rotary embeddings: those that `no_rope_layers` marks with a one."""
    given = config.value("no_rope_layers")
    if given is None:
        interval = config.count("no_rope_layer_interval")
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers or not all(mark in (0, 1) for mark in given):
        raise config.unclear("no_rope_layers")
    return [bool(mark) for mark in given[:num_layers]]


def _ropes(
    config: ConfigReader, family: Family, windows: tuple[int | None, ...], head_dim: int
) -> tuple[tuple[int, ...], tuple[RopeParameters, ...], int]:
    """Which table each layer uses, what the tables are computed from, and how many dimensions are turned."""
    ropes: tuple[int, ...] = (0,) * len(windows)
    partial = 1.0
    tables: tuple[RopeParameters, ...]
    if family.rope == "nested":
        types = ["full_attention" if window is None else "sliding_attention" for window in windows]
        nested = nested_rope(config, frozenset(types))
        order = sorted(nested)
        ropes, tables = tuple(order.index(kind) for kind in types), tuple(nested[kind] for kind in order)
    else:
        table, partial = phi3_rope(config) if family.rope == "phi3" else flat_rope(config)
        tables = (table,)
        if partial != 1.0 and family.rope != "phi3":
            raise UnclearError(f"partial_rotary_factor is {partial}")
    if family.model_type == "smollm3":
        ropes = tuple(0 if turned else NO_ROPE for turned in _turned_layers(config, len(windows)))
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise UnclearError(f"{rotary_dim} of {head_dim} dimensions of a head would be turned")
    for table in tables:
        if table.kind == "longrope" and {len(table.short_factors), len(table.long_factors)} != {rotary_dim // 2}:
            raise UnclearError(f"longrope has not {rotary_dim // 2} factors")
    return ropes, tables, rotary_dim
