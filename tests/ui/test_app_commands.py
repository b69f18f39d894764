"""What is typed with a slash, and what only looks like it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.widgets import Input, TextArea

from chatpaged.errors import ModelError
from chatpaged.session_model import SessionOptions
from chatpaged.slash_commands import COMMANDS
from chatpaged.ui.screens.ask_text import AskTextScreen
from chatpaged.ui.screens.choose import ChooseScreen
from chatpaged.ui.screens.engine import EngineScreen
from chatpaged.ui.screens.find import FindScreen
from chatpaged.ui.screens.help import HelpScreen
from chatpaged.ui.screens.log import LogScreen
from chatpaged.ui.screens.tree import TreeScreen
from chatpaged.ui.slash_actions import SlashActions
from chatpaged.ui.widgets.engine_panel import EnginePanel
from chatpaged.ui.widgets.sidebar import Sidebar
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run

PRESETS = '[presets.german]\nsystem = "Antworte auf Deutsch."\nsampling.temperature = 0.25\n'


def test_every_command_does_something() -> None:
    for command in COMMANDS:
        assert command.name in ("temp", "top-p", "top-k", "max-tokens") or hasattr(SlashActions, "_do_" + command.name.replace("-", "_"))


def test_what_looks_like_a_command_and_what_does_not() -> None:  # I10
    async def scenario() -> None:
        async with open_app() as world:
            await world.command("/usr/bin/env what is this")
            assert world.pane.prompt.full_text() == "/usr/bin/env what is this"
            assert any("//" in notice for notice in world.notices)
            await world.command("/nosuch")
            assert any("/nosuch" in notice for notice in world.notices)
            assert world.chat.is_empty
            world.pane.prompt.clear()
            for text, sent in (("q", "q"), ("exit", "exit"), ("//usr/bin/env", "/usr/bin/env")):
                await world.send(text)
                assert world.contents()[-2] == sent

    run(scenario())


@pytest.mark.parametrize(
    ("line", "screen"),
    [
        ("/find x", FindScreen),
        ("/model", ChooseScreen),
        ("/preset", ChooseScreen),
        ("/system", AskTextScreen),
        ("/stats", EngineScreen),
        ("/log", LogScreen),
        ("/keys", HelpScreen),
        ("/help", HelpScreen),
        ("/tree", TreeScreen),
    ],
)
def test_commands_that_show_a_screen(line: str, screen: type[object]) -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            await world.command(line)
            await world.until(lambda: isinstance(world.app.screen, screen))
            await world.pilot.press("escape")
            await world.until(lambda: world.app.screen is world.main)
            await world.until(lambda: world.pane.prompt.has_focus_within)

    run(scenario())


def test_sampling_is_set_for_one_chat() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            for line in ("/temp 0.5", "/top-p 0.9", "/top-k 40", "/max-tokens 3", "/seed 7", "/set min-p 0.1"):
                await world.command(line)
            assert world.chat.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "max_tokens": 3, "seed": 7, "min_p": 0.1}
            chat = await world.send("hi")
            assert world.contents() == ["hi", "Hel"]
            assert chat.reply is not None
            assert (chat.reply.params.temperature, chat.reply.seed) == (0.5, 7)
            assert chat.conversation.path()[-1].finish_reason == "length"
            for line in ("/temp hot", "/top-p 2", "/seed x", "/set nothing 1", "/max-tokens 0"):
                await world.command(line)
            assert world.chat.sampling["temperature"] == 0.5
            assert sum("temperature" in notice or "temp" in notice for notice in world.notices) >= 1
            await world.command("/temp")
            assert any("temperature is 0.5" in notice for notice in world.notices)
            await world.pilot.press("ctrl+n")
            assert world.chat.sampling == {}

    run(scenario())


def test_system_prompt() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.command("/system Be brief.")
            await world.until(lambda: world.chat.conversation.system == "Be brief.")
            await world.command("/system")
            await world.until(lambda: isinstance(world.app.screen, AskTextScreen))
            area = world.app.screen.query_one(TextArea)
            assert area.text == "Be brief."
            chat = world.chat
            await world.pilot.press("escape")
            await world.send("hi")
            assert chat.reply is not None
            assert "Be brief." in chat.reply.draft.prompt.text

    run(scenario())


def test_a_chat_from_a_preset(tmp_path: Path) -> None:
    (tmp_path / "chatpaged.toml").write_text(PRESETS, encoding="utf-8")

    async def scenario() -> None:
        async with open_app(directory=tmp_path) as world:
            await world.command("/new german")
            assert (world.chat.conversation.system, world.chat.sampling) == ("Antworte auf Deutsch.", {"temperature": 0.25})
            await world.command("/new nothing")
            assert any("no preset 'nothing'" in notice for notice in world.notices)
            await world.command("/preset")
            await world.until(lambda: isinstance(world.app.screen, ChooseScreen))
            first = world.chat
            await world.pilot.press("enter")
            await world.until(lambda: world.app.screen is world.main and world.chat is not first)
            assert world.chat.preset == "german"

    run(scenario())


def test_another_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.send("hi")
            await world.command("/model other")
            await world.until(lambda: world.workspace.host.name == "other")
            await world.send("and now?")
            assert world.contents() == ["hi", "Hello.", "and now?", "I am other."]
            assert "other" in world.text_of("#model-name")

    run(scenario())


def test_another_model_that_there_is_not() -> None:
    def refuse(name: str) -> ScriptedBackend:
        raise ModelError(f"no model {name!r}")

    async def scenario() -> None:
        async with open_app(backend_for=refuse) as world:
            await world.command("/model nosuch")
            await world.until(lambda: any("no model 'nosuch'" in notice for notice in world.notices))
            await world.send("still here?")
            assert world.contents()[-1] == "Hello."

    run(scenario())


async def answered(world: AppWorld) -> None:
    await world.send("What is up?")


def test_export(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_app(directory=tmp_path) as world:
            await world.command("/export")
            assert any("nothing to export" in notice for notice in world.notices)
            await answered(world)
            await world.command("/export")
            await world.until((tmp_path / "what-is-up.md").exists)
            await world.command("/export")
            await world.until((tmp_path / "what-is-up-2.md").exists)
            await world.command(f"/export {tmp_path / 'chat.json'}")
            await world.until(lambda: (tmp_path / "chat.json").exists() and (tmp_path / "chat.json").stat().st_size)
            await world.command("/export /nowhere/at/all.md")
            await world.until(lambda: any("cannot write" in notice for notice in world.notices))

    run(scenario())
    assert "What is up?" in (tmp_path / "what-is-up.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))


def test_name_keep_on_top_delete(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_app(path=tmp_path / "store.db") as world:
            await answered(world)
            chat = world.chat
            await world.command("/rename My chat")
            assert chat.title == "My chat"
            await world.command("/top")
            assert chat.pinned
            await world.until(lambda: "on top" in list_text(world))
            assert not chat.in_memory
            await world.command("/top")
            await world.until(lambda: "on top" not in list_text(world))
            await world.command("/delete")
            await world.until(lambda: world.chat is not chat)
            assert chat.id not in world.workspace.chats

    run(scenario())


def list_text(world: AppWorld) -> str:
    """What the list of chats says."""
    options = world.main.query_one(Sidebar).options
    return "\n".join(str(options.get_option_at_index(index).prompt) for index in range(options.option_count))


def test_a_chat_is_pinned_in_memory() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await world.command("/pin")
            await world.until(lambda: any("nothing of this chat has been computed" in notice for notice in world.notices))
            chat = await world.send("Tell me something that takes a few blocks.")
            blocks = (len(chat.session.last_turn.token_ids) if chat.session and chat.session.last_turn else 0) // 16
            await world.command("/pin")
            await world.until(lambda: any(f"pinned {blocks} blocks" in notice for notice in world.notices))
            await world.until(lambda: "in memory" in list_text(world))
            assert not chat.pinned, "its place in the list is another matter"
            panel = world.main.query_one(EnginePanel)
            await world.until(lambda: f"{blocks} blocks" in words_of(panel, "engine-sharing", "Pinned"))
            assert words_of(panel, "engine-legend", "pinned (cached)").split()[1] == str(blocks)
            assert "pinned" in words_of(panel, "engine-chats", "Tell me")
            await world.send("And something more about that, please.")
            await world.until(lambda: f"{blocks} blocks" not in words_of(panel, "engine-sharing", "Pinned"))
            await world.command("/unpin")
            await world.until(lambda: "not pinned any more" in world.notices)
            await world.until(lambda: not words_of(panel, "engine-sharing", "Pinned"))
            assert "in memory" not in list_text(world)
            await world.command("/unpin")
            await world.until(lambda: "this chat is not pinned" in world.notices)

    run(scenario())


def words_of(panel: EnginePanel, part: str, name: str) -> str:
    """The line of a part of the panel that has these words."""
    widget = panel.query_one(f"#{part}")
    lines = (widget.render_line(y).text for y in range(widget.size.height))
    return next((line for line in lines if name in line), "")


def test_private_chats_are_called_so_once() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            assert not world.main.query_one("#private").display
        async with open_app(options=SessionOptions(salt=b"secret", leave_out=True)) as world:
            assert world.main.query_one("#private").display
            assert world.text_of("#private") == "private"

    run(scenario())


def test_split_theme_and_thinking() -> None:
    async def scenario() -> None:
        async with open_app(size=(160, 40)) as world:
            await world.command("/split")
            await world.until(lambda: len(world.main.panes) == 2)
            await world.command("/theme nord")
            assert world.app.theme == "nord"
            await world.command("/theme nothing")
            assert world.app.theme == "nord"
            await world.command("/think")
            assert any("thinking" in notice for notice in world.notices)
            await world.command("/help temp")
            assert any("/temp" in notice for notice in world.notices)

    run(scenario())


def test_commands_without_a_conversation_say_so() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            for line in ("/copy", "/edit", "/regenerate", "/continue", "/tree", "/branch", "/alternatives", "/alternatives 99 x"):
                world.app.clear_notifications()
                await world.command(line)
                await world.until(lambda: world.notices, line)
            assert world.chat.is_empty

    run(scenario())


def test_quit() -> None:
    async def scenario() -> None:
        async with open_app() as world:
            await answered(world)
            await world.command("/quit")
            await world.until(lambda: world.app._exit)
            assert world.app.return_code == 0

    run(scenario())


def test_a_file_is_attached(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk\n", encoding="utf-8")

    async def scenario() -> None:
        async with open_app(directory=tmp_path) as world:
            await world.send("What is in @notes.txt ?")
            assert "buy milk" in world.contents()[0]
            await world.type("What is in @missing.txt ?")
            await world.pilot.press("enter")
            await world.until(lambda: any("missing.txt" in notice for notice in world.notices))
            assert "missing.txt" in world.pane.prompt.full_text()
            assert isinstance(world.main.query(Input).first(), Input)

    run(scenario())
