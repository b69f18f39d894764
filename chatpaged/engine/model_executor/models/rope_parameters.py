"""What a configuration says about rotary embeddings, in any of the forms in which it has been written over the years."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chatpaged.engine.model_executor.models.config_reader import ConfigReader, UnclearError

_COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_KEYS: Mapping[str, frozenset[str]] = {
    "default": _COMMON,
    "linear": _COMMON | {"factor"},
    "llama3": _COMMON | {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": _COMMON
    | {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "original_max_position_embeddings"},
    "longrope": _COMMON | {"factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"},
}
_TRAINED = "original_max_position_embeddings"
_WITH_TRAINED_CONTEXT = frozenset({"llama3", "yarn", "longrope"})
_PHI3_NAMES = ("su", "yarn")  # what its older configurations call longrope


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """What one table of rotary embeddings is computed from. Fields that a kind does not use are None.

    Attributes:
        kind: "default", "linear", "llama3", "yarn" or "longrope", as transformers names them.
        theta: base of the wave lengths.
        factor: how far positions are stretched.
        attention_factor: factor of cosine and sine; None is worked out from the others.
        trained_context: tokens of the context before it was stretched.
        low_freq_factor: llama3: waves longer than `trained_context / low_freq_factor` are stretched whole.
        high_freq_factor: llama3: waves shorter than `trained_context / high_freq_factor` are left.
        beta_fast: yarn: waves that turn more often than this in the trained context are left.
        beta_slow: yarn: waves that turn less often are stretched whole.
        mscale: yarn: weight of the factor in `attention_factor`.
        mscale_all_dim: yarn: the same, of its divisor.
        truncate: yarn: round the border between the two to whole dimensions.
        short_factors: longrope: `rotary_dim / 2` factors for contexts up to the trained one.
        long_factors: longrope: the same for longer contexts.
    """

    kind: str
    theta: float
    factor: float | None = None
    attention_factor: float | None = None
    trained_context: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


def flat_rope(config: ConfigReader) -> tuple[RopeParameters, float]:
    """The one table of a model whose layers share it, and the share of each head's dimensions that is turned.

    Raises:
        UnclearError: something about it is not understood.
    """
    given = _either(config)
    partial = config.value("partial_rotary_factor")
    rope = {"rope_theta": config.value("rope_theta"), "partial_rotary_factor": 1.0 if partial is None else partial, **given}
    return _parse(rope, config), ConfigReader(rope, within="rope_parameters").number("partial_rotary_factor")


def phi3_rope(config: ConfigReader) -> tuple[RopeParameters, float]:
    """The same for Phi 3, which calls longrope by other names too, and keeps the trained context outside.

    Raises:
        UnclearError: something about it is not understood.
    """
    given = dict(_either(config))
    kind = given.get("rope_type", given.get("type", "default"))
    given.pop("type", None)
    given["rope_type"] = "longrope" if kind in _PHI3_NAMES else kind
    if given["rope_type"] not in ("default", "longrope"):
        raise UnclearError(f"rope_type is {kind!r}")
    if given["rope_type"] == "longrope":  # its class has a default for the trained context, which wins over what lies beside the factors
        given[_TRAINED] = config.count(_TRAINED)
    values = {name: config.value(name) for name in ("rope_theta", "max_position_embeddings")}
    partial = config.value("partial_rotary_factor")
    return flat_rope(ConfigReader(values | {"rope_parameters": given, "partial_rotary_factor": partial}))


def nested_rope(config: ConfigReader, layer_types: frozenset[str]) -> dict[str, RopeParameters]:
    """The tables of Gemma 3, one for each type of layer.

    Raises:
        UnclearError: something about them is not understood.
    """
    given = config.value("rope_parameters")
    scaling = config.value("rope_scaling")
    if given is not None and (not isinstance(given, dict) or not given.keys() <= {"full_attention", "sliding_attention"}):
        raise config.unclear("rope_parameters")
    if scaling is not None and (given is not None or not isinstance(scaling, dict)):
        raise config.unclear("rope_scaling")
    thetas = {"full_attention": config.value("rope_theta"), "sliding_attention": config.value("rope_local_base_freq")}
    tables = {}
    for layer_type in sorted(layer_types):
        inner = (given or {}).get(layer_type) or {}
        if not isinstance(inner, dict):
            raise config.unclear("rope_parameters")
        rope = {"rope_theta": thetas[layer_type]} | (inner if given is not None else {"rope_type": "default"})
        if layer_type == "full_attention":
            rope |= scaling or {}
        # transformers ignores both there.
        ConfigReader(rope, within=f"rope_parameters.{layer_type}").require_absent(("partial_rotary_factor",))
        if "truncate" in rope:
            raise UnclearError(f"rope_parameters.{layer_type}.truncate is {rope['truncate']!r}")
        tables[layer_type] = _parse(rope, config)
    return tables


def _either(config: ConfigReader) -> dict[str, Any]:
    """The parameters by their present or their former name."""
    new, old = config.value("rope_parameters"), config.value("rope_scaling")
    if new and old:
        raise UnclearError("rope_parameters and rope_scaling are both there")
    given = new or old or {}
    if not isinstance(given, dict):
        raise config.unclear("rope_parameters" if new else "rope_scaling")
    return given


def _parse(rope: Mapping[str, Any], config: ConfigReader) -> RopeParameters:
    kind = rope.get("rope_type", rope.get("type", "default"))
    allowed = _KEYS.get(kind) if isinstance(kind, str) else None
    if allowed is None or rope.get("type", kind) != kind:
        raise UnclearError(f"rope_type is {kind!r}")
    unknown = sorted(rope.keys() - allowed)
    if unknown:
        raise UnclearError(f"{kind} rope has {', '.join(unknown)}")
    reader = ConfigReader(rope, within="rope_parameters")
    theta = reader.number("rope_theta")
    if kind == "default":
        return RopeParameters(kind=kind, theta=theta)
    trained = _trained_context(kind, reader, config)
    if kind == "linear":
        return RopeParameters(kind=kind, theta=theta, factor=reader.number("factor"))
    if kind == "llama3":
        low, high = reader.number("low_freq_factor"), reader.number("high_freq_factor")
        if low >= high:
            raise reader.unclear("high_freq_factor")
        return RopeParameters(
            kind=kind, theta=theta, factor=reader.number("factor"), trained_context=trained, low_freq_factor=low, high_freq_factor=high
        )
    if kind == "yarn":
        return RopeParameters(
            kind=kind,
            theta=theta,
            factor=reader.number("factor"),
            attention_factor=reader.optional_number("attention_factor"),
            trained_context=trained,
            beta_fast=reader.optional_number("beta_fast"),
            beta_slow=reader.optional_number("beta_slow"),
            mscale=reader.optional_number("mscale"),
            mscale_all_dim=reader.optional_number("mscale_all_dim"),
            truncate=reader.flag("truncate") if "truncate" in rope else True,
        )
    factor = reader.optional_number("factor")
    return RopeParameters(
        kind=kind,
        theta=theta,
        factor=factor if factor is not None or trained is None else config.count("max_position_embeddings") / trained,
        attention_factor=reader.optional_number("attention_factor"),
        trained_context=trained,
        short_factors=reader.numbers("short_factor"),
        long_factors=reader.numbers("long_factor"),
    )


def _trained_context(kind: str, reader: ConfigReader, config: ConfigReader) -> int | None:
    if kind not in _WITH_TRAINED_CONTEXT:
        return None
    outside = config.value(_TRAINED)  # whether transformers lets it win depends on when it is asked
    trained = reader.count(_TRAINED) if _TRAINED in reader.names() else config.count("max_position_embeddings")
    if outside is not None and outside != trained:
        raise config.unclear(_TRAINED)
    return trained
