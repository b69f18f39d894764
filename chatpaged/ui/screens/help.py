"""The cheat sheet: keys, as the user has set them, and commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from chatpaged.key_help import HelpGroup, HelpLine, fitting_groups, help_groups
from chatpaged.shown_text import shown
from chatpaged.ui.marked_text import marked
from chatpaged.ui.screens.dialog import Dialog, Hint

_MOST_KEYS = 18
"""Cells for what is pressed; what is longer takes several rows."""


class HelpCard(Static):
    """One group."""

    DEFAULT_CSS = """
    HelpCard {
        width: 1fr;
        height: auto;
        padding: 0 1;
        border: round $foreground 15%;
        border-title-color: $text-accent;
        border-title-style: bold;
    }
    """

    def __init__(self, group: HelpGroup, looked_for: str) -> None:
        """Shows a group.

        Args:
            group: what is in it.
            looked_for: words that are marked.
        """
        super().__init__(markup=False)
        self.border_title = Content(group.title)
        self._group = group
        self._looked_for = looked_for

    def on_resize(self) -> None:
        """Lines are as wide as there is room."""
        self.update(self.lines(self.content_size.width))

    def lines(self, width: int) -> Content:
        """The lines as they are shown."""
        pressed = [_keys(line) for line in self._group.lines]
        longest = max(len(key) for keys in pressed for key in keys.split())
        keys = max(longest, min(max(map(len, pressed)), _MOST_KEYS, width // 3))
        return Content("\n").join(part for line in self._group.lines for part in self._line(line, keys, width))

    def _line(self, line: HelpLine, keys: int, width: int) -> Iterator[Content]:
        """What is pressed at the left, what it does at the right of it, in as many rows as it takes."""
        pressed = Content.styled(shown(_keys(line)), "bold $text-primary").wrap(keys)
        texts = marked(line.text, self._looked_for).wrap(max(10, width - keys - 2))
        for left, right in zip_longest(pressed, texts, fillvalue=Content()):
            yield left.rstrip().truncate(keys + 2, pad=True) + right


def _halves(groups: Sequence[HelpGroup]) -> tuple[Sequence[HelpGroup], Sequence[HelpGroup]]:
    """Groups for the left and the right column, about as many lines in each."""
    heights = [len(group.lines) + 2 for group in groups]
    cut = min(range(1, len(groups) + 1), key=lambda at: abs(sum(heights[:at]) - sum(heights[at:])), default=0)
    return groups[:cut], groups[cut:]


def _keys(line: HelpLine) -> str:
    return "  ".join(line.keys)


class HelpScreen(Dialog[None]):
    """The screen."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - so declared by Textual
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll('scroll_up')", show=False),
        Binding("down", "scroll('scroll_down')", show=False),
        Binding("pageup", "scroll('page_up')", show=False),
        Binding("pagedown", "scroll('page_down')", show=False),
        Binding("f1", "close", show=False),
    ]
    HINTS: ClassVar[tuple[Hint, ...]] = (("Esc", "close", "close"), ("↑↓", "scroll", ""), ("type", "to filter", ""))
    DEFAULT_CSS = """
    HelpScreen {
        & > Frame { width: 94%; max-width: 130; height: 94%; }
        &.-narrow > Frame { height: 100%; }
        & #sheet { height: 1fr; margin-top: 1; scrollbar-size-vertical: 1; }
        &.-narrow #sheet { margin-top: 0; }
        & #cards { height: auto; }
        & #cards > Vertical { width: 1fr; height: auto; }
        &.-narrow #cards { layout: vertical; }
        & #no-key { padding: 0 1; height: auto; color: $text-muted; }
    }
    """

    def __init__(self, keys: Mapping[str, str], commands: Sequence[tuple[str, str]] = (), *, text: str = "") -> None:
        """Shows keys and commands.

        Args:
            keys: by the names of their settings.
            commands: how they are typed, and what each does.
            text: what to look for at first.
        """
        super().__init__("Keys and commands")
        self._groups = help_groups(keys, commands)
        self._field = Input(text, placeholder="Type to filter", id="help-filter", select_on_focus=True)
        self._columns = (Vertical(), Vertical())
        self._nothing = Static("No key and no command does that.", id="no-key", markup=False)

    def compose_body(self) -> ComposeResult:
        """The filter and the cards."""
        yield self._field
        with VerticalScroll(id="sheet", can_focus=False):
            with Horizontal(id="cards"):
                yield from self._columns
            yield self._nothing

    async def on_mount(self) -> None:
        """Shows what fits."""
        self._field.focus()
        await self.filter(self._field.value)

    async def filter(self, text: str) -> None:
        """Shows only lines in which all words occur."""
        groups = fitting_groups(self._groups, text)
        async with self.batch():
            for column, part in zip(self._columns, _halves(groups), strict=True):
                await column.remove_children()
                await column.mount_all([HelpCard(group, text) for group in part])
                column.display = bool(part)
        self._nothing.display = not groups

    @on(Input.Changed)
    async def _changed(self, event: Input.Changed) -> None:
        event.stop()
        await self.filter(event.value)

    def action_scroll(self, what: str) -> None:
        """Scrolls the cards."""
        getattr(self.query_one("#sheet"), f"action_{what}")()
