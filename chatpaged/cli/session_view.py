"""Conversations as lists, text and JSON."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chatpaged.conversation import Conversation, Node
    from chatpaged.store import SessionInfo
    from chatpaged.store_search import SearchHit

_NAMES = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}
_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))


def table(sessions: Sequence[SessionInfo]) -> list[str]:
    """A line for each conversation, below a head."""
    head = ("ID", "CHANGED", "MESSAGES", "MODEL", "TITLE")
    rows = [(info.id, when(info.updated), str(info.num_messages), info.model or "-", info.title or "-") for info in sessions]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]


def session_json(info: SessionInfo) -> dict[str, Any]:
    """A conversation of a list."""
    return asdict(info) | {"created": timestamp(info.created), "updated": timestamp(info.updated)}


def hit_lines(hits: Iterable[SearchHit]) -> list[str]:
    """Found messages, those of a conversation together."""
    by_session: dict[str, list[SearchHit]] = {}
    for hit in hits:
        by_session.setdefault(hit.session, []).append(hit)
    lines: list[str] = []
    for session, found in by_session.items():
        lines.append(f"{session}  {found[0].title}")
        lines += [f"    {hit.message}  {_NAMES.get(hit.role, hit.role)}: {hit.excerpt}" for hit in found]
    return lines


def hit_json(hit: SearchHit) -> dict[str, Any]:
    """A message that was found."""
    return asdict(hit) | {"created": timestamp(hit.created)}


def conversation_lines(conversation: Conversation) -> list[str]:
    """The way to the leaf, each message with its id."""
    lines = [f"{conversation.id}  {conversation.title or '-'}"]
    if conversation.system:
        lines += ["", "System", conversation.system]
    for node in conversation.path():
        lines += ["", _heading(conversation, node), node.content]
    return lines


def _heading(conversation: Conversation, node: Node) -> str:
    siblings = conversation.siblings(node.id)
    notes = [f"version {siblings.index(node) + 1} of {len(siblings)}"] if len(siblings) > 1 else []
    notes += [node.finish_reason or "interrupted"] if node.can_continue else []
    return f"{_NAMES.get(node.role, node.role)}  {node.id}" + (f"  ({', '.join(notes)})" if notes else "")


def conversation_json(conversation: Conversation) -> dict[str, Any]:
    """The way to the leaf, each message with its id and those of its other versions."""
    return {
        "id": conversation.id,
        "name": conversation.name,
        "title": conversation.title,
        "system": conversation.system,
        "model": conversation.model,
        "created": timestamp(conversation.created),
        "updated": timestamp(conversation.updated),
        "messages": [_node_json(conversation, node) for node in conversation.path()],
    }


def _node_json(conversation: Conversation, node: Node) -> dict[str, Any]:
    facts = asdict(node) | {"state": node.state.value, "created": timestamp(node.created)}
    return facts | {"versions": [sibling.id for sibling in conversation.siblings(node.id)]}


def timestamp(seconds: float) -> str:
    """A time as JSON has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def when(seconds: float) -> str:
    """How long ago something was."""
    passed = max(0.0, time.time() - seconds)
    return next((f"{passed / length:.0f} {unit} ago" for unit, length in _UNITS if passed >= 2 * length), "just now")
