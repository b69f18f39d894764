"""Conversations as files: our own JSON, which keeps everything, Markdown to read, and what other programs have written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime

from markdown_it import MarkdownIt

from chatpaged.conversation import Conversation, Node, NodeState, new_message_id, new_session_id
from chatpaged.errors import InvalidRequestError
from chatpaged.foreign_sessions import END_OF_TIME, Imported, clean, from_chatgpt, from_openai

FORMAT = "chatpaged-session"
VERSION = 1
_HEAD = ("id", "name", "system", "model", "created", "updated", "leaf")
# Whether a message was imported is known to the store alone: a file may say what it likes.
_FIELDS = tuple(field.name for field in fields(Node) if field.name != "imported")
_TEXTS = ("content", "reasoning", "finish_reason", "model", "fingerprint")
_HEADINGS = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}
_MAX_ID = 2**32 - 1


# --- writing ---------------------------------------------------------------------------------------------------------------


def to_json(conversation: Conversation) -> str:
    """Everything about a conversation, one line a message."""
    leaf = conversation.leaf
    facts = {**vars(conversation), "leaf": leaf.id if leaf is not None else None}
    head = json.dumps({name: facts[name] for name in _HEAD}, ensure_ascii=False)
    messages = ",\n".join(json.dumps(_values(node), ensure_ascii=False) for node in conversation.nodes)
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "session": {head}, "messages": [\n{messages}\n]}}\n'


def _values(node: Node) -> dict[str, object]:
    return {name: getattr(node, name) for name in _FIELDS} | {"state": node.state.value}


def to_markdown(conversation: Conversation) -> str:
    """The way to the leaf, to be read.

    What was said to the model stands in fences longer than any inside, as it was typed. Answers are Markdown already; one that would
    run on into what follows it, such as one with an open fence, is put in a fence as well.
    """
    title = " ".join(conversation.title.split()) or "Conversation"
    date = datetime.fromtimestamp(conversation.created, UTC).strftime("%Y-%m-%d")
    parts = [f"# {title}", f"{conversation.model or 'no model'}, {date}"]
    if conversation.system:
        parts += ["## System", fenced(conversation.system)]
    for node in conversation.path():
        siblings = conversation.siblings(node.id)
        version = f" (version {siblings.index(node) + 1} of {len(siblings)})" if len(siblings) > 1 else ""
        parts.append(f"## {_HEADINGS[node.role]}{version}")
        if node.reasoning:
            parts += ["Thinking:", fenced(node.reasoning)]
        parts.append(node.content.strip("\n") if node.role == "assistant" and _is_closed(node.content) else fenced(node.content))
        if node.state is NodeState.INTERRUPTED:
            parts.append("*(interrupted)*")
    return "\n\n".join(parts) + "\n"


def fenced(text: str) -> str:
    """Text in a fence that is longer than any inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


def _is_closed(text: str) -> bool:
    """Whether a heading after a Markdown text is one."""
    end = MarkdownIt().parse(text.strip("\n") + "\n\n## end\n")[-3:]
    return [token.type for token in end] == ["heading_open", "inline", "heading_close"] and end[0].level == 0 and end[1].content == "end"


# --- reading ---------------------------------------------------------------------------------------------------------------


