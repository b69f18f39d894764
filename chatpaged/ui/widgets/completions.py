"""The list of what may be chosen while typing, above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from chatpaged.pasted_text import one_line
from chatpaged.prompt_completion import Candidate

_MOST_ROWS = 8
_BORDER = 2
_FRAME = 7  # border, padding and scrollbar beside the text
_HELP = 24  # cells that words about a candidate should have


class Completions(OptionList, can_focus=False):
    """A list that never takes the focus: keys stay with the prompt, which moves the mark."""

    DEFAULT_CSS = """
    Completions {
        display: none;
        overlay: screen;
        constrain: inside;
        width: auto;
        min-width: 24;
        max-width: 100%;
        height: auto;
        padding: 0 1;
        background: $background;
        border: round $primary 60%;
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-color: $primary 60%;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        & > .option-list--option-highlighted {
            color: $block-cursor-foreground;
            background: $block-cursor-background;
            text-style: bold;
        }
    }
    """

    class Chosen(Message):
        """One was clicked."""

        def __init__(self, candidate: Candidate) -> None:
            """Holds it."""
            super().__init__()
            self.candidate = candidate

    def __init__(self) -> None:
        """Makes a list that is not shown."""
        super().__init__(markup=False)
        self._candidates: list[Candidate] = []
        self._width = 0

    @property
    def is_open(self) -> bool:
        """Whether it is shown."""
        return bool(self.display)

    @property
    def candidate(self) -> Candidate | None:
        """The one that is marked."""
        return self._candidates[self.highlighted] if self.is_open and self.highlighted is not None else None

    def show(self, candidates: Sequence[Candidate], *, mark_first: bool, rows: int, width: int) -> None:
        """Shows some, or nothing.

        Args:
            candidates: in order.
            mark_first: mark the first one, so that one key accepts it.
            rows: how many there are above the prompt.
            width: of the prompt.
        """
        if not candidates:
            self.close()
            return
        if (list(candidates), width) != (self._candidates, self._width):
            self._candidates, self._width = list(candidates), width
            self.clear_options()
            self.add_options([Option(line) for line in _lines(candidates, width - _FRAME)])
        self.highlighted = 0 if mark_first else None
        rows = max(1, min(_MOST_ROWS, rows - _BORDER, len(candidates)))
        self.styles.max_height = rows + _BORDER
        self.styles.offset = (-1, -rows - _BORDER - 1)  # it begins at the corner of the prompt's border
        self.display = True

    def close(self) -> None:
        """Shows it no longer."""
        self.display = False

    def move(self, step: int) -> None:
        """Moves the mark, round at the ends."""
        first = 0 if step > 0 else len(self._candidates) - 1
        self.highlighted = first if self.highlighted is None else (self.highlighted + step) % len(self._candidates)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click."""
        event.stop()
        self.post_message(self.Chosen(self._candidates[event.option_index]))


def _lines(candidates: Sequence[Candidate], width: int) -> list[Content]:
    """What is shown: names in a column, and words about them in another. In a narrow list a name stands without its arguments."""
    labels = [Content(one_line(candidate.label)) for candidate in candidates]
    if max(label.cell_length for label in labels) + _HELP > width:
        labels = [
            Content(one_line(candidate.text).rstrip()) if candidate.help else label
            for candidate, label in zip(candidates, labels, strict=True)
        ]
    column = max(label.cell_length for label in labels) + 2
    return [
        Content.assemble(label, " " * (column - label.cell_length), (one_line(candidate.help), "dim")) if candidate.help else label
        for candidate, label in zip(candidates, labels, strict=True)
    ]
