"""The keys of the app as a cheat sheet, with those that the user has set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chatpaged.key_names import keys_of
from chatpaged.setting_groups import all_settings
from chatpaged.text_matches import has_words

_GROUPS = (
    ("Writing", ("send", "newline", "open_editor", "stop")),
    ("Chats", ("new_chat", "next_chat", "previous_chat", "find", "toggle_sidebar", "split", "next_pane")),
    ("Conversation", ("messages", "tree", "choose_model")),
    ("Engine", ("toggle_engine", "engine_screen", "log")),
    ("Everywhere", ("palette", "help", "quit")),
)
# These belong to what has the focus, and are no settings.
_FIXED = (
    (
        "On a message",
        (
            (("up", "down"), "Go to another message."),
            (("y",), "Copy it."),
            (("c",), "Copy a block of code."),
            (("e",), "Edit it and send it again; the old one stays."),
            (("r",), "Answer again, beside this answer."),
            (("o",), "Go on with an answer that was cut off."),
            (("b",), "Branch from here."),
            (("a",), "Several answers side by side."),
            (("left", "right"), "Look at another version."),
            (("t",), "Fold or unfold the thinking."),
            (("escape",), "Back to the prompt."),
        ),
    ),
    (
        "In the list of chats",
        (
            (("enter",), "Open it."),
            (("s",), "Open it beside the one in view."),
            (("r",), "Rename it."),
            (("t",), "Keep it on top of the list, or no longer."),
            (("delete",), "Delete it."),
            (("u",), "Bring back what was deleted."),
        ),
    ),
)
_NAMES = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "Esc",
    "delete": "Del",
    "backspace": "Backspace",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "enter": "Enter",
    "space": "Space",
}


@dataclass(frozen=True, slots=True)
class HelpLine:
    """One line: what to press or type, and what it does."""

    keys: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class HelpGroup:
    """Lines that belong together."""

    title: str
    lines: tuple[HelpLine, ...]


def shown_key(key: str) -> str:
    """A key as people call it: `Ctrl+N`, `Esc`, `↑`."""
    *modifiers, last = key.split("+")
    named = _NAMES.get(last, last.upper() if len(last) == 1 and modifiers else last.title() if len(last) > 1 else last)
    return "+".join([*(modifier.title() for modifier in modifiers), named])


def shown_keys(keys: str) -> tuple[str, ...]:
    """Several keys with commas between, as settings have them."""
    return tuple(map(shown_key, keys_of(keys)))


def help_groups(values: Mapping[str, str], commands: Sequence[tuple[str, str]]) -> tuple[HelpGroup, ...]:
    """The cheat sheet.

    Args:
        values: keys by the names of their settings; those that are missing have their defaults.
        commands: how commands are typed, and what each does.
    """
    settings = all_settings()
    known = {key.removeprefix("keys."): entry for key, entry in settings.items() if key.startswith("keys.")}
    grouped = [name for _, names in _GROUPS for name in names]
    groups = [*_GROUPS, ("More", tuple(name for name in known if name not in grouped))]
    own = [
        HelpGroup(title, tuple(HelpLine(shown_keys(values.get(name, str(known[name].default))), known[name].text) for name in names))
        for title, names in groups
        if names
    ]
    fixed = [HelpGroup(title, tuple(HelpLine(tuple(map(shown_key, keys)), text) for keys, text in lines)) for title, lines in _FIXED]
    typed = [HelpGroup("Typed into the prompt", tuple(HelpLine((usage,), text) for usage, text in commands))] if commands else []
    return (*own, *fixed, *typed)


def fitting_groups(groups: Iterable[HelpGroup], text: str) -> tuple[HelpGroup, ...]:
    """Only lines in which all words of a text occur; a title that has them keeps all its lines."""
    found: list[HelpGroup] = []
    for group in groups:
        lines = tuple(line for line in group.lines if has_words(f"{group.title} {' '.join(line.keys)} {line.text}", text))
        if lines:
            found.append(HelpGroup(group.title, lines))
    return tuple(found)
