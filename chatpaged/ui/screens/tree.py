"""The tree of a conversation: where it forks, what is shared, and the way to any message."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from chatpaged.amounts import counted
from chatpaged.branch_tree import TreeFacts, TreeRow, tree_facts, tree_rows
from chatpaged.chat import Chat
from chatpaged.text_matches import has_words
from chatpaged.ui.screens.dialog import Dialog, Hint
from chatpaged.ui.widgets.branch_lines import BranchLines
from chatpaged.workspace import Workspace


class TreeScreen(Dialog[str]):
    """The screen. Its result is the message that was gone to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "branch", show=False),
        Binding("slash", "filter", show=False),
        # While the field has the focus:
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
    ]
    HINTS: ClassVar[tuple[Hint, ...]] = (
        ("Enter", "go there", "go"),
        ("Esc", "close", "close"),
        ("b", "branch from here", "branch"),
        ("/", "filter", "filter"),
        ("↑↓", "move", ""),
    )
    DEFAULT_CSS = """
    TreeScreen {
        & > Frame { width: 94%; max-width: 120; height: 90%; padding: 1 1; }
        &.-narrow > Frame { width: 100%; height: 100%; padding: 0; }
        & Input { display: none; margin-bottom: 1; }
        & Input.-shown { display: block; }
        & #tree-summary { color: $text-muted; padding: 0 1; margin-top: 1; height: auto; }
        &.-narrow #tree-summary { margin-top: 0; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """

    def __init__(self, workspace: Workspace, chat: Chat) -> None:
        """Shows a conversation.

        Args:
            workspace: all chats.
            chat: the conversation.
        """
        super().__init__(f"Branches of {chat.title}")
        self._workspace = workspace
        self._chat = chat
        self._rows: tuple[TreeRow, ...] = ()
        self._field = Input(placeholder="Filter messages", id="tree-filter")
        self._lines = BranchLines(id="tree-lines")
        self._summary = Static("", id="tree-summary", markup=False)

    def compose_body(self) -> ComposeResult:
        """The filter, the lines, and what sharing saves."""
        yield self._field
        yield self._lines
        yield self._summary

    def on_mount(self) -> None:
        """Begins at the message that the next one will follow."""
        self._rows = tree_rows(self._chat.conversation)
        self._show("")
        self._summary.update(summary(tree_facts(self._chat.conversation), self._workspace.host.block_size))
        self._lines.focus()
        self.call_after_refresh(self._lines.centre)

    @property
    def lines(self) -> BranchLines:
        """The lines."""
        return self._lines

    def _show(self, text: str) -> None:
        """Shows what fits. Lines that are not all there are drawn without what connects them."""
        chosen = self._lines.chosen.node.id if self._lines.chosen is not None else None
        rows = self._rows
        if text.strip():
            rows = tuple(replace(row, guides="") for row in rows if has_words(row.node.content, text))
        place = next((place for place, row in enumerate(rows) if row.node.id == chosen), None)
        if place is None:
            place = next((place for place, row in enumerate(rows) if row.is_leaf), 0)
        self._lines.show(rows, place, text)

    @on(Input.Changed)
    def _filtered(self, event: Input.Changed) -> None:
        event.stop()
        self._show(event.value)

    def action_filter(self) -> None:
        """Lets a text be typed that messages have."""
        self._field.add_class("-shown")
        self._field.focus()

    def action_close(self) -> None:
        """Shows everything again; closes where that is so."""
        if self._field.has_class("-shown"):
            self._field.value = ""
            self._field.remove_class("-shown")
            self._lines.focus()
        else:
            super().action_close()

    def action_move(self, lines: int) -> None:
        """Moves the cursor."""
        self._lines.action_move(lines)

    @on(Input.Submitted)
    @on(BranchLines.Chosen)
    def action_go(self) -> None:
        """Goes to the message that the cursor is on."""
        row = self._lines.chosen
        if row is not None:
            if not row.in_view:
                self._workspace.switch(self._chat, row.node.id)
            self.dismiss(row.node.id)

    def action_branch(self) -> None:
        """Has the next message follow the one that the cursor is on."""
        row = self._lines.chosen
        if row is not None:
            self._workspace.branch(self._chat, row.node.id)
            self.dismiss(row.node.id)


def summary(facts: TreeFacts, block_size: int) -> str:
    """What sharing saves, in a sentence.

    Args:
        facts: of the tree.
        block_size: tokens of a block; 1 where there is no engine yet.
    """
    parts = [counted(facts.messages, "message"), counted(facts.branches, "branch", "branches")]
    if facts.shared:
        parts.append(f"{facts.shared:,} in several branches, stored once")
    if facts.saved_tokens:
        blocks = f" ({counted(facts.saved_tokens // block_size, 'block')})" if block_size > 1 else ""
        parts.append(f"saves {counted(facts.saved_tokens, 'token')}{blocks}")
    return " · ".join(parts)
