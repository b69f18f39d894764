"""What is done with messages in the application: copied, edited, generated again, continued, branched, compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chatpaged.chat import ChatState
from chatpaged.conversation import NodeState
from chatpaged.ui.screens.alternatives import AlternativesScreen
from chatpaged.ui.screens.find import FindScreen
from chatpaged.ui.screens.tree import TreeScreen
from chatpaged.ui.widgets.context_meter import ContextMeter, meter_text
from chatpaged.ui.widgets.message import MessageView
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run


async def focus_message(world: AppWorld, text: str) -> MessageView:
    view = next(view for view in world.pane.messages.mounted if view.text == text)
    view.focus()
    await world.until(lambda: view.has_focus)
    return view


def test_messages_are_copied_exactly() -> None:  # I12
    answer = (
        "Run **this**:\n\n```python\nfor i in range(3):\n    print(i)   # a line that is longer than the window is wide "
        + "x" * 200
        + "\n```\n"
    )

    async def scenario() -> None:
        async with open_app(ScriptedBackend(answer)) as world:
            await world.send("code, please")
            await world.pilot.press("ctrl+up")
            await world.until(lambda: isinstance(world.app.focused, MessageView))
            await world.pilot.press("y")
            await world.until(lambda: world.app.clipboard == answer.rstrip("\n") or world.app.clipboard == answer)
            await world.pilot.press("c")
            code = answer.split("```python\n")[1].split("```", maxsplit=1)[0]
            await world.until(lambda: world.app.clipboard.rstrip("\n") == code.rstrip("\n"))
            assert any("copied" in notice for notice in world.notices)
            await world.command("/copy")
            await world.until(lambda: world.app.clipboard.startswith("Run **this**"))

    run(scenario())


def test_edit_makes_a_sibling_and_both_can_be_looked_at() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            chat = await world.send("first try")
            await world.type("half a thought")
            await focus_message(world, "first try")
            await world.pilot.press("e")
            await world.until(lambda: world.pane.prompt.full_text() == "first try")
            assert "Editing" in world.text_of("#activity")
            await world.pilot.press("escape")
            assert world.pane.prompt.full_text() == "half a thought"
            assert world.pane.editing is None
            await focus_message(world, "first try")
            await world.pilot.press("e")
            await world.until(lambda: world.pane.editing is not None)
            await world.send("second try")
            assert world.contents() == ["second try", "Hello."]
            assert [(item.position, item.siblings) for item in world.pane.messages.items] == [(2, 2), (1, 1)]
            await focus_message(world, "second try")
            await world.pilot.press("left")
            await world.until(lambda: world.contents() == ["first try", "Hello."])
            await world.shown(chat)
            await focus_message(world, "first try")
            await world.pilot.press("right")
            await world.until(lambda: world.contents()[0] == "second try")

    run(scenario())


def test_regenerate_and_count_the_siblings() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            chat = await world.send("question")
            world.backend.answer = "Good day."
            await focus_message(world, "Hello.")
            await world.pilot.press("r")
            await world.until(lambda: world.contents() == ["question", "Good day."])
            await world.idle(chat)
            assert [item.siblings for item in world.pane.messages.items] == [1, 2]
            world.backend.answer = "Third."
            await world.command("/regenerate")
            await world.until(lambda: world.contents() == ["question", "Third."])
            await world.idle(chat)
            assert world.pane.messages.items[-1].siblings == 3

    run(scenario())


def test_stop_keeps_the_beginning_and_continue_goes_on() -> None:  # C9
    async def scenario() -> None:
        async with open_app(ScriptedBackend("word " * 100)) as world:
            chat = await world.send_held("go")
            world.backend.pace.let(40)
            await world.until(lambda: "writing" in world.text_of("#activity"))
            await world.pilot.press("escape")
            world.backend.pace.free()
            await world.idle(chat)
            answer = chat.conversation.path()[-1]
            assert answer.state is NodeState.INTERRUPTED
            assert 0 < len(answer.content) < 500
            view = await world.workspace.look()
            assert view is not None
            assert view.blocks_in_use == 0
            await world.pilot.press("ctrl+up")
            await world.until(lambda: isinstance(world.app.focused, MessageView))
            await world.pilot.press("o")
            await world.until(lambda: chat.conversation.path()[-1].state is NodeState.COMPLETE)
            await world.idle(chat)
            assert chat.conversation.path()[-1].id == answer.id
            assert chat.conversation.path()[-1].content.startswith(answer.content)

    run(scenario())


def test_stop_while_the_prompt_is_read() -> None:  # C9
    async def scenario() -> None:
        async with open_app() as world:
            chat = await world.send_held("x" * 4000)
            world.backend.pace.let(3)
            await world.pilot.press("escape")
            world.backend.pace.free()
            await world.idle(chat)
            view = await world.workspace.look()
            assert view is not None
            assert view.blocks_in_use == 0
            assert [node.role for node in chat.conversation.path()] == ["user"]

    run(scenario())


def test_branch_from_an_answer_and_see_the_tree() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            chat = await world.send("one")
            await world.send("two")
            first = next(view for view in world.pane.messages.mounted if view.text == "Hello.")
            first.focus()
            await world.pilot.press("b")
            await world.until(lambda: world.contents() == ["one", "Hello."])
            await world.send("another two")
            assert world.contents() == ["one", "Hello.", "another two", "Hello."]
            assert world.pane.messages.items[2].siblings == 2
            await world.pilot.press("ctrl+t")
            await world.until(lambda: isinstance(world.app.screen, TreeScreen))
            await world.pilot.press("up", "up", "up", "up", "down", "down", "enter")
            await world.until(lambda: world.app.screen is world.main)
            await world.until(lambda: len(chat.conversation.nodes) == 6)

    run(scenario())


def test_alternatives_side_by_side_and_one_is_taken() -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend(lambda index: f"answer {index}")) as world:
            chat = world.chat
            await world.command("/alternatives 3 Which one?")
            await world.until(lambda: isinstance(world.app.screen, AlternativesScreen))
            screen = world.app.screen
            assert isinstance(screen, AlternativesScreen)
            await world.until(lambda: len(screen.columns) == 3 and not chat.is_busy)
            await world.pilot.press("right", "enter")
            await world.until(lambda: world.app.screen is world.main)
            await world.until(lambda: world.contents() == ["Which one?", "answer 1"])
            await world.shown(chat)
            assert world.pane.messages.items[-1].siblings == 3
            await world.send("and then?")
            assert len(world.contents()) == 4

    run(scenario())


def test_alternatives_of_an_answer_that_is_there() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            chat = await world.send("question")
            await focus_message(world, "Hello.")
            await world.pilot.press("a")
            await world.until(lambda: isinstance(world.app.screen, AlternativesScreen))
            await world.until(lambda: not chat.is_busy)
            assert len(chat.conversation.children(chat.conversation.path()[0].id)) == 4
            await world.pilot.press("escape")
            await world.until(lambda: world.app.screen is world.main)

    run(scenario())


def test_find_a_message_in_another_branch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_app(path=tmp_path / "store.db") as world:
            chat = await world.send("the hidden treasure")
            await world.command("/edit")
            await world.until(lambda: world.pane.editing is not None)
            await world.send("something else")
            await world.pilot.press("ctrl+n", "ctrl+f")
            await world.until(lambda: isinstance(world.app.screen, FindScreen))
            await world.pilot.press(*"treasure")
            screen = world.app.screen
            assert isinstance(screen, FindScreen)
            # What is found for the last letter is listed anew, with the cursor on its first line.
            await world.until(lambda: screen._field.value == "treasure")
            await world.until(lambda: all(worker.is_finished for worker in world.app.workers if worker.group == "search"))
            await world.until(lambda: any("/" in option for option in screen._found))
            await world.pilot.press("down", "enter")
            await world.until(lambda: world.app.screen is world.main and world.chat is chat)
            await world.until(lambda: world.contents()[0] == "the hidden treasure")

    run(scenario())


def test_an_answer_that_goes_round_in_circles_is_told() -> None:  # E12
    async def scenario() -> None:
        async with open_app(ScriptedBackend("round and round " * 60)) as world:
            chat = await world.send_held("sing")
            world.backend.pace.let(600)
            await world.until(lambda: any(view_notice(view) for view in world.pane.messages.mounted))
            await world.pilot.press("escape")
            world.backend.pace.free()
            await world.idle(chat)

    run(scenario())


def view_notice(view: MessageView) -> bool:
    return any("repeats itself" in str(getattr(widget, "content", "")) for widget in view.query("*"))


def test_the_context_meter_follows_what_is_typed() -> None:  # D5
    async def scenario() -> None:
        async with open_app() as world:
            meter = world.pane.query_one(ContextMeter)
            await world.type("x" * 7000)
            await world.until(lambda: meter.has_class("-amber"))
            assert "/ 8,192 (8" in str(meter.render())
            await world.type("x" * 8000)
            await world.until(lambda: meter.has_class("-red"))
            await world.type("x")
            await world.until(lambda: not meter.has_class("-red") and not meter.has_class("-amber"))

    run(scenario())


@pytest.mark.parametrize(
    ("used", "limit", "left_out", "text"),
    [
        (None, 8192, 0, ""),
        (1234, 8192, 0, "█▌········ 1,234 / 8,192 (15 %)"),
        (9000, 8192, 3, "██████████ 9,000 / 8,192 (110 %) · 3 oldest not sent"),
        (5, None, 0, "5 tokens"),
    ],
)
def test_meter_text(used: int | None, limit: int | None, left_out: int, text: str) -> None:
    assert meter_text(used, limit, left_out) == text


def test_a_new_question_while_an_answer_is_written_waits_its_turn() -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend("word " * 50)) as world:
            chat = await world.send_held("one")
            world.backend.pace.let(30)
            await world.until(lambda: chat.state is ChatState.GENERATING)
            await world.send("two", wait=False)
            await world.until(lambda: "1 more to send" in world.text_of("#activity"))
            await world.pilot.press("escape")
            await world.until(lambda: world.pane.prompt.full_text() == "two")
            world.backend.pace.free()
            await world.idle(chat)
            await asyncio.sleep(0)
            assert [node.role for node in chat.conversation.path()] == ["user", "assistant"]

    run(scenario())
