"""What a model's makers recommend for sampling: its `generation_config.json`, in the terms of `SamplingParams`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, ModelError

DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 0.95
_DRAWING = ("temperature", "top_k", "top_p", "min_p")
_GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
_OTHERS = {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}
# What would change answers but is not done here, with the value at which it changes nothing.
_UNSUPPORTED: dict[str, object] = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "min_new_tokens": 0,
    "penalty_alpha": None,
    "guidance_scale": 1.0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling parameters for requests that do not say otherwise.

    Attributes:
        values: by their names in `SamplingParams`.
        ignored: settings of the model that would change its answers and are not supported here.
    """

    values: dict[str, Any]
    ignored: tuple[str, ...]


def generation_defaults(generation_config: dict[str, Any]) -> GenerationDefaults:
    """Reads a model's recommendation; where it has none for temperature, top_k and top_p, they are 0.7, off and 0.95.

    A configuration that says not to sample stands for temperature 0.

    Raises:
        ModelError: a recommended value is out of range.
    """
    given = {name: value for name, value in generation_config.items() if value is not None}
    drawing = {name: given[name] for name in _DRAWING if name in given}
    if generation_config.get("do_sample") is False:
        drawing = _GREEDY
    elif drawing:
        drawing = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **drawing}
    else:
        drawing = {"temperature": DEFAULT_TEMPERATURE, "top_k": 0, "top_p": DEFAULT_TOP_P}
    values: dict[str, Any] = drawing | {ours: given[theirs] for theirs, ours in _OTHERS.items() if theirs in given}
    stops = generation_config.get("stop_strings")
    if stops:
        values["stop"] = tuple(str(stop) for stop in (stops if isinstance(stops, list) else [stops]))
    try:
        SamplingParams(**values)
    except InvalidRequestError as error:
        raise ModelError(f"the model's generation_config.json cannot be used: {error}") from error
    ignored = (name for name, off in _UNSUPPORTED.items() if (value := generation_config.get(name)) and value != off)
    return GenerationDefaults(values, tuple(ignored))
