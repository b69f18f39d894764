"""A real terminal for tests: a shell in tmux, on a socket of its own, typed into and looked at from outside."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import psutil

from tests.cli.runner import REPOSITORY

HAS_TMUX = shutil.which("tmux") is not None
PROMPT = "ready>"
_SECONDS = 60.0
_HISTORY = 200
_LOOK_SECONDS = 0.03


class Tmux:
    """A shell in a window of its own. Waits for what is to be seen; never for a fixed time."""

    def __init__(
        self,
        directory: Path,
        *,
        size: tuple[int, int] = (100, 30),
        term: str = "tmux-256color",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the shell.

        Args:
            directory: for the socket, and for what the application keeps.
            size: columns and rows.
            term: what programs are told of the terminal.
            environment: what they find in their environment besides.
        """
        directory.mkdir(exist_ok=True)
        self._socket = directory / "tmux"
        settings = directory / "tmux.conf"
        settings.write_text(f"set -g history-limit {_HISTORY}\nset -g default-terminal {term}\nset -g escape-time 0\nset -g status off\n")
        columns, rows = size
        shell = shlex.join(["env", f"PS1={PROMPT} ", f"TERM={term}", "bash", "--norc", "--noprofile"])
        subprocess.run(
            ["tmux", "-S", self._socket, "-f", settings, "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", REPOSITORY, shell],
            check=True,
            env=surroundings(directory) | dict(environment or {}),
            timeout=_SECONDS,
        )
        self.wait(PROMPT)

    def _ask(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *arguments], check=True, capture_output=True, text=True, timeout=_SECONDS)
        return done.stdout

    def close(self) -> None:
        """Ends everything in it."""
        self._ask("kill-server")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- hands -----------------------------------------------------------------------------------------------------------

    def press(self, *keys: str) -> None:
        """Presses keys, by tmux's names."""
        self._ask("send-keys", *keys)

    def type(self, text: str, *keys: str) -> None:
        """Types a text, then presses keys."""
        self._ask("send-keys", "-l", text)
        if keys:
            self.press(*keys)

    def run(self, *arguments: str, module: str = "chatpaged") -> None:
        """Has the shell start the application."""
        self.press("C-l")
        self.type(shlex.join([sys.executable, "-m", module, *arguments]), "Enter")

    def resize(self, columns: int, rows: int) -> None:
        """Makes the window another size."""
        self._ask("resize-window", "-x", str(columns), "-y", str(rows))

    # --- eyes ------------------------------------------------------------------------------------------------------------

    def screen(self, *, escapes: bool = False) -> str:
        """What is to be seen; with escapes also its colours."""
        return self._ask("capture-pane", "-p", *(["-e"] if escapes else []))

    def history(self) -> str:
        """What has been scrolled out of sight."""
        return self._ask("capture-pane", "-p", "-S", f"-{_HISTORY}", "-E", "-1") if self.state("history_size") != "0" else ""

    def until(self, condition: Callable[[str], object], what: str, *, seconds: float = _SECONDS) -> str:
        """Waits for a screen that is as wanted, and returns it."""
        end = time.monotonic() + seconds
        while not condition(screen := self.screen()):
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds:g} s in vain for {what}; on the screen is:\n{screen}")
            time.sleep(_LOOK_SECONDS)  # between two looks
        return screen

    def wait(self, *texts: str) -> str:
        """Waits until all of the texts are to be seen."""
        return self.until(lambda screen: all(text in screen for text in texts), " and ".join(map(repr, texts)))

    def wait_gone(self, text: str) -> str:
        """Waits until a text is not to be seen any more."""
        return self.until(lambda screen: text not in screen, f"{text!r} to go")

    def state(self, name: str) -> str:
        """A value of the terminal, by tmux's name."""
        return self._ask("display-message", "-p", f"#{{{name}}}").strip()

    # --- the program in it -----------------------------------------------------------------------------------------------

    def process(self) -> psutil.Process:
        """The application."""
        [process] = psutil.Process(int(self.state("pane_pid"))).children()
        return process

    def has_process(self) -> bool:
        """Whether the application runs."""
        return bool(psutil.Process(int(self.state("pane_pid"))).children())

    def status(self) -> int:
        """Waits for the shell to have the terminal again, and returns how the application has ended."""
        self.until(lambda screen: screen.rstrip().endswith(PROMPT), "the shell")
        self.type("echo ended:$?", "Enter")
        screen = self.until(lambda screen: "\nended:" in screen, "the status")
        return int(screen.rpartition("\nended:")[2].split()[0])

    def assert_as_before(self) -> None:
        """Asserts that the terminal is as a shell has it: no mode of the application is left."""
        flags = ("alternate_on", "cursor_flag", "mouse_any_flag", "mouse_sgr_flag", "keypad_flag")
        assert [self.state(name) for name in flags] == ["0", "1", "0", "0", "0"]
        self.press("C-l")
        self.type("stty -a | tr ' ;' '\\n' | grep -xE -e '-?(echo|icanon|isig|ixon|icrnl|opost)' | xargs echo modes:", "Enter")
        screen = self.until(lambda screen: "\nmodes:" in screen, "stty")
        words = screen.rpartition("\nmodes:")[2].split(PROMPT)[0].split()
        assert sorted(words) == ["echo", "icanon", "icrnl", "isig", "ixon", "opost"]


def surroundings(directory: Path) -> dict[str, str]:
    """An environment in which nothing of the user's is used but what he has fetched; nothing of the test run's own terminal either."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TMUX", "COLOR", "NO_COLOR"))}
    return inherited | {f"XDG_{name}_HOME": str(directory / name.lower()) for name in ("CONFIG", "DATA", "STATE")} | {"LC_ALL": "C.UTF-8"}
