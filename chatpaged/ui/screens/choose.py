"""One thing of a list: a model, a preset, a theme; or what is typed, where that may be anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatpaged.choices import Choice, fitting_choices
from chatpaged.errors import ChatpagedError
from chatpaged.shown_text import shown
from chatpaged.ui.background import beside
from chatpaged.ui.marked_text import MUTED, marked
from chatpaged.ui.screens.dialog import Hint
from chatpaged.ui.screens.filter_dialog import FilterDialog

Load = Callable[[], Sequence[Choice]]


class ChooseScreen(FilterDialog[str]):
    """The screen. Its result is the id of what was chosen, or what was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+enter,ctrl+j", "take_text", show=False)]
    HINTS: ClassVar[tuple[Hint, ...]] = (("Enter", "choose", "open"), ("↑↓", "move", ""), ("Esc", "close", "close"))
    DEFAULT_CSS = """
    ChooseScreen {
        & > Frame { height: 80%; }
        &.-narrow > Frame { height: 100%; }
        & #columns { height: 1fr; margin-top: 1; }
        & PickList { width: 1fr; height: 1fr; margin: 0; }
        & #details { scrollbar-size-vertical: 1; }
        & #details { width: 1fr; height: 1fr; margin-left: 2; padding: 0 1; border-left: solid $foreground 20%; }
        &.-narrow #columns { layout: vertical; margin-top: 0; }
        &.-narrow #details { height: auto; max-height: 40%; margin-left: 0; border-left: none; }
    }
    """

    def __init__(
        self,
        heading: str,
        options: Sequence[Choice] | Load,
        *,
        current: str | None = None,
        free_text: str = "",
        preview: Callable[[str], None] | None = None,
    ) -> None:
        """Offers something.

        Args:
            heading: what is chosen.
            options: what there is, or what tells it; that is called in a thread, as it reads files.
            current: id of what is chosen now.
            free_text: what may be typed instead of choosing, such as `an id of the hub or a path`; empty allows the list only.
            preview: called with what the cursor is on, such as a theme; when nothing is chosen, with what was before.
        """
        placeholder = f"Filter, or type {free_text}" if free_text else "Filter"
        super().__init__(heading, placeholder=placeholder)
        self._options = options
        self._choices: dict[str, Choice] | None = None
        self._current = current
        self._free_text = free_text
        self._preview = preview
        self._details = Static("", markup=False)

    def compose_body(self) -> ComposeResult:
        """The field, the list with what is known of one, and the line."""
        yield self._field
        with Horizontal(id="columns"):
            yield self._list
            with VerticalScroll(id="details", can_focus=False):
                yield self._details
        yield self._status

    def on_mount(self) -> None:
        """Begins to read what there is."""
        self._field.focus()
        if callable(self._options):
            self.say("looking…")
            beside(self, "load", self._load, self._options)
        else:
            self._take(self._options)

    async def _load(self, load: Load) -> None:
        try:
            choices = await asyncio.to_thread(load)
        except (ChatpagedError, OSError) as error:
            self._take(())
            self.say(str(error), failed=True)
        else:
            self._take(choices)

    def _take(self, choices: Sequence[Choice]) -> None:
        self._choices = {choice.id: choice for choice in choices}
        self.filter(self._field.value)

    def filter(self, text: str) -> None:
        """Lists what fits."""
        if self._choices is None:
            return
        fitting = fitting_choices(self._choices.values(), text)
        options = [Option(self._line(choice, text), id=choice.id) for choice in fitting]
        self.picks.show(options, None if text.strip() else self._current)
        if not fitting:
            self._details.update("")
        self.say(self._says(text, fitting))

    def _says(self, text: str, fitting: Sequence[Choice]) -> str:
        if self._free_text and text.strip():
            typed = f"“{text.strip()}”"
            return f"Ctrl+J takes {typed} as it is." if fitting else f"Enter takes {typed} as {self._free_text}."
        if fitting or not text.strip():
            return "" if self._choices else "There is nothing to choose from."
        return f"Nothing is called “{text.strip()}”."

    def _line(self, choice: Choice, text: str) -> Content:
        mark = "● " if choice.id == self._current else "  "
        warning = ("  !", "$text-warning") if choice.warning else ""
        return Content.assemble(mark, marked(" ".join(choice.label.split()), text), (f"  {shown(choice.note)}", MUTED), warning)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        choice = (self._choices or {}).get(event.option_id or "")
        if choice is not None:
            self._details.update(_short_details(choice) if self.has_class("-narrow") else _details(choice))
            if self._preview is not None:
                self._preview(choice.id)

    def choose(self, option_id: str) -> None:
        """Takes one."""
        self.dismiss(option_id)

    def choose_text(self, text: str) -> None:
        """Takes what is typed."""
        if self._free_text:
            self.dismiss(text)

    def action_take_text(self) -> None:
        """Takes what is typed although something is listed."""
        if self._field.value.strip():
            self.choose_text(self._field.value.strip())

    def action_close(self) -> None:
        """Leaves everything as it was."""
        if self._preview is not None and self._current is not None:
            self._preview(self._current)
        super().action_close()


def _short_details(choice: Choice) -> Content:
    """What is known of one, where there is little room."""
    warning = (f"! {shown(choice.warning)} ", "$text-warning") if choice.warning else ""
    known = " · ".join(f"{name} {value}" for name, value in choice.details)
    return Content.assemble(warning, (shown(known), MUTED), f" {shown(choice.text)}" if choice.text else "")


def _details(choice: Choice) -> Content:
    width = max((len(name) for name, _ in choice.details), default=0)
    lines = [Content.styled(shown(choice.label), "bold"), Content("")]
    lines += [Content.assemble((f"{name:<{width}}  ", MUTED), shown(value)) for name, value in choice.details]
    if choice.warning:
        lines += [Content(""), Content.styled(f"! {shown(choice.warning)}", "$text-warning")]
    if choice.text:
        lines += [Content(""), Content(shown(choice.text))]
    return Content("\n").join(lines)
