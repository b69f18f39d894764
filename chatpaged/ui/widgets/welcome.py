"""What an empty chat shows: what can be done, and the chats that can be gone on with."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatpaged.session_list import ListEntry, spoken_age
from chatpaged.shown_text import shown
from chatpaged.ui.marked_text import MUTED
from chatpaged.ui.requests import OpenChat

_MOST = 5


class Welcome(VerticalScroll):
    """An empty chat."""

    DEFAULT_CSS = """
    Welcome {
        align: center middle;
        height: 1fr;
        padding: 0 2;
        & > * { max-width: 62; width: 1fr; }
        & #welcome-title { text-style: bold; color: $text-primary; margin-bottom: 1; }
        & #welcome-hint { color: $text-muted; margin-bottom: 1; }
        & #welcome-model { color: $text; margin-bottom: 1; }
        & OptionList { height: auto; max-height: 12; border: none; background: transparent; padding: 0; scrollbar-size-vertical: 1; }
        & OptionList:focus { border: none; }
        & OptionList > .option-list--option-highlighted { background: $foreground 8%; color: $text; }
        & OptionList:focus > .option-list--option-highlighted { background: $primary; color: $text; }
    }
    """

    def __init__(self) -> None:
        super().__init__(can_focus=False)
        self._lines: dict[str, Content] = {}

    def compose(self) -> ComposeResult:
        """Words and a list."""
        yield Static("What shall we talk about?", id="welcome-title")
        yield Static("", id="welcome-model", markup=False)
        yield Static(
            "Type below and press Enter. Start as many chats as you like: they all write at once, and share what they have in common.",
            id="welcome-hint",
        )
        yield Static("Go on with · Tab, then Enter", id="welcome-recent")
        yield OptionList(id="recent")

    def on_mount(self) -> None:
        """Nothing to go on with yet."""
        self.show_recent(())

    def show_model(self, text: str) -> None:
        """Says what the engine is doing, or which model answers."""
        self.query_one("#welcome-model", Static).update(Content(shown(text)))

    def show_recent(self, entries: Sequence[ListEntry]) -> None:
        """Shows the chats that were held last."""
        entries = tuple(entries[:_MOST])
        recent = self.query_one("#recent", OptionList)
        lines = {entry.id: self._line(entry) for entry in entries}
        if lines != self._lines:
            at = recent.highlighted or 0
            recent.set_options([Option(line, id=chat_id) for chat_id, line in lines.items()])
            recent.highlighted = min(at, len(lines) - 1) if lines else None
        self._lines = lines
        recent.display = self.query_one("#welcome-recent").display = bool(entries)

    @staticmethod
    def _line(entry: ListEntry) -> Content:
        count = f"{entry.num_messages} message{'' if entry.num_messages == 1 else 's'}"
        return Content.assemble("↩ ", shown(entry.title), (f"  {spoken_age(entry.updated)} · {count}", MUTED))

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(OpenChat(event.option_id))
