"""The text of the prompt. Long texts that are pasted stand in it as one unit each.

In the document such a chip is a run of characters that Unicode reserves for use inside programs, so that nobody can type or paste one:

```text
U+FDD0  its number in hexadecimal, U+FDE0..U+FDEF  filling, U+FDD2  U+FDD1
```

The run is as long as the longest label the chip can get; what is seen of it is painted over it. So wrapping, the cursor and undo
need to know nothing of chips, and a label can change without a change of the document. Cursor and edits keep out of the inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from chatpaged.prompt_draft import Pasted, PromptDraft

MOST_ROWS = 10
_OPEN, _CLOSE, _FILL = "\ufdd0", "\ufdd1", "\ufdd2"
_DIGITS = {format(value, "x"): chr(0xFDE0 + value) for value in range(16)}
_VALUES = str.maketrans({mark: digit for digit, mark in _DIGITS.items()})
_CHIP = re.compile(f"{_OPEN}([\ufde0-\ufdef]+){_FILL}*{_CLOSE}")
_LONGEST_COUNT = "312k"
# Below these a paste is text like any other.
_MOST_LINES = 20
_MOST_CHARACTERS = 2000
# Above these a text is too long for a few rows: laying it out would take a noticeable time.
_MOST_LINES_SHOWN = 1000
_MOST_CHARACTERS_SHOWN = 50_000
_ELSEWHERE = frozenset({"f6", "f7", "ctrl+e", "end,ctrl+e"})


def is_long(text: str) -> bool:
    """Whether a pasted text becomes a chip."""
    return len(text) > _MOST_CHARACTERS or text.count("\n") >= _MOST_LINES


def short_count(count: int) -> str:
    """A number in four characters at most: 999, 1.2k, 312k, 4.5M."""
    value, unit = float(count), ""
    for larger in "kMG":
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


@dataclass(slots=True)
class _Chip:
    """A pasted text, and how many tokens it has once that is known."""

    text: str
    tokens: int | None = None

    def label(self, *, longest: bool = False) -> str:
        """What is shown for it."""
        lines = self.text.count("\n") + (not self.text.endswith("\n"))
        size = f"{lines} lines" if lines > 1 else f"{short_count(len(self.text))} characters"
        if self.tokens is None and not longest:
            return f"[pasted {size}]"
        return f"[pasted {size}, {_LONGEST_COUNT if longest else short_count(self.tokens or 0)} tokens]"


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
        super().__init__(tab_behavior="focus", highlight_cursor_line=False)
        self.cursor_blink = False
        self.match_cursor_bracket = False
        self._on_key_first = on_key
        self._on_edge = on_edge
        self._chips: dict[int, _Chip] = {}
        self._next_number = 0

    # --- what is in it -----------------------------------------------------------------------------------------------------

    @property
    def draft(self) -> PromptDraft:
        """What is typed, as plain data."""
        return PromptDraft(tuple(self._parts(self.document.text)))

    def load(self, draft: PromptDraft, *, cursor_at_end_of_line: int = -1) -> None:
        """Shows another draft. What was there cannot be undone to.

        Args:
            draft: what to show.
            cursor_at_end_of_line: where the cursor goes; 0 is the first line, -1 the last.
        """
        self._chips.clear()
        text = "".join(self._marked(part.text) if isinstance(part, Pasted) else clean_text(part) for part in draft.parts)
        self.load_text(text)
        row = cursor_at_end_of_line % self.document.line_count
        self.move_cursor((row, len(self.document.get_line(row))))

    def replace_all(self, draft: PromptDraft) -> None:
        """Shows another draft in a way that can be undone."""
        text = "".join(self._marked(part.text) if isinstance(part, Pasted) else clean_text(part) for part in draft.parts)
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)

    def set_tokens(self, number: int, tokens: int) -> None:
        """Says how many tokens a chip has."""
        if number in self._chips:
            self._chips[number].tokens = tokens
            self._line_cache.clear()
            self.refresh()

    def uncounted(self) -> dict[int, str]:
        """Texts of chips whose tokens nobody has counted yet, by number."""
        return {number: chip.text for number, chip in self._chips.items() if chip.tokens is None}

    def chip_at_cursor(self) -> tuple[int, int, int] | None:
        """Number, start and end of the chip the cursor touches; the one before it first."""
        row, column = self.cursor_location
        touching = [span for span in self._spans(row) if span[1] <= column <= span[2]]
        return touching[0] if touching else None

    def _parts(self, text: str) -> Iterator[str | Pasted]:
        done = 0
        for match in _CHIP.finditer(text) if _OPEN in text else ():
            if match.start() > done:
                yield text[done : match.start()]
            yield Pasted(self._chips[_number(match)].text)
            done = match.end()
        if done < len(text):
            yield text[done:]

    def _expanded(self, text: str) -> str:
        return "".join(part.text if isinstance(part, Pasted) else part for part in self._parts(text))

    def _marked(self, text: str) -> str:
        """A new chip, as it stands in the document."""
        number, chip = self._next_number, _Chip(text)
        self._next_number += 1
        self._chips[number] = chip
        digits = "".join(_DIGITS[digit] for digit in format(number, "x"))
        filling = _FILL * (len(chip.label(longest=True)) - len(digits) - 2)
        self.post_message(self.Pasting(number, text))
        return f"{_OPEN}{digits}{filling}{_CLOSE}"

    def _spans(self, row: int) -> list[tuple[int, int, int]]:
        """Number, start and end of all chips of a line."""
        line = self.document.get_line(row) if row < self.document.line_count else ""
        return [(_number(match), *match.span()) for match in _CHIP.finditer(line)] if _OPEN in line else []

    # --- how it looks ------------------------------------------------------------------------------------------------------

    def get_line(self, line_index: int) -> Text:
        """A line as it is painted, as long as it is in the document."""
        line = self.document.get_line(line_index)
        if _OPEN not in line:
            return super().get_line(line_index)
        style = self.get_component_rich_style("prompt-area--chip", partial=True)
        text, done = Text(end="", no_wrap=True), 0
        for match in _CHIP.finditer(line):
            label = self._chips[_number(match)].label()
            text.append(line[done : match.start()])
            text.append(label, style)
            text.append(" " * (len(match[0]) - len(label)))
            done = match.end()
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
        for _, start, end in self._spans(row):
            if start < column < end:
                if old in {(row, start), (row, end)}:  # a step into it leads to the other end
                    return (row, end if old[1] == start else start)
                return (row, start if column - start <= end - column else end)
        return location

    def edit(self, edit: Edit) -> EditResult:
        """Changes the text. A chip is taken away whole or not at all."""
        top, bottom = edit.top, edit.bottom
        if top != bottom:
            top = (top[0], min([top[1], *(start for _, start, end in self._spans(top[0]) if start < top[1] < end)]))
        bottom = (bottom[0], max([bottom[1], *(end for _, start, end in self._spans(bottom[0]) if start < bottom[1] < end)]))
        if (top, bottom) != (edit.top, edit.bottom):
            edit = Edit(edit.text, top if edit.top != edit.bottom else bottom, bottom, edit.maintain_selection_offset)
        return super().edit(edit)

    def get_cursor_word_left_location(self) -> Location:
        """One word to the left; a chip is a word."""
        row, column = self.cursor_location
        target = super().get_cursor_word_left_location()
        for _, start, end in reversed(self._spans(row)):
            if end <= column and target < (row, end):
                return (row, start if end == column else end)
        return target

    def get_cursor_word_right_location(self) -> Location:
        """One word to the right; a chip is a word."""
        row, column = self.cursor_location
        target = super().get_cursor_word_right_location()
        for _, start, end in self._spans(row):
            if column <= start and (row, start) < target:
                return (row, end if start == column else start)
        return target

    def action_delete_word_right(self) -> None:
        """Deletes what is selected, or up to the next word."""
        start, end = self.selection
        self._delete_via_keyboard(start, end if start != end else self.get_cursor_word_right_location())

    def get_text_range(self, start: Location, end: Location) -> str:
        """The text between two places, pasted texts in full."""
        return self._expanded(super().get_text_range(start, end))

    def action_cut(self) -> None:
        """Cuts what is selected, or the line."""
        start, end = self.selection
        result = self._delete_cursor_line() if start == end else self._delete_via_keyboard(start, end)
        if result is not None and result.replaced_text:
            self.app.copy_to_clipboard(self._expanded(result.replaced_text))

    def action_expand(self) -> None:
        """Shows a pasted text in full; where there is none, goes to the end of the line."""
        found = self.chip_at_cursor()
        if found is None:
            self.action_cursor_line_end()
            return
        number, start, end = found
        text, row = self._chips[number].text, self.cursor_location[0]
        if len(text) > _MOST_CHARACTERS_SHOWN or text.count("\n") > _MOST_LINES_SHOWN:
            self.post_message(self.TooLong())
            return
        self.replace(text, (row, start), (row, end), maintain_selection_offset=False)

    # --- keys and mouse ----------------------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        if self._on_key_first(event):
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()  # Textual's own handler would insert it again
        self.paste(event.text)

    def paste(self, text: str) -> None:
        """Puts a text where the cursor is, as a chip if it is long."""
        text = clean_text(text)
        if text and (result := self._replace_via_keyboard(self._marked(text) if is_long(text) else text, *self.selection)):
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


def _number(match: re.Match[str]) -> int:
    return int(match[1].translate(_VALUES), 16)
