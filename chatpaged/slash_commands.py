"""Commands that are typed into the prompt: what there is, and what a text means.

A text that begins with `/` is a command, or is refused with the reason; nothing that looks like a command is ever sent by accident.
`//` sends one slash. Everything else is text, also `q` and `exit`.
"""

from __future__ import annotations

import difflib
import enum
from dataclasses import dataclass

ESCAPED = "//"
_NEAR = 3


class Completes(enum.Enum):
    """What may be proposed for the argument of a command."""

    NOTHING = "nothing"
    PRESET = "preset"
    MODEL = "model"
    FILE = "file"
    THEME = "theme"
    COMMAND = "command"
    SETTING = "setting"


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command.

    Attributes:
        name: without the slash.
        usage: its arguments; in brackets those that may be left out.
        help: what it does, in one sentence.
        aliases: other names.
        completes: what is proposed for its argument.
        takes_text: the argument may have several lines and attach files.
    """

    name: str
    usage: str
    help: str
    aliases: tuple[str, ...] = ()
    completes: Completes = Completes.NOTHING
    takes_text: bool = False

    @property
    def needs_argument(self) -> bool:
        """Whether it means nothing without one."""
        return bool(self.usage) and not self.usage.startswith("[")

    @property
    def line(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.usage}".rstrip()


COMMANDS = (
    SlashCommand("new", "[PRESET]", "Begin a chat, with the settings of a preset.", completes=Completes.PRESET),
    SlashCommand("system", "[TEXT]", "Set the system prompt of this chat, or show it.", takes_text=True),
    SlashCommand("model", "[NAME]", "Change the model, or choose from a list.", completes=Completes.MODEL),
    SlashCommand("preset", "[NAME]", "Use a preset in this chat, or choose from a list.", completes=Completes.PRESET),
    SlashCommand("temp", "[VALUE]", "Set the temperature, or show it; 0 picks the most likely token.", ("temperature",)),
    SlashCommand("top-p", "[VALUE]", "Keep the most likely tokens that sum up to this.", ("top_p",)),
    SlashCommand("top-k", "[VALUE]", "Keep the k most likely tokens.", ("top_k",)),
    SlashCommand("max-tokens", "[VALUE]", "Set the longest answer in tokens.", ("max_tokens",)),
    SlashCommand("seed", "[VALUE]", "Make answers repeatable; without a value they differ again."),
    SlashCommand("set", "NAME VALUE", "Set any sampling setting of this chat.", completes=Completes.SETTING),
    SlashCommand("alternatives", "[N] [TEXT]", "Get several answers side by side.", ("alt",), takes_text=True),
    SlashCommand("regenerate", "", "Answer the last prompt again, as a sibling.", ("retry",)),
    SlashCommand("continue", "", "Go on with the last answer.", ("go",)),
    SlashCommand("edit", "", "Change the last prompt; the old one stays as a branch."),
    SlashCommand("branch", "", "Say something else in place of your last message; what is there stays as a branch.", ("fork",)),
    SlashCommand("tree", "", "Show the branches."),
    SlashCommand("find", "[TEXT]", "Find a chat or a message.", ("search",)),
    SlashCommand("rename", "NAME", "Give this chat a name.", ("title",)),
    SlashCommand("top", "", "Keep this chat at the top of the list, or no longer."),
    SlashCommand("pin", "", "Keep in memory what is computed of this chat, whatever else needs room; says what that takes."),
    SlashCommand("unpin", "", "Let go of what /pin keeps in memory of this chat."),
    SlashCommand("delete", "", "Delete this chat; until you quit it can be brought back.", ("rm",)),
    SlashCommand("export", "[FILE]", "Write this chat to a Markdown or JSON file.", ("save",), Completes.FILE),
    SlashCommand("copy", "", "Copy the last answer."),
    SlashCommand("split", "", "Show another chat beside this one."),
    SlashCommand("stats", "", "Show what the engine does."),
    SlashCommand("think", "", "Fold or unfold what the model thinks.", ("thinking",)),
    SlashCommand("theme", "[NAME]", "Change the colours.", completes=Completes.THEME),
    SlashCommand("log", "", "Show the log."),
    SlashCommand("keys", "", "Show the keys.", ("shortcuts",)),
    SlashCommand("help", "[COMMAND]", "Show the commands, or what one does.", ("?",), Completes.COMMAND),
    SlashCommand("quit", "", "Quit; everything is saved.", ("exit", "q")),
)


@dataclass(frozen=True, slots=True)
class PlainText:
    """What is sent to the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command with its argument; empty without one."""

    command: SlashCommand
    argument: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A text that begins like a command and is none.

    Attributes:
        message: why, in one line, and what to do.
    """

    message: str


def find_command(name: str) -> SlashCommand | None:
    """The command with a name or alias, without the slash; capitals do not matter."""
    name = name.lower()
    return next((command for command in COMMANDS if name == command.name or name in command.aliases), None)


def near_commands(name: str) -> tuple[str, ...]:
    """Names of commands that are like this one."""
    name = name.lower()
    if not name or "/" in name:
        return ()
    owners = {known: command.name for command in COMMANDS for known in (command.name, *command.aliases) if len(known) > 1}
    found = [known for known in owners if known.startswith(name)]
    found += difflib.get_close_matches(name, owners, n=_NEAR, cutoff=0.6)
    return tuple(dict.fromkeys(owners[known] for known in found))[:_NEAR]


def parse_line(text: str) -> PlainText | Invocation | Refused:
    """What a text means when it is sent."""
    if not text.startswith("/"):
        return PlainText(text)
    if text.startswith(ESCAPED):
        return PlainText(text[1:])
    first_line, newline, more_lines = text.partition("\n")
    name, _, argument = first_line[1:].partition(" ")
    command = find_command(name)
    if command is None:
        return _unknown(name)
    argument = f"{argument}{newline}{more_lines}".strip()
    problem = _problem(command, argument)
    return Refused(f"/{name} {problem}") if problem else Invocation(command, argument)


def _problem(command: SlashCommand, argument: str) -> str:
    """What is wrong with an argument; empty if nothing is."""
    if "\n" in argument and not command.takes_text:
        return "takes one line only; // at the beginning sends it as text"
    if argument and not command.usage:
        return "takes no argument; // at the beginning sends it as text"
    if not argument and command.needs_argument:
        return f"needs more: {command.line}"
    return ""


def _unknown(name: str) -> Refused:
    near = near_commands(name)
    hint = f"; did you mean {' or '.join(f'/{known}' for known in near)}?" if near else ";"
    return Refused(f"unknown command /{name}{hint} // sends it as text")


def markdown_table() -> str:
    """The commands as a table for the documentation."""
    rows = ["| command | what it does | also |", "|---|---|---|"]
    for command in COMMANDS:
        aliases = ", ".join(f"`/{alias}`" for alias in command.aliases)
        rows.append(f"| `{command.line}` | {command.help} | {aliases} |")
    return "\n".join(rows) + "\n"
