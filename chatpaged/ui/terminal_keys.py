"""Keys that Textual does not tell apart by itself."""

from __future__ import annotations

import enum
from typing import Any, cast

from textual import _ansi_sequences
from textual.events import Key

_ALT_ENTER = "\x1b\r"
# xterm's "modifyOtherKeys" form, which tmux can send: the name is made of the character itself.
_ODD_NAMES = {"shift+\r": "shift+enter", "\r": "alt+enter", "ctrl+\r": "ctrl+enter"}


class _ExtraKeys(enum.Enum):
    ALT_ENTER = "alt+enter"


def tell_alt_enter_from_enter() -> None:
    """Makes Textual report Alt+Enter as such where the terminal sends escape and return for it, as most and tmux do.

    Textual 8 reports it as Enter, so that what should begin a new line would send. To be called before the application reads keys.
    """
    sequences = cast("dict[str, Any]", _ansi_sequences.ANSI_SEQUENCES_KEYS)
    sequences.setdefault(_ALT_ENTER, (_ExtraKeys.ALT_ENTER,))


def key_names(event: Key) -> set[str]:
    """All names of a pressed key that a setting may use."""
    return {_ODD_NAMES.get(event.key, event.key), *(alias for alias in event.aliases if alias not in _ODD_NAMES)}


def keys_of(setting: str) -> frozenset[str]:
    """The keys in a setting, which has commas between them."""
    return frozenset(key.strip() for key in setting.split(",") if key.strip())
