"""One prompt, several answers side by side, from one prefill; one of them is chosen, and the conversation goes on with it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import HorizontalScroll
from textual.content import Content
from textual.widgets import Static

from chatpaged.answer_board import Answer, AnswerBoard
from chatpaged.chat import Chat
from chatpaged.shown_text import shown
from chatpaged.ui.background import beside
from chatpaged.ui.screens.dialog import Dialog, Hint
from chatpaged.ui.widgets.answer_column import AnswerColumn
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import Notice, WorkspaceEvent

_FRAME = 1 / 15
_NARROWEST = 32
"""Cells of a column where several stand side by side; what does not fit is scrolled to."""
_LOOK = 0.4
"""Seconds between two looks at the engine."""


class Columns(HorizontalScroll, can_focus=False, inherit_bindings=False):
    """The answers, as wide as they can be side by side, but not too narrow to read."""

    def on_resize(self) -> None:
        """More room, or less, for columns."""
        self.fit()

    def fit(self) -> None:
        """Gives columns their width."""
        room, columns = self.size.width, list(self.query_children(AnswerColumn))
        width = max(_NARROWEST, room // max(1, len(columns))) if room >= 2 * _NARROWEST else room
        for column in columns:
            column.styles.width = width


class AlternativesScreen(Dialog[str]):
    """The screen. Its result is the answer that was taken; None keeps the one in view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", show=False),
        Binding("right,l", "move(1)", show=False),
        *(Binding(str(number), f"jump({number - 1})", show=False) for number in range(1, 10)),
        Binding("enter", "take", show=False),
        Binding("s", "close", show=False),
        Binding("m", "more", show=False),
    ]
    DEFAULT_CSS = """
    AlternativesScreen {
        & > Frame { width: 100%; max-width: 100%; height: 100%; max-height: 100%; padding: 0 1; }
        &.-narrow > Frame { padding: 0; }
        & #question { height: auto; max-height: 3; padding: 0 1; margin-bottom: 1; text-style: bold; }
        & Columns { height: 1fr; scrollbar-size-horizontal: 1; }
        & #shared { color: $text-muted; height: auto; max-height: 2; padding: 0 1; }
        &.-narrow #question { max-height: 1; margin-bottom: 0; text-wrap: nowrap; text-overflow: ellipsis; }
        &.-narrow AnswerColumn { padding: 0; }
        &.-narrow Columns { scrollbar-size-horizontal: 0; }
        &.-narrow #shared { text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """

    def __init__(self, workspace: Workspace, chat: Chat, question_id: str | None) -> None:
        """Shows the answers to a question.

        Args:
            workspace: all chats.
            chat: the conversation.
            question_id: the message that is answered; None is the one that is just being sent.
        """
        super().__init__("Alternatives")
        self.board = AnswerBoard(workspace, chat, question_id)
        self._workspace = workspace
        self._chat = chat
        self._wanted: int | None = None
        self._stale = True
        self._question = Static("", id="question", markup=False)
        self._columns = Columns()
        self._shared = Static("", id="shared", markup=False)
        leaf = chat.conversation.leaf
        self.chosen = self.board.position_of(leaf.id if leaf is not None else None) or 0

    def compose_body(self) -> ComposeResult:
        """The question, the answers, and what they share."""
        yield self._question
        yield self._columns
        yield self._shared

    async def on_mount(self) -> None:
        """Follows the answers."""
        self._unsubscribe = self._workspace.subscribe(self._hear)
        self.board.sync()  # short answers may have ended since it was made
        self.set_interval(_FRAME, self._refresh)
        await self._refresh()
        beside(self, "look", self._look)

    def on_unmount(self) -> None:
        """Nothing more is wanted."""
        self._unsubscribe()

    @property
    def hints(self) -> tuple[Hint, ...]:
        """Keys, by what is going on."""
        esc = ("Esc", "stop" if self.board.is_growing else "close", "close")
        return (
            ("Enter", "take it", "take"),
            esc,
            ("←→", "choose", ""),
            ("m", f"{self.board.latest_number} more", "more"),
            ("1-9", "jump", ""),
            ("↑↓", "scroll", ""),
        )

    @property
    def columns(self) -> list[AnswerColumn]:
        """The columns, from the left."""
        return list(self._columns.query_children(AnswerColumn))

    @property
    def summary(self) -> str:
        """What is told of sharing."""
        return str(self._shared.content)

    # --- what is shown ---------------------------------------------------------------------------------------------------

    def _hear(self, event: WorkspaceEvent) -> None:
        if self.board.hear(event):
            self._stale = True
        elif isinstance(event, Notice) and event.chat_id == self._chat.id:
            self.notify(shown(event.text), severity=event.severity, markup=False)

    async def _look(self) -> None:
        """Asks the engine for speeds, and what is shared, again and again; it answers between its steps, which may be long."""
        while True:
            facts = self._workspace.host.facts
            if self.board.is_growing and facts is not None:
                self.board.see(await self._workspace.host.snapshot(), facts)
                self._stale = True
            await asyncio.sleep(_LOOK)

    async def _refresh(self) -> None:
        """Shows what is new; many pieces of an answer are drawn at once."""
        if not self._stale:
            return
        self._stale = False
        answers = self.board.answers
        await self._set_columns(len(answers))
        for column, answer in zip(self.columns, answers, strict=True):
            column.show(answer, len(answers), chosen=column.place == self.chosen, waits=column.place == self._wanted)
        question = self.board.question
        self._question.update(Content(shown(" ".join(question.content[:1000].split()))) if question is not None else "")
        self._shared.update(self.board.summary())
        self.show_hints()
        if self._wanted is not None:
            self._take_wanted(self._wanted)

    async def _set_columns(self, number: int) -> None:
        columns = self.columns
        if number > len(columns):
            await self._columns.mount_all(AnswerColumn(place) for place in range(len(columns), number))
        for column in columns[number:]:
            await column.remove()
        self.chosen = max(0, min(self.chosen, number - 1))
        if len(columns) != number and number:
            self._columns.fit()
            self._look_at(self.chosen)

    # --- choosing --------------------------------------------------------------------------------------------------------

    def _look_at(self, place: int) -> None:
        columns = self.columns
        if 0 <= place < len(columns):
            self.chosen, self._stale = place, True
            columns[place].focus()
            self.call_after_refresh(columns[place].scroll_visible, animate=False)

    @on(AnswerColumn.Looked)
    def _looked(self, event: AnswerColumn.Looked) -> None:
        if event.place != self.chosen:
            self.chosen, self._stale = event.place, True

    def action_move(self, columns: int) -> None:
        """Chooses the next column."""
        self._look_at(self.chosen + columns)

    def action_jump(self, place: int) -> None:
        """Chooses a column."""
        self._look_at(place)

    @on(AnswerColumn.Taken)
    def _taken(self, event: AnswerColumn.Taken) -> None:
        self._look_at(event.place)
        self.action_take()

    def action_take(self) -> None:
        """Takes the answer when it is whole; asked for again, as far as it has come."""
        if self._wanted == self.chosen:
            self._workspace.stop(self._chat)
        elif self._answer(self.chosen) is not None:
            self._wanted = self.chosen
        self._stale = True

    def action_more(self) -> None:
        """Has as many answers made again as were asked for last."""
        question = self.board.question
        if question is not None:
            self._workspace.regenerate(self._chat, question.id, n=self.board.latest_number)

    def action_close(self) -> None:
        """Stops what is being written; closes where nothing is."""
        self._wanted = None
        if not (self.board.is_growing and self._workspace.stop(self._chat)):
            super().action_close()

    def _answer(self, place: int) -> Answer | None:
        return self.board.answers[place] if place < len(self.board.answers) else None

    def _take_wanted(self, place: int) -> None:
        """Goes on with an answer once it is whole. Others that are still being written end with what they have."""
        answer = self._answer(place)
        if answer is None or answer.is_growing:
            return
        if self._chat.is_busy:
            self._workspace.stop(self._chat)
        elif answer.node_id is not None:
            self._wanted = None
            self._workspace.switch(self._chat, answer.node_id)
            self.dismiss(answer.node_id)
