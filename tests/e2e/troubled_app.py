"""`chatpaged` with one thing in it that goes wrong, for tests: python -m tests.e2e.troubled_app ARGS

`TROUBLE` says what: `engine` stops the engine's thread at its 12th step, once; `widget` fails in a widget's own code when F7 is pressed;
`noise` has C code, Python and libraries print at every step; `imports` lists what is imported when the window is there; `slow` makes
every step last a tenth of a second until there is a file: nothing that is to be seen while an answer is written is over too soon.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

TROUBLE = "TROUBLE"
IMPORTS = "TROUBLE_IMPORTS"
SLOW_UNTIL = "TROUBLE_SLOW_UNTIL"
NOISE = ("NOISE-FROM-C", "NOISE-FROM-PRINT", "NOISE-FROM-LOGGING", "NOISE-FROM-WARNINGS", "NOISE-FROM-STDERR")
_STEPS = 12
_SLOW_SECONDS = 0.1


def _at_each_step(do: Callable[[int], None]) -> None:
    from chatpaged.engine.llm_engine import LLMEngine  # noqa: PLC0415 - each trouble has its own

    engine: Any = LLMEngine
    step, numbers = engine.step, itertools.count(1)

    def troubled(self: LLMEngine) -> Any:
        do(next(numbers))
        return step(self)

    engine.step = troubled


def engine_trouble() -> None:
    """The engine stops."""

    def fail(number: int) -> None:
        if number == _STEPS:
            raise RuntimeError("the device has gone")

    _at_each_step(fail)


def noise_trouble() -> None:
    """Everybody prints."""
    c = ctypes.CDLL(None)

    def print_all(number: int) -> None:
        c.dprintf(2, NOISE[0].encode() + b"\n")
        print(NOISE[1])
        logging.getLogger("library").warning(NOISE[2])
        warnings.warn(f"{NOISE[3]} {number}", UserWarning, stacklevel=2)
        os.write(sys.__stderr__.fileno() if number == 0 and sys.__stderr__ else 2, NOISE[4].encode() + b"\r\n")

    _at_each_step(print_all)


def slow_trouble() -> None:
    """The engine takes its time until the test has seen enough."""
    end = Path(os.environ[SLOW_UNTIL])

    def wait(number: int) -> None:
        if not end.exists():
            time.sleep(_SLOW_SECONDS)

    _at_each_step(wait)


def widget_trouble() -> None:
    """A widget fails when it is drawn."""
    from chatpaged.ui.screens.main import MainScreen  # noqa: PLC0415 - each trouble has its own
    from chatpaged.ui.widgets.context_meter import ContextMeter  # noqa: PLC0415 - each trouble has its own

    def render(self: ContextMeter) -> Any:
        raise RuntimeError("a widget has failed")

    def fail(self: MainScreen) -> None:
        ContextMeter.render = render  # type: ignore[method-assign, assignment]
        self.query_one(ContextMeter).refresh()

    MainScreen.action_messages = fail  # type: ignore[method-assign]


def imports_trouble() -> None:
    """Says what is imported when the window is there."""
    from chatpaged.ui.app import ChatpagedApp  # noqa: PLC0415 - each trouble has its own

    app: Any = ChatpagedApp
    first_frame = app._first_frame

    def noted(self: ChatpagedApp) -> None:
        target = Path(os.environ[IMPORTS])
        part = target.with_suffix(".part")
        part.write_text("\n".join(sorted({name.partition(".")[0] for name in sys.modules})))
        part.rename(target)
        first_frame(self)

    app._first_frame = noted


def main() -> None:
    trouble = {
        "engine": engine_trouble,
        "noise": noise_trouble,
        "widget": widget_trouble,
        "imports": imports_trouble,
        "slow": slow_trouble,
    }
    if os.environ.get(TROUBLE):
        trouble[os.environ[TROUBLE]]()
    from chatpaged.cli.main import main as run  # noqa: PLC0415 - each trouble has its own

    sys.argv[0] = "chatpaged"
    run()


if __name__ == "__main__":
    main()
