"""Failures of the disk, of models and of users, as they are told in the application."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

from chatpaged.errors import ModelError, StoreError
from chatpaged.prompt_history import PromptHistory
from chatpaged.store_background import BackgroundStore
from chatpaged.ui.screens.choose import ChooseScreen
from chatpaged.ui.widgets.title_bar import TitleBar
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import open_app, run
from tests.ui.test_log_capture import screen_of


def test_what_cannot_be_kept_is_told_for_as_long_as_it_is_so(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.write_text("a file where a directory should be")
    failures: SimpleQueue[StoreError] = SimpleQueue()

    async def scenario() -> None:
        store = BackgroundStore(place / "chatpaged" / "store.db", on_error=failures.put)
        async with open_app(store=store, failures=failures) as world:
            mark = world.main.query_one(TitleBar).query_one("#unsaved")
            await world.send("hi")
            await world.until(lambda: mark.display)
            assert any("Not a directory" in notice for notice in world.notices)
            assert world.contents() == ["hi", "Hello."]
            place.unlink()
            await world.until(lambda: not mark.display)
        assert store.close()

    run(scenario())
    assert (place / "chatpaged" / "store.db").exists()


DAMAGED_BLOCKS = """
import asyncio, json, sys
from pathlib import Path
from chatpaged.engine.config import EngineConfig
from chatpaged.engine_host import HostState
from chatpaged.ui.app import AppParts, ChatpagedApp
from chatpaged.ui.log_capture import capture_output
from tests.scripted_backend import ScriptedBackend

directory = Path("blocks")
config = EngineConfig(block_size=16, disk_cache=10**8, disk_cache_directory=directory)


async def ask(pilot):
    app = pilot.app
    while app.workspace.host.state is not HostState.READY:
        await pilot.pause(0.01)
    chat = app.main.active.chat
    app.workspace.send(chat, "Tell me something that takes a few blocks.")
    while chat.is_busy or len(chat.conversation.nodes) < 2:
        await pilot.pause(0.01)
    app.main.action_engine_screen()
    wanted, app.panel = "Unreadable files" if told else "Written to disk", []
    while app.screen is app.main or not any(wanted in line for line in app.panel):
        await pilot.pause(0.01)
        shown = app.screen.query_one("#engine-tiers")
        app.panel = [shown.render_line(y).text for y in range(shown.size.height)]
    await app.wind_up()
    app.exit()


told = []
with capture_output(Path(sys.argv[1])) as log:
    for _ in range(2):
        backend = ScriptedBackend(config=config)
        app = ChatpagedApp(AppParts(backend=backend, backend_for=lambda name: backend, log=log))
        app.run(auto_pilot=ask)
        for file in directory.rglob("*.kv"):
            file.write_bytes(b"damaged")
        told.append(["panel", " ".join(app.panel)])
Path(sys.argv[2]).write_text(json.dumps([*told, *([line.source, line.text] for line in log.lines.lines)]))
"""


def test_damaged_blocks_on_the_disk_are_counted_and_do_not_disturb_the_screen(tmp_path: Path) -> None:
    screen, lines = screen_of(DAMAGED_BLOCKS, tmp_path)
    panels = [text for source, text in lines if source == "panel"]
    assert "Written to disk" in panels[0]
    assert "Unreadable files" in panels[1]
    assert any("a block is computed again" in text for source, text in lines if source == "logging")
    assert "computed again" not in screen
    assert "chatpaged" in screen


def test_what_was_refused_comes_back_as_it_was_typed(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("many words " * 3000, encoding="utf-8")

    async def scenario() -> None:
        async with open_app(directory=tmp_path) as world:
            await world.type("look at @big.txt please")
            await world.pilot.press("enter")
            await world.until(lambda: any("too long" in notice for notice in world.notices))
            await world.until(lambda: world.pane.prompt.full_text() == "look at @big.txt please")
            assert world.chat.is_empty
            await world.command("/temp hot")
            assert world.pane.prompt.full_text() == "/temp hot"

    run(scenario())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("mine", encoding="utf-8")

    async def scenario() -> None:
        async with open_app(directory=tmp_path) as world:
            await world.send("hi")
            await world.command(f"/export {tmp_path / 'mine.md'}")
            assert any("is there already" in notice for notice in world.notices)
            await world.command(f"/export {tmp_path / 'mine.pdf'}")
            assert any("an export is .md" in notice for notice in world.notices)

    run(scenario())
    assert (tmp_path / "mine.md").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "mine.pdf").exists()


def test_a_model_that_there_is_not_can_be_typed_into_the_list() -> None:
    def refuse(name: str) -> ScriptedBackend:
        raise ModelError(f"no model {name!r}")

    async def scenario() -> None:
        async with open_app(backend_for=refuse) as world:
            await world.pilot.press("ctrl+o")
            await world.until(lambda: isinstance(world.app.screen, ChooseScreen))
            await world.pilot.press(*"nosuch", "ctrl+j")
            await world.until(lambda: any("no model 'nosuch'" in notice for notice in world.notices))
            await world.until(lambda: world.app.screen is world.main)

    run(scenario())


def test_what_was_typed_into_a_chat_that_was_never_begun_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"

    async def scenario() -> None:
        async with open_app(history=PromptHistory(path)) as world:
            await world.type("a long thought")
            await world.pilot.press("ctrl+q")
            await world.until(lambda: world.app._exit)

    async def again() -> None:
        async with open_app(history=PromptHistory(path)) as world:
            await world.until(lambda: world.pane.prompt.history.entries)
            await world.pilot.press("up")
            await world.until(lambda: world.pane.prompt.full_text() == "a long thought")

    run(scenario())
    run(again())


def test_a_notice_is_not_repeated_while_it_is_there() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            for _ in range(5):
                await world.command("/nosuch")
            assert len(world.notices) == 1

    run(scenario())
