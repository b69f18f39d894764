"""The tokens that end an answer, as a model's configurations name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import ModelError


def end_token_ids(directory: Path) -> frozenset[int]:
    """The end tokens that a model's configuration and its generation configuration name.

    Raises:
        ModelError: a file is damaged, or names something that is no token id.
    """
    config, generation = read_json(directory / "config.json"), read_json(directory / "generation_config.json")
    text = config.get("text_config")
    parts = [(config, "config.json"), (text if isinstance(text, dict) else {}, "config.json"), (generation, "generation_config.json")]
    return frozenset(token_id for part, name in parts for token_id in _as_ids(part.get("eos_token_id"), directory / name))


def _as_ids(value: object, path: Path) -> list[int]:
    if value is None:
        return []
    ids: list[Any] = value if isinstance(value, list) else [value]
    if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in ids):
        raise ModelError(f"eos_token_id in {path} is {json.dumps(value)}; it has to be a token id, or a list of token ids")
    return ids
