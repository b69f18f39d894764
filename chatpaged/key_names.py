"""Keys as settings name them, and as people write them."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations

from chatpaged.setting_groups import KeySettings

_WORDS = {"pageup": "PageUp", "pagedown": "PageDown", "escape": "Esc", "delete": "Del", "insert": "Ins"}
_SAME = {"ctrl+i": "tab", "ctrl+m": "enter"}  # terminals send the same for both


def keys_of(setting: str) -> tuple[str, ...]:
    """The keys in a setting, which has commas between them."""
    return tuple(key.strip() for key in setting.split(",") if key.strip())


def key_label(key: str) -> str:
    """A key as people write it: Ctrl+PageDown."""
    return "+".join(_WORDS.get(part, part.capitalize()) for part in key.split("+"))


def key_labels(setting: str) -> str:
    """All keys of a setting as people write them."""
    return ", ".join(key_label(key) for key in keys_of(setting))


def key_clashes(keys: KeySettings) -> list[str]:
    """What is wrong with keys that stand for two actions; each a sentence without its full stop."""
    actions: dict[str, list[str]] = {}
    for entry in fields(keys):
        for key in dict.fromkeys(_SAME.get(key, key) for key in keys_of(getattr(keys, entry.name))):
            actions.setdefault(key, []).append(entry.name)
    return [f"{key} is both {one} and {other}" for key, names in actions.items() for one, other in combinations(names, 2)]
