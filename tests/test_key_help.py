"""The cheat sheet."""

from __future__ import annotations

from chatpaged.key_help import HelpLine, fitting_groups, help_groups, shown_key, shown_keys
from chatpaged.setting_groups import all_settings


def test_keys_are_called_as_people_call_them() -> None:
    assert [shown_key(key) for key in ("ctrl+n", "escape", "alt+down", "f2", "y", "shift+enter", "ctrl+pageup", "delete")] == [
        "Ctrl+N",
        "Esc",
        "Alt+↓",
        "F2",
        "y",
        "Shift+Enter",
        "Ctrl+PgUp",
        "Del",
    ]
    assert shown_keys("ctrl+up, f7,") == ("Ctrl+↑", "F7")


def test_every_key_that_can_be_set_is_told_once_with_the_users_own() -> None:
    groups = help_groups({"new_chat": "f9"}, [("/quit", "Quit.")])
    told = [line.text for group in groups for line in group.lines]
    for key, entry in all_settings().items():
        if key.startswith("keys."):
            assert told.count(entry.text) == 1, key
    assert HelpLine(("F9",), "Begin a chat.") in next(group for group in groups if group.title == "Chats").lines
    assert groups[-1].lines == (HelpLine(("/quit",), "Quit."),)
    assert "More" not in {group.title for group in groups}, "a new key belongs into one of the groups"
    assert all(group.title != "Typed into the prompt" for group in help_groups({}, ()))


def test_only_fitting_lines_are_left() -> None:
    groups = help_groups({}, [("/temp [VALUE]", "Set the temperature.")])
    assert [[line.keys for line in group.lines] for group in fitting_groups(groups, "temperature set")] == [[("/temp [VALUE]",)]]
    assert [group.title for group in fitting_groups(groups, "engine panel")] == ["Engine"]
    assert fitting_groups(groups, "nothing does this") == ()
    assert fitting_groups(groups, "") == groups
