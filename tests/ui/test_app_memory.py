"""What the application tells the engine to keep, and what it shows of memory below the pool."""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot

from chatpaged.backends import DemoBackend
from chatpaged.chat import Chat
from chatpaged.engine.config import EngineConfig
from chatpaged.engine_host import HostState
from chatpaged.ui.app import AppParts, ChatpagedApp
from chatpaged.ui.widgets.engine_panel import EnginePanel
from tests.scripted_backend import ScriptedBackend
from tests.test_chat_memory import Looks, ids_of
from tests.ui.app_world import open_app, run
from tests.ui.snapshots import until
from tests.ui.test_app_commands import words_of


def test_of_chats_side_by_side_the_engine_looks_at_the_one_that_is_typed_into() -> None:
    async def scenario() -> None:
        async with open_app(size=(160, 40)) as world:
            assert world.backend.llm is not None
            looks = Looks(world.backend.llm)
            first = await world.send("the first one")
            await world.until(lambda: looks.last == ids_of(first))
            await world.pilot.press("f4")
            await world.until(lambda: len(world.main.panes) == 2)
            await world.until(lambda: looks.last is None)
            second = await world.send("the second one")
            assert second is not first
            await world.until(lambda: looks.last == ids_of(second))
            await world.pilot.press("f6", "f6")
            await world.until(lambda: world.chat is first)
            await world.until(lambda: looks.last == ids_of(first))
            # Somebody else's answer changes nothing.
            count = len(looks)
            world.workspace.send(second, "go on")
            await world.idle(second)
            assert len(looks) == count

    run(scenario())


def test_what_a_small_pool_has_moved_to_swap_space_is_shown_and_comes_back() -> None:
    config = EngineConfig(kv_blocks=40, swap_space=64 * 2**20)
    backend = DemoBackend(config)
    app = ChatpagedApp(AppParts(backend=backend, backend_for=lambda _: backend))

    async def ask(pilot: Pilot[Any], chat: Chat, text: str) -> None:
        app.workspace.send(chat, text)
        await until(pilot, lambda: not chat.is_busy and not chat.queue, "the answer")

    async def scenario() -> None:
        async with app.run_test(size=(140, 90)) as pilot:
            await until(pilot, lambda: app.workspace.host.state is HostState.READY, "the engine")
            main = app.main
            assert main is not None
            first = main.active.chat
            for text in ("What is a block table?", "Why is nothing copied?"):
                await ask(pilot, first, text)
            for number in range(5):
                other = app.workspace.new_chat()
                main.show_chat(other)
                await ask(pilot, other, f"Tell me about sharing, and about block tables, for the {number}. time")
            panel = main.query_one(EnginePanel)
            await until(pilot, lambda: "block" in words_of(panel, "engine-tiers", "Swapped out"), "swapped blocks")
            assert "blocks" in words_of(panel, "engine-sharing", "In swap space")
            assert "in swap space" in words_of(panel, "engine-legend", "in swap space")
            assert not words_of(panel, "engine-tiers", "to disk")
            main.show_chat(first)
            await ask(pilot, first, "And what was the first thing?")
            await until(pilot, lambda: "block" in words_of(panel, "engine-tiers", "Swapped in"), "blocks that came back")
            assert main.view is not None
            main.view.check()
            await app.wind_up()

    run(scenario())


def test_pins_are_offered_by_the_palette_and_completed() -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend()) as world:
            titles = {command.title for command in world.app.get_system_commands(world.main)}
            assert {"/pin", "/unpin", "/top"} <= titles
            await world.pilot.press(*"/unp", "tab")
            await world.until(lambda: world.pane.prompt.full_text().strip() == "/unpin")

    run(scenario())
