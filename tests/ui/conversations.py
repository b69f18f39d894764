"""Conversations for tests of the widgets that show them, and an application that shows nothing else."""

from __future__ import annotations

from typing import Any

from textual.app import App, ComposeResult

from chatpaged.conversation import Node
from chatpaged.ui.widgets.markdown import TextFlow
from chatpaged.ui.widgets.message_item import MessageAction, MessageItem
from chatpaged.ui.widgets.message_list import MessageList

ANSWER = '''# A plan

Here is **bold**, *italic* and `code` with a [link](http://example.org/x). This line goes on until it has to be broken somewhere.

- first item
- second item
  1. nested
  2. list

```python
def hello(name: str) -> str:
    """Says hello."""
    return f"Hello {name}"  # comment
```

| Name | Value |
|---|---:|
| alpha | 1 |
| beta | 22 |

> A quote
> of two lines

Done.'''
CREATED = 1_699_963_200.0  # noon, so that it is the same day in most places


def message(name: str, role: str, content: str, *, position: int = 1, siblings: int = 1, **fields: Any) -> MessageItem:
    """A message; answers have a model's name."""
    if role == "assistant":
        fields.setdefault("model", "demo/Scripted-1B")
    return MessageItem(Node(id=name, parent=None, role=role, content=content, **fields), position, siblings)


def dialogue(count: int, *, lines: int = 3) -> list[MessageItem]:
    """A conversation of many messages, each with its number."""
    return [
        message(f"m{i}", "assistant" if i % 2 else "user", "\n\n".join(f"message {i} line {line}" for line in range(lines)))
        for i in range(count)
    ]


class ConversationApp(App[None]):
    """Shows messages, and remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[tuple[str, str, str]] = []
        self.links: list[str] = []

    def compose(self) -> ComposeResult:
        """The list."""
        yield MessageList()

    @property
    def messages(self) -> MessageList:
        """The list."""
        return self.query_one(MessageList)

    def on_message_action(self, event: MessageAction) -> None:
        """Remembers it."""
        self.actions.append((event.node_id, event.action, event.text))

    def on_text_flow_link_clicked(self, event: TextFlow.LinkClicked) -> None:
        """Remembers it."""
        self.links.append(event.address)


def rows(app: App[Any]) -> list[str]:
    """What is on the screen, row by row."""
    update = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in update]


def screen_text(app: App[Any]) -> str:
    """The same as one text."""
    return "\n".join(rows(app))
