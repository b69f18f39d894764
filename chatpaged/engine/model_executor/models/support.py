"""What a configuration alone says about whether a model can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from chatpaged.errors import ModelError

SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
WHAT_RUNS = "decoder-only models such as Llama, Qwen, Mistral, Gemma, Phi and gpt-oss run, see docs/models.md"
_REFUSED_OPTIONS = (
    ("attention_chunk_size", "chunked attention"),
    ("num_kv_shared_layers", "layers that share keys and values"),
)
_CAUSAL_FOR_TEXT = (None, False, "vision")  # the last: tokens of one image see each other


def refusal(name: str, reason: str) -> ModelError:
    """The error that says which model is not supported, why, and what is."""
    return ModelError(f"{name} {reason}; {WHAT_RUNS}")


def config_error(directory: Path, error: Exception) -> ModelError:
    """The error for a configuration that transformers, or a model's class, cannot use."""
    return ModelError(f"cannot use config.json of {directory} ({why(error)})")


def why(error: Exception) -> str:
    """What somebody else's exception says, in one line, with its type: many say nothing without it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = ""
    for line in lines:  # the first, and what follows a line that only announces something
        text = f"{text} {line}".strip()
        if not text.endswith(":"):
            break
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def model_name(config: Any) -> str:
    """What a configuration calls its architecture."""
    return str(next(iter(config.architectures or ()), config.model_type))


def check_supported(config: Any, model_class: Any = None) -> None:
    """Refuses what would run and be wrong, or cannot run.

    Args:
        config: the model's.
        model_class: what code that comes with the model defines; None is transformers' own class.

    Raises:
        ModelError: names what is not supported.
    """
    name = model_name(config)
    if config.is_encoder_decoder:
        raise refusal(name, "is an encoder-decoder")
    if model_class is None:
        model_class = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001 - no public way
    if model_class is None:
        raise refusal(name, _unknown(config))
    if not getattr(model_class, "_supports_attention_backend", False):
        raise refusal(name, "does not let its attention be exchanged (no support for attention backends in transformers)")
    text = text_config(config)
    layers = getattr(text, "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 1:
        raise refusal(name, f"has no layers (num_hidden_layers is {layers})")
    unsupported = sorted({str(kind) for kind in getattr(text, "layer_types", None) or ()} - SUPPORTED_LAYER_TYPES)
    if unsupported:
        types = ", ".join(sorted(SUPPORTED_LAYER_TYPES))
        raise refusal(name, f"has layers of type {', '.join(unsupported)}; supported are {types}")
    if getattr(text, "use_bidirectional_attention", None) not in _CAUSAL_FOR_TEXT:
        raise refusal(name, "uses bidirectional attention (use_bidirectional_attention), which is not supported")
    for option, what in _REFUSED_OPTIONS:
        if getattr(text, option, None):
            raise refusal(name, f"uses {what} ({option}), which is not supported")


def text_config(config: Any) -> Any:
    """The part of a configuration that is about the language model.

    Raises:
        ModelError: there are several.
    """
    try:
        return config.get_text_config()
    except ValueError as error:
        raise refusal(model_name(config), "consists of several language models") from error


def _unknown(config: Any) -> str:
    if getattr(config, "text_config", None) is not None:
        return "reads more than text, and transformers has no causal language model for its text part alone"
    return "is no causal language model that transformers knows"
