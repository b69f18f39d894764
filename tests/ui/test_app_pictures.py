"""Pictures of the whole application. They were looked at before they were kept; one of them is that of the README."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from chatpaged import session_list
from chatpaged.chat import Chat, ChatState
from chatpaged.conversation import Conversation
from chatpaged.engine import llm_engine
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.setting_groups import AppSettings
from chatpaged.ui.widgets.chat_pane import ChatPane
from chatpaged.ui.widgets.code_block import CodeBlock
from chatpaged.ui.widgets.context_meter import ContextMeter
from chatpaged.ui.widgets.engine_panel import EnginePanel
from chatpaged.workspace import Workspace
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run
from tests.ui.conftest import Snapshot

T = TypeVar("T")
NOON = 1_700_000_000.0
STEP = 0.016
SYSTEM = "You are a patient guide to the inner life of an inference engine. Answer in Markdown, briefly, with an example where one helps."
CODE = """A pool hands out blocks and counts who uses them:

```python
def share(self, block: int) -> int:
    self.users[block] += 1   # nobody copies anything
    return block
```

- **share** makes a branch cheap,
- *copy on write* keeps it honest.

The second chat beside this one begins with the same words, so it holds the same blocks: they are green in the map at the right, and were
read **once**.
"""


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are the same in every run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(Conversation, "new_node", staticmethod(_at_noon(Conversation.new_node)))
    monkeypatch.setattr(session_list, "age", lambda seconds: "now")
    monkeypatch.setattr(Chat, "speed", property(lambda chat: 62.0 if chat.state is ChatState.GENERATING else 0.0))


def _at_noon(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(role: str, parent: str | None, content: str, now: float | None = None) -> Any:
        return replace(make(role, parent, content, now), created=NOON)

    return made


def clock(monkeypatch: pytest.MonkeyPatch, backend: ScriptedBackend) -> None:
    """The engine's clock counts steps."""
    monkeypatch.setattr(llm_engine, "time", SimpleNamespace(perf_counter=lambda: backend.pace.begun * STEP))


async def hold_still(world: AppWorld, chats: list[Chat], steps: int) -> None:
    """Lets an engine that is held do so many steps, and has it looked at where it waits for the next one."""
    begun = world.backend.pace.begun
    world.backend.pace.let(steps)
    await world.until(lambda: world.backend.pace.begun == begun + steps, "the steps")
    await world.until(lambda: all(chat.state is ChatState.GENERATING for chat in chats), "the answers")
    llm = world.backend.llm
    assert llm is not None

    async def call(function: Callable[[LLMEngine], T]) -> T:
        return function(llm)

    world.workspace.host.engine.call = call  # type: ignore[method-assign]  # its thread waits for the next step
    world.workspace.look = partial(Workspace.look, world.workspace)  # type: ignore[method-assign]
    await settle(world)


async def settle(world: AppWorld) -> None:
    """Waits until everything that is known is shown."""
    for pane in world.main.panes:
        pane.count_soon()
        await world.until(partial(is_settled, pane), "the pane")
    if world.main.query_one(EnginePanel).display:
        world.main._tick()
        await world.until(lambda: not world.main._is_looking)
    for block in world.main.query(CodeBlock):  # when code was coloured last depends on how quickly it has grown
        await world.until(lambda block=block: not block._colouring)  # type: ignore[misc]
        block._coloured = ""
        block._colour()
        await world.until(lambda block=block: not block._colouring)  # type: ignore[misc]
    world.app.clear_notifications()
    for field in world.app.screen.query("Input, TextArea"):
        field.cursor_blink = False  # type: ignore[attr-defined] # both have it
    await world.pilot.pause()


def is_settled(pane: ChatPane) -> bool:
    """Whether all of the answer is there, and everything is counted."""
    reply = pane.chat.reply
    answer = reply.current(0) if reply is not None and pane.chat.is_busy else None
    mounted = pane.messages.mounted
    shown = answer is None or (bool(mounted) and mounted[-1].text == answer.content)
    return (
        shown
        and not pane.messages._busy.locked()
        and not pane.messages._wake.is_set()
        and pane._count_timer is None
        and (pane.workspace.host.model is None or "/ 8,192" in str(pane.query_one(ContextMeter).render()))
    )


async def nothing() -> None:
    """What is seen of the engine meanwhile."""


async def begin(world: AppWorld, texts: list[str], *, system: str | None = None) -> list[Chat]:
    """Asks a question in each of several new chats, in one step of the engine."""
    await world.until(lambda: not world.main._is_looking)
    world.workspace.look = nothing  # type: ignore[method-assign]  # a look would wait for the next step
    world.backend.pace.hold()
    chats = []
    for text in texts:
        if not world.chat.is_empty:
            await world.pilot.press("ctrl+n")
        if system is not None:
            world.chat.conversation.system = system
        chats.append(await world.send(text, wait=False))
        await world.until(lambda: world.chat.state is ChatState.WAITING)
    return chats


def test_empty(snapshot: Snapshot) -> None:
    async def scenario() -> None:
        async with open_app(size=(120, 36), settings=AppSettings(engine_panel=False)) as world:
            await settle(world)
            snapshot(world.app, "empty")

    run(scenario())


def test_loading(snapshot: Snapshot) -> None:
    backend = ScriptedBackend()
    backend.loaded.clear()

    async def scenario() -> None:
        async with open_app(backend, ready=False, size=(120, 36)) as world:
            await world.until(lambda: "loading scripted" in world.text_of("#model-name"))
            await settle(world)
            snapshot(world.app, "loading")

    run(scenario())


def test_streaming(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(CODE, num_blocks=400, step_tokens=512)
    clock(monkeypatch, backend)

    async def scenario() -> None:
        async with open_app(backend, size=(140, 40)) as world:
            chats = await begin(world, ["What is a block table?", "Why is nothing copied?", "How does sharing work?"], system=SYSTEM)
            await hold_still(world, chats, 300)
            snapshot(world.app, "streaming")
            for theme in ("textual-light",):
                world.app.theme = theme
                await settle(world)
                snapshot(world.app, "light")

    run(scenario())


def test_small_window(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(CODE, num_blocks=400, step_tokens=512)
    clock(monkeypatch, backend)

    async def scenario() -> None:
        async with open_app(backend, size=(60, 20)) as world:
            chats = await begin(world, ["How does sharing work?"])
            await hold_still(world, chats, 120)
            snapshot(world.app, "60x20")

    run(scenario())


def test_monochrome(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    backend = ScriptedBackend(CODE, num_blocks=400, step_tokens=512)
    clock(monkeypatch, backend)

    async def scenario() -> None:
        async with open_app(backend, size=(140, 40)) as world:
            chats = await begin(world, ["Why is nothing copied?", "How does sharing work?"], system=SYSTEM)
            await hold_still(world, chats, 200)
            snapshot(world.app, "monochrome")

    run(scenario())


def test_notice(snapshot: Snapshot) -> None:
    async def scenario() -> None:
        async with open_app(size=(120, 36), settings=AppSettings(engine_panel=False), notifications=True) as world:
            await settle(world)
            await world.command("/nosuch")
            await world.until(lambda: world.app.screen.query("Toast"), "the notice")
            await world.until(lambda: " 7 / 8,192" in str(world.pane.query_one(ContextMeter).render()), "the meter")
            snapshot(world.app, "notice")

    run(scenario())
