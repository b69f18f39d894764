"""Pictures of the whole application. They were looked at before they were kept; one of them is that of the README."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chatpaged import session_list
from chatpaged.chat import ChatState
from chatpaged.conversation import Conversation
from chatpaged.engine_host import HostState
from chatpaged.setting_groups import AppSettings
from tests.scripted_backend import ScriptedBackend
from tests.ui.app_world import AppWorld, open_app, run
from tests.ui.conftest import Snapshot

NOON = 1_700_000_000.0
CODE = """A pool hands out blocks and counts who uses them:

```python
def share(self, block: int) -> int:
    self.users[block] += 1
    return block
```

- **share** makes a branch cheap,
- *copy on write* keeps it honest.
"""


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, and what depends on the speed of this machine, are the same in every run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(Conversation, "new_node", staticmethod(_node(Conversation.new_node)))
    monkeypatch.setattr(session_list, "age", lambda seconds: "now")


def _node(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(role: str, parent: str | None, content: str, now: float | None = None) -> Any:
        return replace(make(role, parent, content, now), created=NOON)

    return made


def steady(world: AppWorld) -> None:
    """Figures that differ from run to run, made the same."""
    for chat in world.workspace.chats.values():
        for node in chat.conversation.nodes:
            if node.usage.get("time_to_first_token"):
                usage = {**node.usage, "time_to_first_token": 0.18, "tokens_per_second": 62.0}
                chat.conversation.update(replace(node, usage=usage))
    world.workspace.look = _never  # type: ignore[method-assign]


async def _never() -> None:
    return None


async def shown_again(world: AppWorld) -> None:
    """The messages once more, with the figures that were made the same."""
    steady(world)
    world.pane._events.put_nowait(None)
    await world.until(lambda: world.pane._events.empty())
    await world.pilot.pause()


def test_empty(snapshot: Snapshot) -> None:
    async def scenario() -> None:
        async with open_app(size=(120, 36), settings=AppSettings(engine_panel=False)) as world:
            await world.until(lambda: world.workspace.host.state is HostState.READY)
            await world.until(lambda: "0 / 8,192" in str(world.pane.query_one("ContextMeter").render()))
            snapshot(world.app, "empty")

    run(scenario())


def test_loading(snapshot: Snapshot) -> None:
    backend = ScriptedBackend()
    backend.loaded.clear()

    async def scenario() -> None:
        async with open_app(backend, ready=False, size=(120, 36)) as world:
            await world.until(lambda: "loading scripted" in world.text_of("#model-name"))
            await world.until(lambda: "0 / 8,192" in str(world.pane.query_one("ContextMeter").render()))
            snapshot(world.app, "loading")

    run(scenario())


def test_streaming(snapshot: Snapshot) -> None:
    async def scenario() -> None:
        async with open_app(ScriptedBackend(CODE), size=(120, 36), settings=AppSettings(engine_panel=False)) as world:
            await world.send("An earlier question")
            await world.pilot.press("ctrl+n")
            world.backend.pace.hold()
            chat = await world.send("How does sharing work?", wait=False)
            await world.until(lambda: chat.state is ChatState.WAITING)
            world.backend.pace.let(400)
            await world.until(lambda: "def share" in (node.content if (node := chat.reply.current(0) if chat.reply else None) else ""))
            steady(world)
            chat._grown.clear()
            world.backend.pace.let(0)
            await world.until(lambda: chat.reply is not None and chat.reply.nodes)
            await asyncio.sleep(0)

    run(scenario())
