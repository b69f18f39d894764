"""Where the cursor goes when what it was on is shown anew."""

from __future__ import annotations

from tests.ui.app_world import open_app, run


def test_a_message_that_is_answered_again_gives_the_cursor_to_the_prompt() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            chat = await world.send("first")
            world.pane.messages.focus_last()
            await world.until(lambda: world.pane.messages.has_focus_within)
            await world.pilot.press("r")
            await world.until(lambda: len(chat.conversation.nodes) == 3)
            await world.idle(chat)
            assert world.pane.prompt.has_focus_within or world.pane.messages.has_focus_within

    run(scenario())
