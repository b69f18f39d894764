"""A list that is moved in while something else has the focus, such as the field that filters it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import OptionList
from textual.widgets.option_list import Option


class PickList(OptionList, can_focus=False):
    """Options for the mouse, and for keys that are pressed elsewhere."""

    DEFAULT_CSS = """
    PickList {
        height: auto;
        border: none;
        padding: 0;
        background: transparent;
        scrollbar-size-vertical: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        & > .option-list--option { padding: 0 1; }
        & > .option-list--option-highlighted { background: $primary; color: $text; text-style: none; }
        & > .option-list--option-hover { background: $foreground 8%; }
        &:focus, &:hover { border: none; }
    }
    """

    def show(self, options: Sequence[Option], keep: str | None = None) -> None:
        """Shows these options, with the cursor on one of them.

        Args:
            options: each with an id.
            keep: id of the one the cursor is to be on; the first one if it is not there.
        """
        self.set_options(options)
        place = next((place for place, option in enumerate(options) if keep is not None and option.id == keep), 0)
        self.highlighted = place if options else None

    @property
    def chosen_id(self) -> str | None:
        """The id of the option that the cursor is on."""
        return self.get_option_at_index(self.highlighted).id if self.highlighted is not None and self.option_count else None
