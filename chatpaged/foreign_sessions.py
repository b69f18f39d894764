"""Conversations that other programs have written: OpenAI's messages, and the export of ChatGPT.

What they contain is text and stays text: nothing in it can become a control token.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from chatpaged.conversation import Conversation, Node, new_message_id
from chatpaged.errors import InvalidRequestError

_ROLES = {"developer": "system", "function": "tool"}
END_OF_TIME = 253402300800.0
"""The year 10000: no date is later."""
_TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True)
class Imported:
    """A conversation that was read.

    Attributes:
        conversation: what came of it.
        left_out: what could not be taken over, such as pictures: how many of each kind.
    """

    conversation: Conversation
    left_out: Mapping[str, int]


class _LeftOut(dict[str, int]):
    def note(self, kind: str) -> None:
        self[kind] = self.get(kind, 0) + 1


# --- OpenAI's messages -----------------------------------------------------------------------------------------------------


def from_openai(messages: Sequence[object], *, model: str = "", name: str = "") -> Imported:
    """A list of messages as the chat completions of OpenAI take it.

    Args:
        messages: each with a role and a content, which is a text or a list of parts.
        model: name of the model that was asked, if it is known.
        name: of the conversation.

    Raises:
        InvalidRequestError: it is none.
    """
    conversation = Conversation(name=name, model=model)
    left_out = _LeftOut()
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"message {number} is no object with a role and a content")
        role = _text(message.get("role"), f"the role of message {number}")
        role = _ROLES.get(role, role)
        content = _openai_content(message, number, left_out)
        if role == "system" and number == 1:
            conversation.system = content
            continue
        parent = conversation.leaf.id if conversation.leaf is not None else None
        node = Conversation.new_node(role, parent, content)
        if role == "assistant":
            reasoning = message.get("reasoning_content") or ""
            node = replace(node, reasoning=_text(reasoning, f"the reasoning of message {number}"), model=model)
        conversation.add(replace(node, imported=True))
    return Imported(conversation, left_out)


def _openai_content(message: Mapping[str, object], number: int, left_out: _LeftOut) -> str:
    content = message.get("content")
    calls = message.get("tool_calls") or message.get("function_call")
    if content is None and calls:
        return json.dumps(calls, ensure_ascii=False)
    if not isinstance(content, list):
        return _text(content if content is not None else "", f"the content of message {number}")
    texts = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS:
            texts.append(_text(part.get("text"), f"a part of message {number}"))
        else:
            left_out.note(str(part.get("type")) if isinstance(part, Mapping) else "unknown part")
    return "".join(texts)


# --- ChatGPT ---------------------------------------------------------------------------------------------------------------


def from_chatgpt(export: Mapping[str, object]) -> Imported:
    """One conversation of the file `conversations.json` that ChatGPT exports: a tree, as ours.

    Messages that are hidden, of tools, or without text are left out; what followed them follows the message before them.

    Raises:
        InvalidRequestError: it is none.
    """
    mapping = export.get("mapping")
    if not isinstance(mapping, Mapping):
        raise InvalidRequestError("a conversation of ChatGPT has no mapping")
    created = _time(export.get("create_time"), time.time())
    conversation = Conversation(name=_text(export.get("title") or "", "a title"), now=created)
    left_out = _LeftOut()
    places: dict[str, str | None] = {}
    for key, entry, parent in _walk(mapping):
        before = places[parent] if parent is not None else None
        message = entry.get("message")
        node = _chatgpt_node(message, before, created, left_out) if isinstance(message, Mapping) else None
        places[key] = _place(conversation, node).id if node is not None else before
    leaf = places.get(str(export.get("current_node")))
    if leaf is not None:
        conversation.switch(leaf)
    conversation.updated = max(conversation.updated, _time(export.get("update_time"), created))
    conversation.model = next((node.model for node in reversed(conversation.nodes) if node.model), "")
    return Imported(conversation, left_out)


def _walk(mapping: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object], str | None]]:
    """Entries with their parents, these first; each once, whatever the file says."""
    entries = {key: entry for key, entry in mapping.items() if isinstance(entry, Mapping)}
    seen: set[str] = set()
    todo: list[tuple[str, str | None]] = [(key, None) for key, entry in reversed(entries.items()) if entry.get("parent") not in entries]
    while todo:
        key, parent = todo.pop()
        if key in seen or key not in entries:
            continue
        seen.add(key)
        yield key, entries[key], parent
        children = entries[key].get("children")
        if isinstance(children, list):
            todo += ((child, key) for child in reversed(children) if isinstance(child, str))


def _chatgpt_node(message: Mapping[str, object], parent: str | None, created: float, left_out: _LeftOut) -> Node | None:
    author, metadata, content = (_mapping(message.get(name)) for name in ("author", "metadata", "content"))
    role = str(author.get("role"))
    if role not in {"user", "assistant"} or metadata.get("is_visually_hidden_from_conversation"):
        if role == "tool":
            left_out.note("message of a tool")
        return None
    text = _chatgpt_text(content, left_out)
    if not text:
        return None
    model = metadata.get("model_slug") if role == "assistant" else ""
    return Node(
        id=new_message_id(),
        parent=parent,
        role=role,
        content=text,
        model=clean(model) if isinstance(model, str) else "",
        created=_time(message.get("create_time"), created),
        imported=True,
    )


def _chatgpt_text(content: Mapping[str, object], left_out: _LeftOut) -> str:
    kind = str(content.get("content_type"))
    parts = content.get("parts")
    if kind in {"text", "multimodal_text"} and isinstance(parts, list):
        for part in parts:
            if not isinstance(part, str):
                left_out.note(str(part.get("content_type")) if isinstance(part, Mapping) else "unknown part")
        return clean("\n".join(part for part in parts if isinstance(part, str)))
    if kind == "code" and isinstance(content.get("text"), str):
        return clean(str(content["text"]))
    left_out.note(kind)
    return ""


def _place(conversation: Conversation, node: Node) -> Node:
    """Adds a message. ChatGPT says one answer in several where it has used tools between; they are put together."""
    before = conversation.node(node.parent) if node.parent is not None else None
    if before is not None and before.role == node.role == "assistant" and not conversation.children(before.id):
        return conversation.update(replace(before, content=f"{before.content}\n\n{node.content}"))
    return conversation.add(node)


# --- values of JSON --------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Text without lone surrogates, which JSON can spell and which stand for no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{what} is no text but {json.dumps(value)[:40]}")
    return clean(value)


def _time(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < END_OF_TIME else default


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
