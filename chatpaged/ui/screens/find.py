"""Finds chats by their titles and messages by their text, while it is being typed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.content import Content
from textual.widgets.option_list import Option

from chatpaged.amounts import counted
from chatpaged.errors import ChatpagedError
from chatpaged.session_list import ListEntry, age, spoken_age
from chatpaged.shown_text import shown
from chatpaged.store import SearchHit
from chatpaged.text_matches import has_words
from chatpaged.ui.background import instead
from chatpaged.ui.marked_text import MUTED, marked
from chatpaged.ui.screens.dialog import Hint
from chatpaged.ui.screens.filter_dialog import FilterDialog
from chatpaged.ui.short_texts import role_name

Search = Callable[[str], Awaitable[Sequence[SearchHit]]]
Found = tuple[str, str | None]
"""A chat's id, and the message's where a message was found."""
_PAUSE = 0.12
"""Seconds without a key before messages are searched."""
_MOST_TITLES = 8


class FindScreen(FilterDialog[Found]):
    """The screen. Its result is what was chosen."""

    HINTS: ClassVar[tuple[Hint, ...]] = (("Enter", "open", "open"), ("↑↓", "choose", ""), ("Esc", "close", "close"))
    DEFAULT_CSS = """
    FindScreen {
        & > Frame { height: 90%; }
        &.-narrow > Frame { height: 100%; }
        & PickList { height: 1fr; text-wrap: wrap; }
    }
    """

    def __init__(self, search: Search, chats: Sequence[ListEntry] = (), text: str = "") -> None:
        """Begins to look for something.

        Args:
            search: finds messages; what it finds for an older text is never shown over what was found for a newer one.
            chats: those whose titles are looked at.
            text: what to look for at first.
        """
        super().__init__("Find", text=text, placeholder="Words in titles and messages")
        self._search = search
        self._chats = chats
        self._found: dict[str, Found] = {}

    def filter(self, text: str) -> None:
        """Looks for a text; what is still being searched for an older one is given up."""
        if not text.strip():
            self.workers.cancel_group(self, "search")
            self._show_recent()
            return
        instead(self, "search", self._look_for, text)

    def choose(self, option_id: str) -> None:
        """Opens what was found."""
        self.dismiss(self._found[option_id])

    async def _look_for(self, text: str) -> None:
        await asyncio.sleep(_PAUSE)
        self.say("searching…")
        try:
            hits = await self._search(text)
        except ChatpagedError as error:
            self._show([], text)
            self.say(f"messages cannot be searched: {error}", failed=True)
            return
        if text == self._field.value:
            self._show(hits, text)

    def _show_recent(self) -> None:
        """What can be gone back to before anything is typed."""
        self.picks.show(self._list_titles(self._chats, ""))
        self.say("" if self._found else "There are no chats yet.")

    def _show(self, hits: Sequence[SearchHit], text: str) -> None:
        titles = [chat for chat in self._chats if has_words(chat.title, text)]
        options = self._list_titles(titles[:_MOST_TITLES], text)
        now = time.time()
        for hit in hits:
            option_id = f"{hit.session}/{hit.message}"
            self._found[option_id] = (hit.session, hit.message)
            options.append(Option(_hit_line(hit, text, now), id=option_id))
        self.picks.show(options)
        if options:
            chats = f"{counted(len(titles), 'title')} · " if titles else ""
            self.say(f"{chats}{counted(len(hits), 'message')}")
        else:
            self.say(f"Nothing found for “{text.strip()}”. Every word has to occur in the same message, or in a title.")

    def _list_titles(self, chats: Sequence[ListEntry], text: str) -> list[Option]:
        """Begins anew with chats whose titles fit."""
        now = time.time()
        self._found = {chat.id: (chat.id, None) for chat in chats}
        return [Option(_title_line(chat, text, now), id=chat.id) for chat in chats]


def _title_line(chat: ListEntry, text: str, now: float) -> Content:
    title = marked(" ".join(chat.title.split()), text, "underline").stylize_before("bold")
    return Content.assemble(title, "\n", (f"{spoken_age(chat.updated, now)} · {counted(chat.num_messages, 'message')}", MUTED))


def _hit_line(hit: SearchHit, text: str, now: float) -> Content:
    title = Content.styled(shown(" ".join(hit.title.split())) or "New chat", "bold")
    about = f"  {role_name(hit.role)} · {age(max(0.0, now - hit.created))}"
    return Content.assemble(title, (about, MUTED), "\n", marked(hit.excerpt, text))
