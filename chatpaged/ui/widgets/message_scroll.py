"""Where messages scroll. What is read stays where it is, whatever happens above or below it; who is at the end stays at the end.

Textual lays children out, then tells the sizes, then clamps the scroll position; what scrolls in between works with a `max_scroll_y`
that is out of date. Here the position is decided within the layout itself, from the places that the children are about to get.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.widget import Widget


class MessageScroll(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Scrolls messages.

    Attributes:
        following: the end is in view, and stays there when something is added.
        held: a child at the top of the view, which stays there otherwise, and how many of its rows are above the view.
    """

    DEFAULT_CSS = """
    MessageScroll {
        height: 1fr;
        width: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        scrollbar-color: $foreground 15%;
        scrollbar-color-hover: $foreground 30%;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "go_home", "Beginning", id="messages_home", show=False),
        Binding("end", "go_end", "End", id="messages_end", show=False),
        Binding("pageup", "page_up", "Page up", id="messages_page_up", show=False),
        Binding("pagedown", "page_down", "Page down", id="messages_page_down", show=False),
    ]

    class Moved(Message):
        """Something else may be in view now."""

    class Wanted(Message):
        """Somebody wants to be at the beginning or at the end."""

        def __init__(self, *, end: bool) -> None:
            super().__init__()
            self.end = end

    def __init__(self) -> None:
        super().__init__()
        self.following = True
        self._places: Mapping[Widget, Region] = {}
        self._bottom = 0
        self._room = 0
        self._columns = 0
        self.held: tuple[Widget, int] | None = None

    # --- in the layout --------------------------------------------------------------------------------------------------

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:  # noqa: FBT001, FBT002 - Textual's interface
        """Gives the children their places, and decides what of them is seen."""
        result = super().arrange(size, optimal)
        if not optimal:
            self._settle(result, size)
        return result

    def _settle(self, result: DockArrangeResult, size: Size) -> None:
        before = self._places
        self._places = {placement.widget: placement.region for placement in result.placements}
        self._bottom = result.total_region.bottom
        self._room = size.height
        end = max(self._bottom - size.height, 0)
        self.following = self.following or not end  # all of it is in view, the end as well
        position = end if self.following else int(self.scroll_y)
        if not self.following and self.held is not None and self.held[0] in self._places:
            place = self._places[self.held[0]]
            if size.width != self._columns and self.held[1] > 0 and self.held[0] in before:
                # Other breaks of lines: what was read is about as far down in its message as it was.
                self.held = (self.held[0], self.held[1] * place.height // max(before[self.held[0]].height, 1))
            position = place.y + self.held[1]
        self._columns = size.width
        position = min(max(position, 0), end)
        if position != self.scroll_y or (position != self.scroll_target_y and self.following):
            self.set_reactive(Widget.scroll_y, float(position))
            self.set_reactive(Widget.scroll_target_y, float(position))
            if self.show_vertical_scrollbar:
                self.vertical_scrollbar.set_reactive(ScrollBar.position, float(position))

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:  # noqa: FBT001, FBT002
        # A second layout is for scrollbars that come and go, which take no room of their own here (`scrollbar-gutter`).
        changed = super()._size_updated(size, virtual_size, container_size, layout=layout and not self.show_vertical_scrollbar)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_y  # `arrange` has decided it before there was a scrollbar
        return changed

    # --- by the reader --------------------------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The reader moved."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            end = self._bottom - self._room
            self.following = max(new_value, self.scroll_target_y) >= end
            self.hold(None)
            self.post_message(self.Moved())

    def hold(self, widget: Widget | None, offset: int = 0) -> None:
        """Remembers what is at the top of the view, to keep it there.

        Args:
            widget: a child; None is what is there now.
            offset: how many of its rows are above the view.
        """
        if widget is not None:
            self.held = (widget, offset)
            return
        top = int(self.scroll_y)
        self.held = next(((child, top - region.y) for child, region in self._places.items() if region.bottom > top and region.height), None)

    def show_at_top(self, widget: Widget, offset: int = 0) -> None:
        """Scrolls a child to the top of the view.

        Args:
            widget: the child.
            offset: how many of its rows are to be above the view.
        """
        self.following = False
        self.held = (widget, offset)
        self.refresh(layout=True)

    def place(self, widget: Widget) -> Region | None:
        """Where a child is, counted from the beginning of all of them; None before it was laid out."""
        return self._places.get(widget)

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self.following = True
        self.held = None
        self.refresh(layout=True)
        self.post_message(self.Moved())

    def action_go_home(self) -> None:
        """To the very beginning."""
        self.post_message(self.Wanted(end=False))

    def action_go_end(self) -> None:
        """To the end."""
        self.post_message(self.Wanted(end=True))

    def action_page_up(self) -> None:
        """A page towards the beginning."""
        self.scroll_relative(y=-max(self.size.height - 2, 1), animate=False)

    def action_page_down(self) -> None:
        """A page towards the end."""
        self.scroll_relative(y=max(self.size.height - 2, 1), animate=False)
