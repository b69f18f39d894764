"""Choosing from a list; being asked for a text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual.widgets import Button, Input, TextArea

from chatpaged.choices import Choice, named_choices
from chatpaged.errors import ModelError
from chatpaged.ui.screens.ask_text import AskTextScreen
from chatpaged.ui.screens.choose import ChooseScreen
from tests.ui.conftest import Snapshot
from tests.ui.hosts import UNANSWERED, ScreenHost, shown_screen
from tests.ui.snapshots import until

MODELS = (
    Choice("starter", "starter", "135M", (("family", "llama"), ("size", "270.9 MB"), ("context", "8,192 tokens"))),
    Choice("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "494M", (("family", "qwen2"), ("context", "32,768 tokens"))),
    Choice("x/[b]broken", "x/[b]broken", "", (), warning="the download was cut off"),
)
FREE = "an id of the Hugging Face Hub or a path"


def choose(app: ScreenHost) -> ChooseScreen:
    screen = app.screen
    assert isinstance(screen, ChooseScreen)
    return screen


def listed(app: ScreenHost) -> list[str | None]:
    return [option.id for option in choose(app).picks.options]


@pytest.mark.parametrize(("size", "name"), [((100, 24), "choose"), ((40, 12), "choose-40x12")])
def test_a_model_is_chosen(snapshot: Snapshot, size: tuple[int, int], name: str) -> None:
    async def main() -> None:
        async with shown_screen(lambda: ChooseScreen("Model", MODELS, current="starter", free_text=FREE), size) as (app, pilot):
            assert choose(app).picks.chosen_id == "starter"
            await pilot.press("down", "down")
            await until(pilot, lambda: "the download was cut off" in str(choose(app)._details.content))
            await pilot.press("up")
            await until(pilot, lambda: "qwen2" in str(choose(app)._details.content))
            snapshot(app, name)
            await pilot.press("enter")
            await until(pilot, lambda: app.result == "Qwen/Qwen2.5-0.5B-Instruct")

    asyncio.run(main())


def test_what_is_typed_filters_or_is_taken_itself() -> None:
    async def main() -> None:
        async with shown_screen(lambda: ChooseScreen("Model", lambda: MODELS, free_text=FREE)) as (app, pilot):
            await until(pilot, lambda: len(listed(app)) == 3)
            await pilot.press(*"broken")
            await until(pilot, lambda: listed(app) == ["x/[b]broken"])
            await pilot.press("ctrl+u", *"org/new")
            await until(pilot, lambda: choose(app).status == f"Enter takes “org/new” as {FREE}.")
            assert str(choose(app)._details.content) == ""
            await pilot.press("enter")
            await until(pilot, lambda: app.result == "org/new")
            app.open(ChooseScreen("Model", MODELS, free_text=FREE))
            await pilot.pause()
            await pilot.press(*"star", "ctrl+j")
            await until(pilot, lambda: app.result == "star")

    asyncio.run(main())


def test_where_only_the_list_counts_other_text_is_refused() -> None:
    async def main() -> None:
        async with shown_screen(lambda: ChooseScreen("Preset", MODELS)) as (app, pilot):
            await pilot.press(*"xyz")
            await until(pilot, lambda: choose(app).status == "Nothing is called “xyz”.")
            await pilot.press("enter", "ctrl+j")
            assert app.result is UNANSWERED
            await pilot.press("ctrl+u")
            await until(pilot, lambda: len(listed(app)) == 3)
            await pilot.click("#found", offset=(5, 1))
            await until(pilot, lambda: app.result == "Qwen/Qwen2.5-0.5B-Instruct")

    asyncio.run(main())


def test_what_cannot_be_listed_is_told() -> None:
    def fail() -> Any:
        raise ModelError("models.toml is damaged")

    async def main() -> None:
        async with shown_screen(lambda: ChooseScreen("Model", fail, free_text=FREE)) as (app, pilot):
            await until(pilot, lambda: choose(app).status == "models.toml is damaged")
            await pilot.press(*"starter", "enter")
            await until(pilot, lambda: app.result == "starter")
            app.open(ChooseScreen("Preset", ()))
            await until(pilot, lambda: choose(app).status == "There is nothing to choose from.")

    asyncio.run(main())


def test_a_theme_is_seen_before_it_is_chosen() -> None:
    async def main() -> None:
        seen: list[str] = []
        themes = named_choices(["nord", "gruvbox", "dracula"])
        async with shown_screen(lambda: ChooseScreen("Theme", themes, current="gruvbox", preview=seen.append)) as (app, pilot):
            await pilot.press("down")
            await until(pilot, lambda: seen[-1:] == ["dracula"])
            await pilot.press("escape")
            await until(pilot, lambda: app.result is None)
            assert seen[-1] == "gruvbox"

    asyncio.run(main())


def test_a_line_is_asked_for(snapshot: Snapshot) -> None:
    async def main() -> None:
        async with shown_screen(lambda: AskTextScreen("Rename the chat", "Old name", "A name"), (80, 20)) as (app, pilot):
            snapshot(app, "ask-text")
            await pilot.press(*"New", "enter")  # what was there is selected
            await until(pilot, lambda: app.result == "New")
            app.open(AskTextScreen("Rename the chat", "Old name"))
            await pilot.pause()
            await pilot.press("backspace")
            await pilot.click("#keep")
            await until(pilot, lambda: app.result == "")
            app.open(AskTextScreen("Rename the chat", "Old name"))
            await pilot.pause()
            await pilot.click("#cancel")
            await until(pilot, lambda: app.result is None)

    asyncio.run(main())


@pytest.mark.parametrize(("size", "name"), [((80, 24), "ask-long-text"), ((40, 12), "ask-long-text-40x12")])
def test_a_longer_text_is_asked_for(snapshot: Snapshot, size: tuple[int, int], name: str) -> None:
    async def main() -> None:
        about = "It stands before the whole conversation."

        def make() -> AskTextScreen:
            return AskTextScreen("System prompt", "Be brief.", about=about, multi_line=True)

        async with shown_screen(make, size) as (app, pilot):
            snapshot(app, name)
            await pilot.press("enter", *"[b]ok")
            assert app.screen.query_one(TextArea).text == "Be brief.\n[b]ok"
            assert app.screen.query_one("#keep", Button).region.bottom <= size[1]
            await pilot.press("ctrl+s")
            await until(pilot, lambda: app.result == "Be brief.\n[b]ok")
            app.open(make())
            await pilot.pause()
            await pilot.press("x", "escape")
            await until(pilot, lambda: app.result is None)

    asyncio.run(main())


def test_a_pasted_heading_is_no_markup() -> None:
    async def main() -> None:
        async with shown_screen(lambda: AskTextScreen("Rename [red]x[/red]\nnow", "a")) as (app, pilot):
            assert str(app.screen.query_one("Frame").border_title) == "Rename [red]x[/red] now".replace("[", "\\[")
            assert app.screen.query_one(Input).value == "a"
            await pilot.press("escape")

    asyncio.run(main())
