"""Keys as people write them."""

from __future__ import annotations

import pytest

from chatpaged.key_names import key_clashes, key_label, key_labels, keys_of
from chatpaged.setting_groups import KeySettings


@pytest.mark.parametrize(
    ("key", "label"), [("enter", "Enter"), ("ctrl+j", "Ctrl+J"), ("ctrl+pagedown", "Ctrl+PageDown"), ("f12", "F12"), ("escape", "Esc")]
)
def test_labels(key: str, label: str) -> None:
    assert key_label(key) == label


def test_settings_have_commas() -> None:
    assert keys_of(" a, ctrl+b,,") == ("a", "ctrl+b")
    assert keys_of("") == ()
    assert key_labels("shift+enter,ctrl+j") == "Shift+Enter, Ctrl+J"


def test_the_keys_there_are_do_not_clash() -> None:
    assert key_clashes(KeySettings()) == []


def test_two_actions_on_one_key_are_told() -> None:
    assert key_clashes(KeySettings(find="f5, ctrl+n")) == ["ctrl+n is both new_chat and find"]
    assert key_clashes(KeySettings(newline="ctrl+m,ctrl+m")) == ["enter is both send and newline"]
    three = key_clashes(KeySettings(split="f8", log="f8", quit="f8"))
    assert three == ["f8 is both split and log", "f8 is both split and quit", "f8 is both log and quit"]
