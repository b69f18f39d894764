"""When each model was last used. Worth remembering, never worth failing for."""

from __future__ import annotations

import json
import time
from pathlib import Path

from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import ModelError
from chatpaged.paths import replace_file, state_dir

_MOST_KEPT = 200


def record_use(directory: Path) -> None:
    """Notes that a model is being used now. What prevents it is ignored: a full disk, a read-only home.

    Two processes that do so at once may lose one of the two times.
    """
    try:
        uses = load_uses() | {_key(directory): time.time()}
        latest = sorted(uses, key=lambda place: uses[place], reverse=True)[:_MOST_KEPT]
        replace_file(_file(), json.dumps({place: uses[place] for place in latest}))
    except OSError:
        pass


def load_uses() -> dict[str, float]:
    """Seconds since 1970 of the last use, by directory."""
    try:
        uses = read_json(_file())
    except ModelError:
        return {}  # damaged: it will be written anew
    return {place: float(when) for place, when in uses.items() if isinstance(when, int | float)}


def last_used(directory: Path, uses: dict[str, float]) -> float | None:
    """When the model in a directory was last used, if that is known."""
    return uses.get(_key(directory))


def _key(directory: Path) -> str:
    return str(directory.resolve())  # the same by whichever way it was named


def _file() -> Path:
    return state_dir() / "model-usage.json"
