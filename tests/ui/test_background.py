"""Work that ends with the widget it is done for."""

from __future__ import annotations

import asyncio

import pytest
from textual.css.query import NoMatches
from textual.dom import NoScreen
from textual.widget import MountError
from textual.widgets import Static

from chatpaged.ui.background import while_attached
from tests.ui.conversations import ConversationApp, dialogue


@pytest.mark.parametrize("error", [NoScreen("no screen"), MountError("not mounted"), NoMatches("nothing")])
def test_what_a_taken_out_widget_cannot_do_ends_its_work_and_nothing_else(error: Exception) -> None:
    async def work() -> None:
        raise error

    async def scenario() -> None:
        app = ConversationApp()
        async with app.run_test():
            with pytest.raises(type(error)):
                await while_attached(app.messages, work)
            messages = app.messages
            await messages.remove()
            await while_attached(messages, work)

    asyncio.run(scenario())


def test_a_fault_of_the_work_itself_is_told_also_when_the_widget_is_gone() -> None:
    async def work() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        asyncio.run(while_attached(Static(), work))


def test_messages_that_are_awake_when_they_are_taken_out_of_view_lay_out_nothing_more() -> None:
    async def scenario() -> None:
        app = ConversationApp()
        async with app.run_test():
            messages = app.messages
            await messages.show(dialogue(200))
            await messages.remove()
            messages._wake.set()
            async with asyncio.timeout(5):
                await while_attached(messages, messages._pump)

    asyncio.run(scenario())
