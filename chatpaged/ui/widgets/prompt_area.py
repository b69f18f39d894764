"""The text of the prompt. Long texts that are pasted stand in it as one unit each; see `chatpaged/prompt_chips.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.document._document import EditResult, Location, Selection
from textual.document._edit import Edit
from textual.geometry import Size
from textual.message import Message
from textual.widgets import TextArea

from chatpaged.pasted_text import clean_text
from chatpaged.prompt_chips import Chips, ChipSpan, is_long, is_too_long
from chatpaged.prompt_draft import Pasted, PromptDraft

MOST_ROWS = 10
_ELSEWHERE = frozenset({"f6", "f7", "ctrl+e", "end,ctrl+e"})


class PromptArea(TextArea, inherit_bindings=False):
    """A few rows of text that grow with what is in them."""

    DEFAULT_CSS = """
    PromptArea {
        height: auto;
        border: none;
        padding: 0 1;
        background: transparent;
        scrollbar-size-vertical: 1;
        & .prompt-area--chip {
            color: $text-accent;
            background: $accent-muted;
        }
        &:focus { border: none; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"prompt-area--chip"}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(entry for entry in TextArea.BINDINGS if isinstance(entry, Binding) and entry.key not in _ELSEWHERE),
        Binding("end", "cursor_line_end", "End of line", show=False),
        Binding("ctrl+e", "expand", "Show a pasted text", show=False),
    ]

    class Pasting(Message):
        """A text has become a chip."""

        def __init__(self, number: int, text: str) -> None:
            """Holds the chip's number and its text."""
            super().__init__()
            self.number = number
            self.text = text

    class TooLong(Message):
        """A pasted text cannot be shown here."""

    def __init__(self, on_key: Callable[[events.Key], bool], on_edge: Callable[[int], bool]) -> None:
        """Makes an empty one.

        Args:
            on_key: sees each key first; returns whether that was all.
            on_edge: is called when the cursor would leave at the top (-1) or bottom (1); returns whether that was all.
        """
        self._chips = Chips()  # already asked for while the base is being made
        super().__init__(tab_behavior="focus", highlight_cursor_line=False)
        self.cursor_blink = False
        self.match_cursor_bracket = False
        self._on_key_first = on_key
        self._on_edge = on_edge

    # --- what is in it -----------------------------------------------------------------------------------------------------

    @property
    def draft(self) -> PromptDraft:
        """What is typed, as plain data."""
        return self._chips.draft(self.document.text)

    def load(self, draft: PromptDraft, *, cursor_at_end_of_line: int = -1) -> None:
        """Shows another draft. What was there cannot be undone to.

        Args:
            draft: what to show.
            cursor_at_end_of_line: where the cursor goes; 0 is the first line, -1 the last.
        """
        self._chips.clear()
        text = self._marked(draft)
        self.load_text(text)
        row = cursor_at_end_of_line % self.document.line_count
        self.move_cursor((row, len(self.document.get_line(row))))

    def replace_all(self, draft: PromptDraft) -> None:
        """Shows another draft in a way that can be undone."""
        text = self._marked(draft)
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)

    def set_tokens(self, number: int, tokens: int) -> None:
        """Says how many tokens a chip has."""
        if self._chips.set_tokens(number, tokens):
            self._line_cache.clear()
            self.refresh()

    def uncounted(self) -> dict[int, str]:
        """Texts of chips whose tokens nobody has counted yet, by number."""
        return self._chips.uncounted()

    def chip_at_cursor(self) -> ChipSpan | None:
        """The chip the cursor touches; of two the one before it."""
        row, column = self.cursor_location
        return next((span for span in self._spans(row) if span.start <= column <= span.end), None)

    def _marked(self, draft: PromptDraft) -> str:
        """A draft as it stands in the document."""
        text, added = self._chips.marked(draft)
        for number, pasted in added.items():
            self.post_message(self.Pasting(number, pasted))
        return text

    def _spans(self, row: int) -> list[ChipSpan]:
        """The chips of a line."""
        return self._chips.spans(self.document.get_line(row)) if row < self.document.line_count else []

    # --- how it looks ------------------------------------------------------------------------------------------------------

    def get_line(self, line_index: int) -> Text:
        """A line as it is painted, as long as it is in the document."""
        spans = self._spans(line_index)
        if not spans:
            return super().get_line(line_index)
        line = self.document.get_line(line_index)
        style = self.get_component_rich_style("prompt-area--chip", partial=True)
        text, done = Text(end="", no_wrap=True), 0
        for span in spans:
            label = self._chips.label(span.number)
            text.append(line[done : span.start])
            text.append(label, style)
            text.append(" " * (span.end - span.start - len(label)))
            done = span.end
        return text.append(line[done:])

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the text needs, up to ten, and to a third of the terminal."""
        return max(1, min(MOST_ROWS, viewport.height // 3, super().get_content_height(container, viewport, width)))

    def _recompute_cursor_offset(self) -> None:
        # While Textual undoes, the cursor may for a moment be on a line that is no more; a scrollbar that goes then made it fail.
        self._cursor_offset = self.wrapped_document.location_to_offset(self.clamp_visitable(self.cursor_location))

    # --- cursor and edits keep out of chips -------------------------------------------------------------------------------------

    def validate_selection(self, selection: Selection) -> Selection:
        """Moves what would be inside a chip to one of its ends."""
        old = self.selection
        return Selection(self._outside(selection.start, old.start), self._outside(selection.end, old.end))

    def _outside(self, location: Location, old: Location) -> Location:
        row, column = location
        for span in self._spans(row):
            if span.has_inside(column):
                if old in {(row, span.start), (row, span.end)}:  # a step into it leads to the other end
                    return (row, span.end if old[1] == span.start else span.start)
                return (row, span.start if column - span.start <= span.end - column else span.end)
        return location

    def edit(self, edit: Edit) -> EditResult:
        """Changes the text. A chip is taken away whole or not at all."""
        bottom = self._beside(edit.bottom, after=True)
        top = self._beside(edit.top, after=edit.top == edit.bottom)
        if (top, bottom) != (edit.top, edit.bottom):
            edit = Edit(edit.text, top, bottom, edit.maintain_selection_offset)
        return super().edit(edit)

    def _beside(self, location: Location, *, after: bool) -> Location:
        """A place, or the end of the chip it is in."""
        row, column = location
        around = next((span for span in self._spans(row) if span.has_inside(column)), None)
        return location if around is None else (row, around.end if after else around.start)

    def get_cursor_word_left_location(self) -> Location:
        """One word to the left; a chip is a word."""
        row, column = self.cursor_location
        target = super().get_cursor_word_left_location()
        for span in reversed(self._spans(row)):
            if span.end <= column and target < (row, span.end):
                return (row, span.start if span.end == column else span.end)
        return target

    def get_cursor_word_right_location(self) -> Location:
        """One word to the right; a chip is a word."""
        row, column = self.cursor_location
        target = super().get_cursor_word_right_location()
        for span in self._spans(row):
            if column <= span.start and (row, span.start) < target:
                return (row, span.end if span.start == column else span.start)
        return target

    def action_delete_word_right(self) -> None:
        """Deletes what is selected, or up to the next word."""
        start, end = self.selection
        self._delete_via_keyboard(start, end if start != end else self.get_cursor_word_right_location())

    def get_text_range(self, start: Location, end: Location) -> str:
        """The text between two places, pasted texts in full."""
        return self._chips.draft(super().get_text_range(start, end)).text

    def action_cut(self) -> None:
        """Cuts what is selected, or the line."""
        start, end = self.selection
        result = self._delete_cursor_line() if start == end else self._delete_via_keyboard(start, end)
        if result is not None and result.replaced_text:
            self.app.copy_to_clipboard(self._chips.draft(result.replaced_text).text)

    def action_expand(self) -> None:
        """Shows a pasted text in full; where there is none, goes to the end of the line."""
        found = self.chip_at_cursor()
        if found is None:
            self.action_cursor_line_end()
            return
        text, row = self._chips.text(found.number), self.cursor_location[0]
        if is_too_long(text):
            self.post_message(self.TooLong())
            return
        self.replace(text, (row, found.start), (row, found.end), maintain_selection_offset=False)

    # --- keys and mouse ----------------------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        if self._on_key_first(event) or await self._run_binding(event.key):
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _run_binding(self, key: str) -> bool:
        """Does what a key is bound to here. Textual would do it once the key has bubbled up, and type letters that come after it first."""
        for binding in self._bindings.key_to_bindings.get(key, ()):
            if await self.app.run_action(binding.action, self):
                return True
        return False

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()  # Textual's own handler would insert it again
        self.paste(event.text)

    def paste(self, text: str) -> None:
        """Puts a text where the cursor is, as a chip if it is long."""
        text = clean_text(text)
        if is_long(text):
            text = self._marked(PromptDraft((Pasted(text),)))
        if text and (result := self._replace_via_keyboard(text, *self.selection)):
            self.move_cursor(result.end_location)

    def insert_line(self) -> None:
        """Begins a new line."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_paste(self) -> None:
        """Pastes what was copied in this application."""
        self.paste(self.app.clipboard)

    async def _on_click(self, event: events.Click) -> None:
        if event.chain == 2 and self.chip_at_cursor() is not None:
            self.action_expand()

    def action_cursor_up(self, select: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        """Goes up; from the first row to what was sent before."""
        if not self.navigator.is_first_wrapped_line(self.cursor_location):
            super().action_cursor_up(select)
        elif select:
            raise SkipAction  # another key of the application
        elif not self._on_edge(-1):
            super().action_cursor_up()

    def action_cursor_down(self, select: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        """Goes down; from the last row to what was sent later."""
        if not self.navigator.is_last_wrapped_line(self.cursor_location):
            super().action_cursor_down(select)
        elif select:
            raise SkipAction
        elif not self._on_edge(1):
            super().action_cursor_down()

    def action_cursor_page_up(self) -> None:
        """Goes up a page of a text that is longer than what is seen of it; else the page is the conversation's."""
        if self.virtual_size.height <= self.size.height:
            raise SkipAction
        super().action_cursor_page_up()

    def action_cursor_page_down(self) -> None:
        """The same downwards."""
        if self.virtual_size.height <= self.size.height:
            raise SkipAction
        super().action_cursor_page_down()
