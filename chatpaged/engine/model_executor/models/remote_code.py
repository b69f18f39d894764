"""Models whose Python code comes with them. It is run only when the user says so, and only when transformers has none of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import model_name
from chatpaged.errors import ModelError


def needs_remote_code(directory: Path, *, trusted: bool) -> bool:
    """Whether a model has to be run by code that comes with it.

    Raises:
        ModelError: it has, and the user has not said that it may.
    """
    config = read_json(directory / "config.json")
    model_type = config.get("model_type")
    if not isinstance(config.get("auto_map"), dict) or model_type in transformers.CONFIG_MAPPING:
        return False
    if not trusted:
        raise ModelError(
            f"{model_name(directory)} ({model_type or 'no model_type'}) is unknown to transformers and brings Python code of its own; "
            "--trust-remote-code runs it, with all the rights that you have: read the *.py files first"
        )
    return True


def remote_model_class(config: Any, directory: Path) -> Any:
    """The class of the model that its own code defines.

    Raises:
        ModelError: it defines none, or its code cannot be imported.
    """
    reference = config.auto_map.get("AutoModelForCausalLM")
    if reference is None:
        raise ModelError(f"the Python code in {directory} defines no causal language model (AutoModelForCausalLM in auto_map)")
    try:
        return get_class_from_dynamic_module(reference, directory, local_files_only=True)
    except Exception as error:  # somebody else's code
        raise ModelError(f"cannot import {reference} of {directory}: {' '.join(str(error).split()) or type(error).__name__}") from error
