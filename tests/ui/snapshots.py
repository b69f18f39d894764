"""Pictures of the application, compared with those that were looked at and kept.

`SNAPSHOTS=write pytest tests/ui` writes new ones; look at them before they are committed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from tests.ui.patient_pilot import SECONDS

DIRECTORY = Path(__file__).parent / "snapshots"
WRITE = "write"
_NAMES = re.compile(r"terminal-\d+")


def picture(app: App[Any], title: str) -> str:
    """The screen as SVG, the same for the same screen."""
    return _NAMES.sub("terminal", app.export_screenshot(title=title))


def check_snapshot(app: App[Any], name: str, *, mode: str) -> None:
    """Compares the screen with the picture of this name, or writes that picture.

    Args:
        app: what is on the screen.
        name: of the picture.
        mode: `write` writes it.
    """
    kept = DIRECTORY / f"{name}.svg"
    now = picture(app, f"chatpaged: {name}")
    if mode == WRITE:
        kept.write_text(now, encoding="utf-8")
        return
    assert kept.exists(), f"there is no picture {kept}; SNAPSHOTS=write makes it"
    if kept.read_text(encoding="utf-8") != now:
        new = Path("/tmp") / f"chatpaged-{name}.svg"  # noqa: S108 - to be looked at by whoever runs the tests
        new.write_text(now, encoding="utf-8")
        raise AssertionError(f"the screen {name!r} looks different: compare {kept} with {new}")


async def until(pilot: Pilot[Any], condition: Callable[[], object], what: str = "") -> None:
    """Waits until something holds; tests never wait for a fixed time."""
    end = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"waited {SECONDS:g} s in vain{f' for {what}' if what else ''}")
        await pilot.pause(0.01)
    await pilot.pause()
