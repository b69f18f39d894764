"""Finding chats and messages while typing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from chatpaged.conversation import Conversation
from chatpaged.errors import StoreError
from chatpaged.session_list import ListEntry
from chatpaged.store import SearchHit, Store
from chatpaged.ui.screens.find import FindScreen
from tests.ui.conftest import Snapshot
from tests.ui.hosts import UNANSWERED, ScreenHost, shown_screen
from tests.ui.snapshots import until


class Searches:
    """A search that answers when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, asyncio.Future[list[SearchHit]]] = {}

    async def __call__(self, text: str) -> list[SearchHit]:
        self.asked.append(text)
        self.answers[text] = asyncio.get_running_loop().create_future()
        # As a thread would, it goes on although nobody waits for it any more.
        return await asyncio.shield(self.answers[text])

    def answer(self, text: str, *hits: SearchHit) -> None:
        self.answers[text].set_result(list(hits))


def hit(number: int, excerpt: str = "a little yeast and patience", title: str = "Bread without kneading") -> SearchHit:
    role = ("user", "assistant")[number % 2]
    created = time.time() - 3600 * (number + 1)
    return SearchHit(session=f"chat{number}", title=title, message=f"message{number}", role=role, created=created, excerpt=excerpt)


def chats() -> list[ListEntry]:
    now = time.time()
    return [
        ListEntry("rome", "A week in Rome", now - 2 * 3600, num_messages=12),
        ListEntry("yeast", "Yeast and its relatives", now - 3 * 86_400, num_messages=4),
    ]


def listed(app: ScreenHost) -> list[str]:
    screen = app.screen
    assert isinstance(screen, FindScreen)
    return [str(option.prompt) for option in screen.picks.options]


def status(app: ScreenHost) -> str:
    screen = app.screen
    assert isinstance(screen, FindScreen)
    return screen.status


@pytest.mark.parametrize(("size", "name"), [((100, 26), "find"), ((40, 12), "find-40x12")])
def test_titles_and_messages_are_found_while_typing(snapshot: Snapshot, size: tuple[int, int], name: str) -> None:
    async def main() -> None:
        search = Searches()
        async with shown_screen(lambda: FindScreen(search, chats()), size) as (app, pilot):
            assert len(listed(app)) == 2
            await pilot.press(*"yeast")
            await until(pilot, lambda: search.asked)
            search.answer("yeast", *(hit(number) for number in range(4)))
            await until(pilot, lambda: len(listed(app)) == 5)
            assert search.asked == ["yeast"], "what is being typed is not searched for letter by letter"
            assert listed(app)[0].startswith("Yeast and its relatives")
            assert listed(app)[2] == "Bread without kneading  Model · 2 h\na little yeast and patience"
            assert status(app) == "1 title · 4 messages"
            snapshot(app, name)
            await pilot.press("down", "down", "enter")
            await until(pilot, lambda: app.result == ("chat1", "message1"))
            assert app.focused is app.query_one("#behind")

    asyncio.run(main())


def test_what_was_found_for_an_older_text_never_hides_what_was_found_later() -> None:
    async def main() -> None:
        search = Searches()
        async with shown_screen(lambda: FindScreen(search)) as (app, pilot):
            await pilot.press(*"ye")
            await until(pilot, lambda: search.asked == ["ye"])
            await pilot.press(*"ast")
            await until(pilot, lambda: search.asked == ["ye", "yeast"])
            search.answer("yeast", hit(1))
            await until(pilot, lambda: len(listed(app)) == 1)
            search.answer("ye", *(hit(number) for number in range(9)))
            for _ in range(5):
                await pilot.pause()
            assert len(listed(app)) == 1

    asyncio.run(main())


def test_nothing_found_is_said() -> None:
    async def main() -> None:
        search = Searches()
        async with shown_screen(lambda: FindScreen(search, chats(), text="zebra")) as (app, pilot):
            await until(pilot, lambda: search.asked)
            search.answer("zebra")
            await until(pilot, lambda: status(app).startswith("Nothing found for “zebra”"))
            await pilot.press("enter")
            assert app.result is UNANSWERED
            await pilot.press("ctrl+u")
            await until(pilot, lambda: len(listed(app)) == 2)
            await pilot.press("escape")
            await until(pilot, lambda: app.result is None)

    asyncio.run(main())


def test_a_store_that_cannot_be_read_is_told_and_titles_are_found_all_the_same() -> None:
    async def main() -> None:
        async def fail(text: str) -> list[SearchHit]:
            raise StoreError("disk [b]full[/b]")

        async with shown_screen(lambda: FindScreen(fail, chats(), text="rome")) as (app, pilot):
            await until(pilot, lambda: "messages cannot be searched: disk [b]full[/b]" in status(app))
            assert len(listed(app)) == 1
            await pilot.click("#found", offset=(5, 0))
            await until(pilot, lambda: app.result == ("rome", None))

    asyncio.run(main())


def test_text_of_messages_is_shown_as_it_is() -> None:
    async def main() -> None:
        search = Searches()
        async with shown_screen(lambda: FindScreen(search, text="red")) as (app, pilot):
            await until(pilot, lambda: search.asked)
            search.answer("red", hit(0, "[red]not red[/red] \x1b[2J", "[bold]title"))
            await until(pilot, lambda: listed(app) and "[red]not red[/red] ␛[2J" in listed(app)[0])
            assert listed(app)[0].startswith("[bold]title")

    asyncio.run(main())


def test_a_real_store_is_searched(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(tmp_path / "store.db")
        conversation = Conversation(session_id="bread")
        conversation.add_user("How much yeast does a bread need?")
        message = conversation.add_assistant("Very little yeast.")
        store.add_session(conversation)

        async def search(text: str) -> list[SearchHit]:
            return store.search(text)

        async with shown_screen(lambda: FindScreen(search)) as (app, pilot):
            await pilot.press(*"little")
            await until(pilot, lambda: len(listed(app)) == 1)
            await pilot.press("enter")
            await until(pilot, lambda: app.result == ("bread", message.id))
        store.close()

    asyncio.run(main())
