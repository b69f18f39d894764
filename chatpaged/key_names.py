"""Keys as settings name them, and as people write them."""

from __future__ import annotations

_WORDS = {"pageup": "PageUp", "pagedown": "PageDown", "escape": "Esc", "delete": "Del", "insert": "Ins"}


def keys_of(setting: str) -> tuple[str, ...]:
    """The keys in a setting, which has commas between them."""
    return tuple(key.strip() for key in setting.split(",") if key.strip())


def key_label(key: str) -> str:
    """A key as people write it: Ctrl+PageDown."""
    return "+".join(_WORDS.get(part, part.capitalize()) for part in key.split("+"))


def key_labels(setting: str) -> str:
    """All keys of a setting as people write them."""
    return ", ".join(key_label(key) for key in keys_of(setting))