def read_sessions(text: str, name: str = "") -> list[Imported]:
    """The conversations in a file: our own JSON, OpenAI's messages, or ChatGPT's `conversations.json`.

    Args:
        text: its contents.
        name: what to call conversations that have no name of their own.

    Raises:
        InvalidRequestError: it is none of these.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"no JSON: {error}") from error
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "role" in item for item in value):
        return [from_openai(value, name=name)]
    if not items:
        raise InvalidRequestError("no conversations in it")
    return [_read(item, name) for item in items]


def _read(item: object, name: str) -> Imported:
    if isinstance(item, Mapping) and item.get("format") == FORMAT:
        return Imported(_own(item), {})
    if isinstance(item, Mapping) and "mapping" in item:
        return from_chatgpt(item)
    if isinstance(item, Mapping) and isinstance(item.get("messages"), list):
        model = item.get("model")
        return from_openai(item["messages"], model=clean(model) if isinstance(model, str) else "", name=name)
    raise InvalidRequestError("no conversation: neither an export of chatpaged or ChatGPT nor a list of messages with role and content")


def _own(item: Mapping[str, object]) -> Conversation:
    if item.get("version") != VERSION:
        raise InvalidRequestError(f"version {item.get('version')!r} of the format is not known, only {VERSION}; update chatpaged")
    head, messages = item.get("session"), item.get("messages")
    if not isinstance(head, Mapping) or not isinstance(messages, list):
        raise InvalidRequestError("an export of chatpaged has a session and messages")
    texts = {key: _text(head, key) for key in ("id", "name", "model")}
    conversation = Conversation(
        name=texts["name"],
        system=_text(head, "system") if head.get("system") is not None else None,
        model=texts["model"],
        session_id=_identifier(head, "id"),
        now=_moment(head, "created"),
    )
    for entry in messages:
        if not isinstance(entry, Mapping):
            raise InvalidRequestError("a message of an export of chatpaged is an object")
        conversation.add(_own_node(entry))
    conversation.branch(_identifier(head, "leaf") if head.get("leaf") is not None else None)
    conversation.updated = _moment(head, "updated")
    return conversation


def _own_node(entry: Mapping[str, object]) -> Node:
    states = {state.value: state for state in NodeState}
    if entry.get("state") not in states:
        raise InvalidRequestError(f"the state of a message is {' or '.join(states)}")
    return Node(
        id=_identifier(entry, "id"),
        parent=_identifier(entry, "parent") if entry.get("parent") is not None else None,
        role=_text(entry, "role"),
        **{key: _text(entry, key) for key in _TEXTS},
        token_ids=_ids(entry, "token_ids") if entry.get("token_ids") is not None else None,
        reasoning_ids=_ids(entry, "reasoning_ids"),
        state=states[str(entry["state"])],
        sampling=_facts(entry, "sampling"),
        usage=_facts(entry, "usage"),
        created=_moment(entry, "created"),
        imported=True,
    )


def _text(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{key} must be a text, not {json.dumps(value)[:40]}")
    return clean(value)


def _identifier(values: Mapping[str, object], key: str) -> str:
    value = _text(values, key)
    if not re.fullmatch(r"[0-9a-z]{1,40}", value):
        raise InvalidRequestError(f"{key} must consist of digits and small letters, unlike {value[:40]!r}")
    return value


def _moment(values: Mapping[str, object], key: str) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < END_OF_TIME:
        raise InvalidRequestError(f"{key} must be a time in seconds since 1970, not {json.dumps(value)[:40]}")
    return float(value)


def _ids(values: Mapping[str, object], key: str) -> tuple[int, ...]:
    value = values.get(key)
    if not isinstance(value, list) or not all(type(token_id) is int and 0 <= token_id <= _MAX_ID for token_id in value):
        raise InvalidRequestError(f"{key} must be a list of token ids")
    return tuple(value)


def _facts(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = values.get(key)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{key} must be an object")
    return value


def with_free_ids(conversation: Conversation, taken: frozenset[str]) -> Conversation:
    """The same conversation, with new ids in place of those that are taken."""
    new = {node.id: new_message_id() if node.id in taken else node.id for node in conversation.nodes}
    copy = Conversation(
        name=conversation.name,
        system=conversation.system,
        model=conversation.model,
        session_id=new_session_id() if conversation.id in taken else conversation.id,
        now=conversation.created,
    )
    for node in conversation.nodes:
        copy.add(replace(node, id=new[node.id], parent=new[node.parent] if node.parent is not None else None))
    leaf = conversation.leaf
    copy.branch(new[leaf.id] if leaf is not None else None)
    copy.updated = conversation.updated
    return copy
