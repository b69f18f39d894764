"""The first row of a message: who, when, which of several versions, and what can be done with it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from chatpaged.shown_text import shown
from chatpaged.ui.widgets.message_item import MessageItem, Offer

_DAY = 24 * 60 * 60
_NAMES = {"user": "You", "system": "System", "tool": "Tool"}
_LONGEST_NAME = 32
_SHORTEST_NAME = 10


class MessageHeader(Widget):
    """Who wrote a message, and what can be done with it."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    MessageHeader {
        height: 1;
        width: 1fr;
        color: $text-muted;
        link-style: none;
        link-color: $text-muted;
        link-background-hover: transparent;
        link-color-hover: $text-accent;
        link-style-hover: bold underline;
    }
    """

    class Chosen(Message):
        """Something in it was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    offered: reactive[tuple[Offer, ...]] = reactive(())

    def __init__(self, item: MessageItem) -> None:
        super().__init__()
        self._item = item

    def show(self, item: MessageItem) -> None:
        """Says this of the message."""
        self._item = item
        self.refresh()

    def action_choose(self, action: str) -> None:
        """Something in it was clicked."""
        self.post_message(self.Chosen(action))

    def render(self) -> Content:
        """The row; what does not fit is left out, the time first."""
        width = self.size.width
        left, versions = self._who(), self._versions()
        right = self._actions(self.offered, labels=True)
        room = width - versions.cell_length - right.cell_length - 1
        if room < min(left.cell_length, _SHORTEST_NAME):
            right = self._actions(self.offered, labels=False)
            room = width - versions.cell_length - right.cell_length - 1
        if left.cell_length + self._time().cell_length <= room:
            left += self._time()
        left = left.truncate(max(room, 1), ellipsis=True) + versions
        row = left + " " * (width - left.cell_length - right.cell_length) + right
        return row.truncate(max(width, 1))

    def _who(self) -> Content:
        node = self._item.node
        name = _NAMES.get(node.role) or _short(node.model) or "Assistant"
        return Content.styled(shown(name), "bold $text-primary" if node.role == "user" else "bold $text-secondary")

    def _time(self) -> Content:
        created = self._item.node.created
        return Content.styled(f"  {moment(created)}", "$foreground 40%") if created else Content()

    def _versions(self) -> Content:
        item = self._item
        if item.siblings < 2:
            return Content()
        parts = [Content("  "), _click("◀", "previous"), Content(f" {item.position}/{item.siblings} "), _click("▶", "next")]
        return Content("").join(parts)

    @staticmethod
    def _actions(offered: Sequence[Offer], *, labels: bool) -> Content:
        parts: list[Content] = []
        for offer in offered:
            text = Content.styled(offer.key, "bold $text-accent") + (f" {offer.label}" if labels else "")
            parts.append(text.stylize(_click_style(offer.action)))
        return Content("  " if labels else " ").join(parts)


def moment(created: float, now: float | None = None) -> str:
    """When something was: the time if it was today, else the day as well."""
    then = time.localtime(created)
    current = time.time() if now is None else now
    clock = f"{then.tm_hour:02}:{then.tm_min:02}"
    today = time.localtime(current)
    if (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday):
        return clock
    day = f"{then.tm_mday} {time.strftime('%b', then)}"
    return f"{day} {clock}" if abs(current - created) < 300 * _DAY else f"{day} {then.tm_year}"


def _short(model: str) -> str:
    name = model.rstrip("/").rpartition("/")[2]
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _click(text: str, action: str) -> Content:
    return Content.styled(text, _click_style(action))


def _click_style(action: str) -> Style:
    return Style.from_meta({"@click": ("choose", (action,))})
