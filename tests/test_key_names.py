"""Keys as people write them."""

from __future__ import annotations

import pytest

from chatpaged.key_names import key_label, key_labels, keys_of


@pytest.mark.parametrize(
    ("key", "label"), [("enter", "Enter"), ("ctrl+j", "Ctrl+J"), ("ctrl+pagedown", "Ctrl+PageDown"), ("f12", "F12"), ("escape", "Esc")]
)
def test_labels(key: str, label: str) -> None:
    assert key_label(key) == label


def test_settings_have_commas() -> None:
    assert keys_of(" a, ctrl+b,,") == ("a", "ctrl+b")
    assert keys_of("") == ()
    assert key_labels("shift+enter,ctrl+j") == "Shift+Enter, Ctrl+J"
