"""Screens that are closed more often than once."""

from __future__ import annotations

import pytest
from textual.command import CommandList
from textual.events import Key

from chatpaged.ui.screens.palette import Palette
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run


def press_at_once(world: AppWorld, *keys: str) -> None:
    """As a key that repeats, or a slow connection, brings them."""
    for key in keys:
        world.app.post_message(Key(key, None))


@pytest.mark.parametrize("presses", [2, 15])
def test_enter_twice_in_the_palette_runs_a_command_once(presses: int) -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend("Hello.")) as world:
            await world.pilot.press("ctrl+p", *"side by side")
            palette = world.app.screen
            assert isinstance(palette, Palette)
            commands = palette.query_one(CommandList)
            await world.until(lambda: bool(commands.option_count))
            await world.pilot.press("down")
            await world.until(lambda: commands.highlighted is not None)
            press_at_once(world, *["enter"] * presses)
            await world.until(lambda: world.app.screen is world.main)
            for _ in range(5):
                await world.pilot.pause()
            assert world.app.screen is world.main
            assert len(world.main.panes) == 2
            assert await world.send("still here") is world.chat
            assert world.contents()[0] == "still here"

    run(scenario())


@pytest.mark.parametrize("key", ["ctrl+p", "f1", "f3", "ctrl+o", "ctrl+f", "ctrl+t", "f12"])
@pytest.mark.parametrize("ending", ["escape", "enter"])
def test_what_is_closed_twice_takes_nothing_below_with_it(key: str, ending: str) -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            await world.pilot.press(key)
            press_at_once(world, *[ending] * 4)
            for _ in range(5):
                await world.pilot.pause()
            assert world.main in world.app.screen_stack
            await world.pilot.press("escape")
            await world.until(lambda: world.app.screen is world.main)

    run(scenario())


def test_a_screen_closes_once_with_its_first_result() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            results: list[str | None] = []
            world.app.show_engine_screen(None)
            await world.until(lambda: world.app.screen is not world.main)
            screen = world.app._engine_screen
            assert screen is not None
            screen._result_callbacks[-1].callback = results.append
            for result in ("first", "second", None):
                screen.dismiss(result)
            await world.until(lambda: world.app.screen is world.main)
            assert results == ["first"]

    run(scenario())
