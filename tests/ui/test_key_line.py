"""The line of keys at the bottom: the keys of the moment, and the same widgets as long as these are the same."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Input

from chatpaged.ui.widgets.key_line import KeyLine
from tests.ui.snapshots import until


class KeysApp(App[None]):
    """A field and a button with a key of its own, which may be out of order."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f5", "count", "Count")]
    can_count: bool | None = True

    def compose(self) -> ComposeResult:
        yield Input()
        yield Counted("press")
        yield KeyLine()

    def action_count(self) -> None: ...

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.can_count if action == "count" else True


class Counted(Button):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f6", "app.bell", "Ring")]


def shown(app: KeysApp) -> list[tuple[str, bool]]:
    return [(str(key.render()).split()[-1], key.has_class("-disabled")) for key in app.query_one(KeyLine).children]


def test_keys_are_those_of_what_has_the_focus() -> None:
    async def scenario() -> None:
        app = KeysApp()
        async with app.run_test() as pilot:
            app.query_one(Input).focus()
            await until(pilot, lambda: shown(app) == [("Count", False)], "these keys")
            app.query_one(Counted).focus()
            await until(pilot, lambda: shown(app) == [("Ring", False), ("Count", False)], "these keys")
            app.can_count = None  # not now
            app.refresh_bindings()
            await until(pilot, lambda: shown(app) == [("Ring", False), ("Count", True)], "these keys")
            app.can_count = False
            app.refresh_bindings()
            await until(pilot, lambda: shown(app) == [("Ring", False)], "these keys")
            app.query_one(Input).focus()
            await until(pilot, lambda: shown(app) == [], "these keys")

    asyncio.run(scenario())


def test_the_same_keys_are_the_same_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    recompose = KeyLine.recompose

    async def counted(self: KeyLine) -> None:
        nonlocal asked
        await recompose(self)
        asked += 1

    monkeypatch.setattr(KeyLine, "recompose", counted)

    async def scenario() -> None:
        app = KeysApp()
        async with app.run_test() as pilot:
            app.query_one(Input).focus()
            await until(pilot, lambda: shown(app) == [("Count", False)], "the key")
            keys, before = list(app.query_one(KeyLine).children), asked
            app.refresh_bindings()
            await until(pilot, lambda: asked > before, "another look")
            assert list(app.query_one(KeyLine).children) == keys

    asyncio.run(scenario())


def test_a_screen_that_was_closed_meanwhile_has_no_keys() -> None:
    async def scenario() -> None:
        app = KeysApp()
        async with app.run_test():
            line = app.query_one(KeyLine)
            await line.remove()
            await line.recompose()

    asyncio.run(scenario())
