"""A dialog in which a list is filtered by what is typed."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from chatpaged.shown_text import shown
from chatpaged.ui.screens.dialog import Dialog, ResultT
from chatpaged.ui.widgets.pick_list import PickList


class FilterDialog(Dialog[ResultT]):
    """A field, a list, and a line that says what is listed. The field keeps the focus; arrows move in the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move('cursor_up')", show=False),
        Binding("down", "move('cursor_down')", show=False),
        Binding("pageup", "move('page_up')", show=False),
        Binding("pagedown", "move('page_down')", show=False),
    ]
    DEFAULT_CSS = """
    FilterDialog {
        align: center top;
        & > Frame { margin-top: 2; }
        &.-narrow > Frame { margin-top: 0; }
        & PickList { margin-top: 1; }
        & #status { color: $text-muted; margin-top: 1; padding: 0 1; height: auto; }
        &.-narrow PickList, &.-narrow #status { margin-top: 0; }
    }
    """

    def __init__(self, heading: str, *, text: str = "", placeholder: str = "") -> None:
        """A dialog.

        Args:
            heading: what it is.
            text: what is in the field at first.
            placeholder: what is in the field while it is empty.
        """
        super().__init__(heading)
        self._field = Input(text, placeholder=placeholder, id="looked-for", select_on_focus=True)
        self._list = PickList(id="found", markup=False)
        self._status = Static("", id="status", markup=False)

    def compose_body(self) -> ComposeResult:
        """The field, the list and the line."""
        yield self._field
        yield self._list
        yield self._status

    def on_mount(self) -> None:
        """Begins with what is in the field."""
        self._field.focus()
        self.filter(self._field.value)

    @property
    def picks(self) -> PickList:
        """The list."""
        return self._list

    @property
    def status(self) -> str:
        """What the line says."""
        return str(self._status.content)

    def filter(self, text: str) -> None:
        """Lists what fits a text."""
        raise NotImplementedError

    def choose(self, option_id: str) -> None:
        """Takes an option."""
        raise NotImplementedError

    def choose_text(self, text: str) -> None:
        """Takes what is typed, where nothing is listed."""

    def say(self, text: str, *, failed: bool = False) -> None:
        """Says something in the line at the bottom."""
        self._status.update(Content(shown(text)))
        self._status.set_class(failed, "failed")
        self._status.display = bool(text)

    def action_open(self) -> None:
        """Takes what the cursor is on."""
        if self._list.chosen_id is not None:
            self.choose(self._list.chosen_id)

    def action_move(self, what: str) -> None:
        """Moves in the list."""
        getattr(self._list, f"action_{what}")()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.filter(event.value)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._list.chosen_id is not None:
            self.action_open()
        elif event.value.strip():
            self.choose_text(event.value.strip())

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.choose(event.option_id)
