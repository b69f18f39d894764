"""Writes docs/cli.md from what the commands say of themselves: python -m tests.write_cli_docs

A test compares the page with what this would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from chatpaged import errors
from chatpaged.cli.main import cli
from chatpaged.setting_groups import Setting, all_settings
from chatpaged.settings import FLAG_ONLY, IGNORED_VARIABLES

PAGE = Path(__file__).parent.parent / "docs/cli.md"
WIDTH = 100
HEAD = """# Command line

Written by `make docs` from `--help`, the settings and the errors; do not edit.

"""
SETTINGS = """## Settings

An option that is not given takes its value from the first of these places that has one:

1. the environment variable of the setting; an empty one counts as none,
2. the project file: the nearest `chatpaged.toml` in the current directory or above it, up to the root of the repository (`.git`) or
   the home directory. Outside of both only the current directory counts,
3. the user file: `config.toml` in the directory that `chatpaged config path` names,
4. the default.

A setting is the default of the option with its name, of every command that has one: `sampling.top_p` of `--top-p`,
`output.color = "never"` of `--no-color`. `chatpaged config show --origin` shows what holds and why.

```toml
model = "./models/my-model"    # from this file's directory; other names are taken as they are

[sampling]
temperature = 0.3

[engine]
kv_memory = "2G"
```

An unknown key or variable and a value out of range are errors. `engine.kv_blocks` and `engine.kv_memory` exclude each other; the one
that ranks higher takes the place of both. Nothing but `chatpaged config set` and `unset` writes these files; an option holds for its run.
"""
COMPLETION = """## Completion

Commands, options, their choices, settings, the models on this machine and conversations are completed. Once:

```sh
echo 'eval "$(chatpaged completion bash)"' >> ~/.bashrc     # bash 4.4 or newer
echo 'eval "$(chatpaged completion zsh)"' >> ~/.zshrc       # after compinit
chatpaged completion fish > ~/.config/fish/completions/chatpaged.fish
```

"""
OTHER_CODES = {0: "ok", 130: "interrupted", 143: "terminated", 141: "nobody reads the output any more"}


def pages(command: click.Command, path: tuple[str, ...], parent: click.Context | None = None) -> Iterator[str]:
    """A section for each command, as its `--help` shows it."""
    context = click.Context(command, info_name=path[-1], parent=parent, terminal_width=WIDTH, help_option_names=["-h", "--help"])
    yield f"## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```\n\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from pages(inner, (*path, name), context)


def settings_table() -> str:
    lines = ["| setting | variable | values | default | |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(_row(entry) for entry in all_settings().values())]) + "\n"


def _row(entry: Setting) -> str:
    default = entry.unset if entry.default is None else f"`{str(entry.kind.plain(entry.default)).lower()}`"
    return f"| `{entry.key}` | `{entry.variable}` | {entry.kind.describe()} | {default} | {entry.text} |"


def variables() -> str:
    flags = ", ".join(f"`{name}` (`{flag}`)" for name, flag in FLAG_ONLY.items())
    ignored = " and ".join(f"`{name}...`" for name in IGNORED_VARIABLES)
    return f"""
What lets code that comes with a model run is no setting: {flags} is for the command line only.

### Other environment variables

| variable | |
|---|---|
| `XDG_CONFIG_HOME`, `XDG_DATA_HOME`, `XDG_STATE_HOME`, `XDG_CACHE_HOME` | where files lie; see `chatpaged config path` |
| `_CHATPAGED_COMPLETE` | set by the completion scripts |
| {ignored} | set by Kubernetes; ignored |

"""


def exit_codes() -> str:
    """From the drawing in `errors.py`, so that there is one place for what a code means."""
    drawn = [line.split(None, 3) for line in str(errors.__doc__).splitlines() if line.startswith(("├", "└", "ChatpagedError"))]
    codes: dict[int, list[str]] = {0: [OTHER_CODES[0]]}
    for parts in drawn:
        number, text = (parts[1], " ".join(parts[2:])) if parts[0] == "ChatpagedError" else (parts[2], parts[3])
        codes.setdefault(int(number), []).append(text)
    codes[2].insert(0, "an unknown command or option, a value out of range")
    codes |= {number: [text] for number, text in OTHER_CODES.items()}
    rows = "\n".join(f"| {number} | {'; '.join(texts)} |" for number, texts in codes.items())
    debug = "An error is one line on standard error. `--debug`, before or after the command's name, shows the traceback."
    return f"## Exit codes\n\n| code | |\n|---|---|\n{rows}\n\n{debug}\n"


def page() -> str:
    """The whole page."""
    commands = "".join(pages(cli, ("chatpaged",)))
    return HEAD + commands + SETTINGS + "\n" + settings_table() + variables() + COMPLETION + exit_codes()


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
