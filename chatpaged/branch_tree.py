"""A conversation's tree as lines that can be drawn: straight where it is straight, indented only where it forks.

The way in view stays at the left edge from its first message to its last; what branches off stands before it goes on, indented once.

```text
● You    Name three colours
● Model  Red, green, blue
├─○ You    And three animals?      1/2
│ ○ Model  Dog, cat, mouse
● You    And three towns?          2/2
◆ Model  Rome, Oslo, Lima
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chatpaged.conversation import Conversation, Node


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One message as a line.

    Attributes:
        node: the message.
        guides: the lines left of it, two characters for each branch it is in.
        position: which version of the message it is, from 1.
        siblings: how many versions there are.
        in_view: it is on the way that is looked at.
        is_leaf: the next message will follow it.
    """

    node: Node
    guides: str
    position: int
    siblings: int
    in_view: bool
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What sharing saves.

    Attributes:
        messages: how many there are.
        branches: ends of the tree.
        shared: messages that several branches have in common.
        tokens: of the whole tree, each part counted once; of what is known.
        saved_tokens: how many more it would be if each branch had its own copy.
    """

    messages: int
    branches: int
    shared: int
    tokens: int
    saved_tokens: int


def tree_rows(conversation: Conversation) -> tuple[TreeRow, ...]:
    """Every message once, each below the one it follows."""
    in_view = {node.id for node in conversation.path()}
    leaf = conversation.leaf
    rows: list[TreeRow] = []
    # Long conversations are deeper than Python's stack: what is to come is a pile, the next on top.
    pile = _following(conversation, None, "", in_view)
    while pile:
        node, guides, inner, position, siblings = pile.pop()
        rows.append(TreeRow(node, guides, position, siblings, node.id in in_view, leaf is not None and node.id == leaf.id))
        pile += _following(conversation, node.id, inner, in_view)
    return tuple(rows)


_Entry = tuple[Node, str, str, int, int]
"""A message, the guides of its line, those of what follows it, its position, and how many versions there are."""


def _following(conversation: Conversation, node_id: str | None, guides: str, in_view: set[str]) -> list[_Entry]:
    """The messages after one, the one that comes first last: branches, then what goes straight on."""
    children = conversation.children(node_id)
    if not children:
        return []
    straight = next((child for child in children if child.id in in_view), children[-1])
    entries: list[_Entry] = [(straight, guides, guides, children.index(straight) + 1, len(children))]
    sides = [(child, position) for position, child in enumerate(children, 1) if child is not straight]
    for child, position in reversed(sides):
        corner = "┌─" if node_id is None and child is sides[0][0] else "├─"
        entries.append((child, f"{guides}{corner}", f"{guides}│ ", position, len(children)))
    return entries


def _branch_counts(conversation: Conversation) -> dict[str, int]:
    """How many ends of the tree follow each message; parents are always added before their children."""
    counts: dict[str, int] = {}
    for node in reversed(conversation.nodes):
        counts[node.id] = sum(counts[child.id] for child in conversation.children(node.id)) or 1
    return counts


def known_tokens(node: Node) -> int | None:
    """Tokens of a message, where a model of this application wrote it."""
    count = node.usage.get("completion_tokens")
    if isinstance(count, int) and count:
        return count
    return len(node.reasoning_ids) + len(node.token_ids) if node.token_ids else None


def tree_facts(conversation: Conversation) -> TreeFacts:
    """What sharing saves in a conversation."""
    counts = _branch_counts(conversation)
    once, copied = 0, 0
    for tokens, branches in _parts(conversation, counts):
        once += tokens
        copied += tokens * branches
    return TreeFacts(
        messages=len(counts),
        branches=sum(counts[root.id] for root in conversation.children(None)),
        shared=sum(count > 1 for count in counts.values()),
        tokens=once,
        saved_tokens=copied - once,
    )


def _parts(conversation: Conversation, counts: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Pieces of the ways through the tree: tokens of each, and in how many branches it is."""
    context: dict[str, int] = {}
    """Tokens up to each message, or up to the last before it of which that is known."""
    for node in conversation.nodes:
        before = context.get(node.parent, 0) if node.parent is not None else 0
        prompt, written = _read_and_written(node)
        # What was read belongs to all answers to the same question; it is counted at the question, by the first that tells it.
        question = node.parent
        if prompt is not None and question is not None and prompt > before:
            yield prompt - before, counts[question]
            context[question] = before = prompt
        if prompt is not None and written:
            yield written, counts[node.id]
        context[node.id] = before + written


def _read_and_written(node: Node) -> tuple[int | None, int]:
    """Tokens before an answer, None where not all of them were read or nobody knows; and those of the answer."""
    prompt, written = node.usage.get("prompt_tokens"), node.usage.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(written, int) or node.usage.get("left_out"):
        return None, 0
    return prompt, written
