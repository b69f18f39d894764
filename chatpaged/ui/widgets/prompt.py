"""The prompt: what is typed, and how it is sent, completed, written in an editor and found again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Label, TextArea

from chatpaged.attachments import Expansion, attach_files, may_attach
from chatpaged.errors import ChatpagedError
from chatpaged.external_editor import Runner, run_in_terminal
from chatpaged.key_names import key_label, keys_of
from chatpaged.pasted_text import one_line
from chatpaged.prompt_completion import Choices, NoChoices
from chatpaged.prompt_draft import PromptDraft
from chatpaged.prompt_history import HistoryWalk, PromptHistory
from chatpaged.setting_groups import KeySettings
from chatpaged.slash_commands import Invocation, PlainText, Refused, SlashCommand, parse_line
from chatpaged.ui.background import beside, instead
from chatpaged.ui.editor import edit_outside
from chatpaged.ui.widgets.completer import Completer
from chatpaged.ui.widgets.completions import Completions
from chatpaged.ui.widgets.prompt_area import PromptArea

Counter = Callable[[str], int | Awaitable[int]]
"""Counts the tokens of a text. It is called on a thread of its own; what it returns may have to be awaited."""
_NARROW = 64
_EVERYWHERE = ("alt+enter", "ctrl+j", "enter")  # keys that every terminal can send


class Prompt(Widget):
    """Where prompts are written."""

    DEFAULT_CSS = """
    Prompt {
        layout: horizontal;
        height: auto;
        border: round $border-blurred;
        border-subtitle-color: $text-muted;
        &:focus-within { border: round $border; }
        & > .prompt--mark {
            width: 3;
            padding: 0 0 0 1;
            color: $text-muted;
        }
        &:focus-within > .prompt--mark { color: $text-accent; text-style: bold; }
        & > PromptArea { width: 1fr; padding: 0 1 0 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+g", "open_editor", "Editor", id="open_editor", show=False)]

    class Sent(Message):
        """Something was sent. The prompt is empty again."""

        def __init__(
            self, prompt: Prompt, text: str, command: SlashCommand | None, *, draft: PromptDraft, chat: str, expansion: Expansion
        ) -> None:
            """Holds what was sent.

            Args:
                prompt: where.
                text: with pasted texts and files in it; of a command its argument.
                command: what it is, unless it is for the model.
                draft: exactly what was typed, to be put back if it is refused.
                chat: what `Prompt.chat` was when it was sent.
                expansion: the files in it, and how they were read.
            """
            super().__init__()
            self.prompt = prompt
            self.text = text
            self.command = command
            self.draft = draft
            self.chat = chat
            self.files = expansion.names
            self.notes = expansion.notes

    class Returned(Message):
        """What was sent cannot be, and another chat is in view meanwhile: the draft is that chat's."""

        def __init__(self, draft: PromptDraft, chat: str) -> None:
            """Holds the draft, and whose it is."""
            super().__init__()
            self.draft = draft
            self.chat = chat

    class Edited(Message):
        """What is typed has changed."""

        def __init__(self, prompt: Prompt) -> None:
            """Holds the prompt."""
            super().__init__()
            self.prompt = prompt

    def __init__(
        self,
        *,
        keys: KeySettings | None = None,
        choices: Choices | None = None,
        history: PromptHistory | None = None,
        count_tokens: Counter | None = None,
        directory: Path | None = None,
        editor: str | None = None,
        run_editor: Runner = run_in_terminal,
        id: str | None = None,  # noqa: A002 - as in all widgets
    ) -> None:
        """Makes an empty prompt.

        Args:
            keys: what sends and what begins a new line.
            choices: names that commands take, for completion.
            history: what was sent before; prompts may share one.
            count_tokens: see `Counter`; may be set later.
            directory: where relative file names begin.
            editor: the editor; None is the user's.
            run_editor: runs it.
            id: of the widget.
        """
        super().__init__(id=id)
        keys = keys if keys is not None else KeySettings()
        self.history = history if history is not None else PromptHistory()
        self._editor = editor
        self.chat = ""
        self._send_keys, self._newline_keys = frozenset(keys_of(keys.send)), frozenset(keys_of(keys.newline))
        self._editor_key = key_label(next(iter(keys_of(keys.open_editor)), ""))
        self._count_tokens = count_tokens
        self._directory = directory or Path()
        self._run_editor = run_editor
        self._walk = HistoryWalk(self.history)
        self._walked: PromptDraft | None = None
        self._area = PromptArea(self._on_key_first, self._on_edge)
        self._completer = Completer(self._area, Completions(), choices if choices is not None else NoChoices(), directory or Path())

    def compose(self) -> ComposeResult:
        """The list above it, a mark, and the text."""
        yield self._completer.popup
        yield Label("❯", classes="prompt--mark", markup=False)  # noqa: RUF001 - the mark of many prompts
        yield self._area

    async def on_mount(self) -> None:
        """Finds what was sent in earlier runs."""
        self._teach()
        beside(self, "history", self._load_history)

    async def _load_history(self) -> None:
        self.history.merge(await asyncio.to_thread(self.history.read))

    def on_resize(self) -> None:
        """A narrow prompt teaches less."""
        self._teach()

    def on_click(self) -> None:
        """The whole prompt is a place to click into."""
        self.focus_input()

    def _teach(self) -> None:
        newline = next((name for name in _EVERYWHERE if name in self._newline_keys), None)
        hints = ["Ask anything", "/ commands", "@ files"]
        if newline is not None and self.size.width >= _NARROW:
            hints.append(f"{key_label(newline)} new line")
        self._area.placeholder = " · ".join(hints)

    # --- what is in it -----------------------------------------------------------------------------------------------------

    @property
    def draft(self) -> PromptDraft:
        """What is typed."""
        return self._area.draft

    def load(self, draft: PromptDraft, *, chat: str = "") -> None:
        """Shows what was typed in another chat.

        Args:
            draft: what to show.
            chat: whose it is; `Sent` says so again.
        """
        self.chat = chat
        self._end_walk()
        self._area.load(draft)

    def set_text(self, text: str) -> None:
        """Shows a text, to be changed and sent. What was typed can be undone to."""
        self._end_walk()
        self._area.replace_all(PromptDraft.of(text))
        self.focus_input()

    def full_text(self) -> str:
        """What is typed, with pasted texts in full."""
        return self.draft.text

    def clear(self) -> None:
        """Empties it."""
        self.load(PromptDraft(), chat=self.chat)

    def focus_input(self) -> None:
        """Puts the cursor into it."""
        self._area.focus()

    @property
    def count_tokens(self) -> Counter | None:
        """Counts the tokens of pasted texts."""
        return self._count_tokens

    @count_tokens.setter
    def count_tokens(self, counter: Counter | None) -> None:
        self._count_tokens = counter
        for number, text in self._area.uncounted().items():
            self._begin_count(number, text)

    def notify_text(self, text: str, *, wrong: bool = True) -> None:
        """Shows a notice."""
        self.app.notify(one_line(text), severity="warning" if wrong else "information", markup=False)

    # --- keys --------------------------------------------------------------------------------------------------------------

    def _on_key_first(self, event: events.Key) -> bool:
        names = {event.key, *event.aliases}
        if self._completer.popup.is_open and not event.is_printable:
            self._refresh_completions()  # what was typed just before may not have been told yet
        if self._completer.on_key(names, self._send_keys):
            return True
        if names & self._send_keys:
            self.send()
            return True
        if names & self._newline_keys:
            self._area.insert_line()
            return True
        return False

    def _on_edge(self, step: int) -> bool:
        """The cursor would leave the text: to what was sent before or later."""
        if not self._area.selection.is_empty:
            return False
        if (draft := self._walk.move(step, self.draft)) is None:
            return False
        self._walked = draft
        self._area.load(draft, cursor_at_end_of_line=0 if step < 0 else -1)
        return True

    def _end_walk(self) -> None:
        self._walk.end()
        self._walked = None

    # --- sending -----------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Sends what is typed, unless it is blank. A command that is none is refused, and nothing is lost."""
        draft = self.draft
        if draft.is_blank:
            return
        self._completer.close()
        typed = draft.parts[0] if isinstance(draft.parts[0], str) else ""
        parsed = parse_line(draft.text) if typed.startswith("/") else PlainText(draft.text)
        if isinstance(parsed, Refused):
            self.notify_text(parsed.message)
            return
        command = parsed.command if isinstance(parsed, Invocation) else None
        text = parsed.argument if isinstance(parsed, Invocation) else parsed.text
        content = draft
        if typed.startswith("/"):
            content = draft.without_prefix(_prefix_length(typed) if command is not None else 1)
        self.clear()
        if may_attach(content) and (command is None or command.takes_text):
            beside(self, "sending", self._send_with_files, draft, content, command, self.chat)
        else:
            self._post(draft, Expansion(text), command, self.chat)

    async def _send_with_files(self, draft: PromptDraft, content: PromptDraft, command: SlashCommand | None, chat: str) -> None:
        try:
            expansion = await asyncio.to_thread(attach_files, content, self._directory)
        except ChatpagedError as error:
            self.notify_text(str(error))
            if chat != self.chat:
                self.post_message(self.Returned(draft, chat))
            else:
                self._area.load(draft.joined(self.draft))  # before what was typed meanwhile
            return
        self._post(draft, expansion, command, chat)

    def _post(self, draft: PromptDraft, expansion: Expansion, command: SlashCommand | None, chat: str) -> None:
        self.history.add(draft)
        beside(self, "history", asyncio.to_thread, self.history.save)
        text = expansion.text.strip() if command is not None else expansion.text
        self.post_message(self.Sent(self, text, command, draft=draft, chat=chat, expansion=expansion))

    # --- pasted texts ------------------------------------------------------------------------------------------------------

    def on_prompt_area_pasting(self, event: PromptArea.Pasting) -> None:
        """A text has become a chip."""
        event.stop()
        self._begin_count(event.number, event.text)

    def on_prompt_area_too_long(self, event: PromptArea.TooLong) -> None:
        """It cannot be shown here."""
        event.stop()
        self.notify_text(f"that text is too long to be shown here; {self._editor_key} opens it in an editor", wrong=False)

    def _begin_count(self, number: int, text: str) -> None:
        if self._count_tokens is not None and self.is_mounted:
            beside(self, "counting", self._count, self._count_tokens, number, text)

    async def _count(self, counter: Counter, number: int, text: str) -> None:
        try:
            counted = await asyncio.to_thread(counter, text)
            tokens = await counted if inspect.isawaitable(counted) else counted
        except ChatpagedError:
            return  # the engine is gone, say; the number is a courtesy
        self._area.set_tokens(number, tokens)

    # --- completion --------------------------------------------------------------------------------------------------------

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Something was typed."""
        event.stop()
        self._refresh_completions()
        self.post_message(self.Edited(self))

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        """The cursor was moved."""
        event.stop()
        self.border_subtitle = "Ctrl+E shows the pasted text" if self._area.chip_at_cursor() is not None else ""
        self._refresh_completions()

    def _refresh_completions(self) -> None:
        if self._walked is not None and self.draft != self._walked:
            self._walked = None
        self._completer.refresh(wanted=self._walked is None)

    def on_completions_chosen(self, event: Completions.Chosen) -> None:
        """One was clicked."""
        event.stop()
        self._completer.accept(event.candidate)
        self.focus_input()

    def on_descendant_blur(self) -> None:
        """The list is of no use without the cursor."""
        self._completer.close()

    # --- editor ------------------------------------------------------------------------------------------------------------

    def action_open_editor(self) -> None:
        """Opens what is typed in the user's editor. Answers go on meanwhile."""
        instead(self, "editor", self._edit)

    async def _edit(self) -> None:
        draft = self.draft
        try:
            text = await edit_outside(self.app, draft.text, self._editor, self._run_editor)
        except ChatpagedError as error:
            self.notify_text(str(error))
        else:
            self._end_walk()
            self._area.replace_all(draft.changed_to(text))
        self.focus_input()


def _prefix_length(typed: str) -> int:
    """How many characters come before the argument of a command."""
    _, *argument = typed.split(maxsplit=1)
    return len(typed) - len(argument[0]) if argument else len(typed)
