"""The text of an answer that stands beside others: thinking folded away, then Markdown, also while it grows."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from chatpaged.answer_board import Answer
from chatpaged.ui.background import beside
from chatpaged.ui.widgets.folded import Thinking
from chatpaged.ui.widgets.markdown import MarkdownView


class AnswerBody(Vertical):
    """One answer. What comes faster than it can be drawn is drawn at once later."""

    DEFAULT_CSS = """
    AnswerBody { height: auto; width: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._thinking = Thinking(growing=True)
        self._thinking.display = False
        self._view = MarkdownView(growing=True)
        self._text = ""
        self._reasoning = ""
        self._growing = True
        self._wanted: tuple[str, str, bool] | None = None
        self._is_drawing = False

    def compose(self) -> ComposeResult:
        """Thinking and text."""
        yield self._thinking
        yield self._view

    @property
    def is_drawn(self) -> bool:
        """Whether all that is known is on the screen."""
        return not self._is_drawing

    def show_answer(self, answer: Answer) -> None:
        """Shows an answer as it is now; never waits."""
        self._wanted = (answer.text, answer.reasoning, answer.is_growing)
        if not self._is_drawing:
            self._is_drawing = True
            beside(self, "answer", self._draw)

    async def _draw(self) -> None:
        while self._wanted is not None:
            (text, reasoning, growing), self._wanted = self._wanted, None
            self._think(reasoning, growing=growing)
            await self._write(text, growing=growing)
        self._is_drawing = False

    def _think(self, reasoning: str, *, growing: bool) -> None:
        self._thinking.display = bool(reasoning)
        if not growing:
            self._thinking.end(reasoning)
        elif reasoning.startswith(self._reasoning):
            self._thinking.add(reasoning[len(self._reasoning) :])
        self._reasoning = reasoning

    async def _write(self, text: str, *, growing: bool) -> None:
        if growing and (not self._growing or not text.startswith(self._text)):
            # It goes on after its end: what is drawn can be added to no more.
            await self._view.remove()
            self._view, self._text = MarkdownView(growing=True), ""
            await self.mount(self._view)
        if growing:
            self._view.display = bool(text)
            await self._view.grow(text[len(self._text) :])
        elif self._growing or text != self._text:
            self._view.display = bool(text)
            await self._view.finish(text)
        self._text, self._growing = text, growing
