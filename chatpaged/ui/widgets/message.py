"""One message: header, thinking, text, and what is told of the turn under it."""

from __future__ import annotations

from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Enter, Leave
from textual.widgets import Static

from chatpaged.shown_text import shown
from chatpaged.turn_facts import turn_facts
from chatpaged.ui.widgets.code_block import CodeBlock
from chatpaged.ui.widgets.flow import OneLayout
from chatpaged.ui.widgets.folded import LongText, Thinking
from chatpaged.ui.widgets.markdown import MarkdownView
from chatpaged.ui.widgets.message_header import MessageHeader
from chatpaged.ui.widgets.message_item import ActionName, MessageAction, MessageItem, offers

_QUIET = "no text"


class TurnFooter(Static):
    """What is told of a turn, or noticed while it lasts."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    TurnFooter {
        height: auto;
        width: 1fr;
        color: $text-disabled;
        margin-top: 1;
    }
    TurnFooter.notice {
        color: $text-warning;
    }
    """


class MessageView(OneLayout, Vertical, can_focus=True):
    """A message with its header and its footer.

    Attributes:
        item: the message.
        growing: it is an answer, and more of it will come.
    """

    DEFAULT_CSS = """
    MessageView {
        height: auto;
        width: 1fr;
        margin: 1 1 0 1;
        padding: 0 1;
        border-left: blank;
    }
    MessageView.user, MessageView.tool {
        background: $foreground 4%;
        border-left: outer $primary;
    }
    MessageView:focus-within {
        border-left: outer $accent;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "choose('copy')", "Copy", id="copy_message"),
        Binding("c", "choose('copy_code')", "Copy code", id="copy_code"),
        Binding("e", "choose('edit')", "Edit", id="edit_message"),
        Binding("r", "choose('regenerate')", "Again", id="regenerate"),
        Binding("o", "choose('continue')", "Go on", id="continue_answer"),
        Binding("b", "choose('branch')", "Branch", id="branch"),
        Binding("a", "choose('alternatives')", "Alternatives", id="alternatives"),
        Binding("left", "choose('previous')", "Version before", id="previous_version"),
        Binding("right", "choose('next')", "Version after", id="next_version"),
        Binding("t,enter", "toggle_fold", "Unfold", id="toggle_fold"),
    ]

    def __init__(self, item: MessageItem, *, growing: bool = False, text: str | None = None, reasoning: str | None = None) -> None:
        """A message.

        Args:
            item: the message.
            growing: more of it will come.
            text: of a growing one, what there is by now; None is what the message has.
            reasoning: likewise.
        """
        super().__init__(classes=item.node.role)
        self.item = item
        self.growing = growing
        self._text = item.node.content if text is None else text
        self._reasoning = item.node.reasoning if reasoning is None else reasoning
        self._header = MessageHeader(item)
        self._thinking: Thinking | None = None
        self._body: MarkdownView | LongText | None = None
        self._footer: TurnFooter | None = None
        self._notice = ""
        self._next_code = 0
        self._told: Content | None = None

    @property
    def node_id(self) -> str:
        """The message's name."""
        return self.item.node.id

    @property
    def text(self) -> str:
        """Its text so far, exactly."""
        return self._text

    @property
    def reasoning(self) -> str:
        """What was thought before it, so far."""
        return self._reasoning

    def compose(self) -> ComposeResult:
        """Header, thinking, text, footer."""
        yield self._header
        if self.item.node.role != "assistant":
            self._body = LongText(self._text)
            yield self._body
            return
        if self._reasoning:
            self._thinking = Thinking(self._reasoning, growing=self.growing and not self._text)
            yield self._thinking
        self._body = MarkdownView(self._text, growing=self.growing)
        yield self._body
        self._footer = TurnFooter()
        self._tell()
        yield self._footer

    # --- growing --------------------------------------------------------------------------------------------------------

    async def grow(self, text: str, reasoning: str) -> None:
        """More of an answer."""
        if reasoning:
            self._reasoning += reasoning
            await self._think(reasoning)
        if not text:
            return
        if self._thinking is not None and not self._text:
            self._thinking.end()
        self._text += text
        if isinstance(self._body, MarkdownView):
            await self._body.grow(text)
        self._tell()

    async def finish(self, item: MessageItem) -> None:
        """It is whole.

        Args:
            item: the message as it is now.
        """
        node = item.node
        self.growing = False
        self._notice = ""
        self.item, self._text, self._reasoning = item, node.content, node.reasoning
        if node.reasoning and self._thinking is None:
            await self._think(node.reasoning)
        if self._thinking is not None:
            self._thinking.end(node.reasoning)
        if isinstance(self._body, MarkdownView):
            await self._body.finish(node.content)
        self._header.show(item)
        self._offer()
        self._tell()

    async def _think(self, text: str) -> None:
        if self._thinking is None:
            self._thinking = Thinking(text, growing=not self._text)
            await self.mount(self._thinking, after=self._header)
        else:
            self._thinking.add(text)

    # --- what is told ---------------------------------------------------------------------------------------------------

    def set_notice(self, text: str) -> None:
        """Says something about an answer that grows; empty takes it back."""
        self._notice = text
        self._tell()

    def _tell(self) -> None:
        footer = self._footer
        if footer is None:
            return
        content = self._facts()
        if self._told is not None and content.is_same(self._told):
            return
        self._told = content
        footer.set_class(bool(self._notice), "notice")
        footer.display = bool(content.plain)
        footer.update(content)

    def _facts(self) -> Content:
        if self._notice:
            return Content(shown(self._notice))
        if self.growing:
            return Content()
        facts = turn_facts(self.item.node)
        parts = [Content(figure) for figure in facts.figures]
        if not self._text.strip():
            parts.insert(0, Content(_QUIET))
        parts += [Content.styled(shown(note), "$text-warning") for note in facts.notes]
        if facts.ending:
            parts.append(Content.styled(facts.ending, "bold $text-warning"))
        return Content(" · ").join(parts)

    # --- what can be done -----------------------------------------------------------------------------------------------

    def on_enter(self, event: Enter) -> None:  # noqa: ARG002 - Textual's interface
        """The mouse came."""
        self._offer()

    def on_leave(self, event: Leave) -> None:  # noqa: ARG002 - Textual's interface
        """The mouse left."""
        self._offer()

    def on_descendant_focus(self) -> None:
        """A code block got the focus."""
        self._offer()

    def on_descendant_blur(self) -> None:
        """A code block lost the focus."""
        self.call_after_refresh(self._offer)

    def on_focus(self) -> None:
        """It was chosen."""
        self._offer()

    def on_blur(self) -> None:
        """It is not chosen any more."""
        self.call_after_refresh(self._offer)

    def _offer(self) -> None:
        if not self.is_attached:
            return
        wanted = self.is_mouse_over or self.has_focus_within
        self._header.offered = offers(self.item, growing=self.growing, has_code=bool(self.codes)) if wanted else ()

    @property
    def codes(self) -> list[CodeBlock]:
        """Its blocks of code."""
        return self._body.codes if isinstance(self._body, MarkdownView) else []

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done has a key."""
        if action == "choose":
            return self._can(str(parameters[0]))
        if action == "toggle_fold":
            return self._foldable() is not None
        return True

    def _can(self, name: str) -> bool:
        if name in {"previous", "next"}:
            return self.item.siblings > 1
        return any(offer.action == name for offer in offers(self.item, growing=self.growing, has_code=bool(self.codes)))

    def action_choose(self, name: str) -> None:
        """Asks for something to be done."""
        if not self._can(name):
            return
        text = self._text if name in {"copy", "edit"} else ""
        if name == "copy_code":
            codes = self.codes
            text = codes[self._next_code % len(codes)].code
            self._next_code += 1
        self.post_message(MessageAction(self.node_id, cast(ActionName, name), text))

    def on_message_header_chosen(self, event: MessageHeader.Chosen) -> None:
        """Something in the header was clicked."""
        event.stop()
        self.action_choose(event.action)

    def on_code_block_copied(self, event: CodeBlock.Copied) -> None:
        """A code block's own key, or its copy target."""
        event.stop()
        self.post_message(MessageAction(self.node_id, "copy_code", event.code))

    def _foldable(self) -> Thinking | LongText | None:
        if self._thinking is not None:
            return self._thinking
        return self._body if isinstance(self._body, LongText) and self._body.folds else None

    def action_toggle_fold(self) -> None:
        """Opens or closes the thinking, or a long text."""
        folded = self._foldable()
        if folded is not None:
            folded.toggle()
