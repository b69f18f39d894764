"""Messages as rows of the store."""

from __future__ import annotations

import json
import sqlite3
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from chatpaged.conversation import Node, NodeState

COLUMNS = (
    "id, parent, role, content, reasoning, token_ids, reasoning_ids, finish_reason, state, sampling, model, fingerprint, usage, created, "
    "imported"
)


def insert_nodes(connection: sqlite3.Connection, session_id: str, nodes: Iterable[Node]) -> None:
    """Adds messages to a conversation."""
    places = ", ".join("?" for _ in range(COLUMNS.count(",") + 2))
    connection.executemany(
        f"INSERT INTO messages ({COLUMNS}, session) VALUES ({places})",  # noqa: S608 - names of columns
        ((*node_row(node), session_id) for node in nodes),
    )


def node_row(node: Node) -> tuple[Any, ...]:
    """The values of a message, in the order of the columns."""
    return (
        node.id,
        node.parent,
        node.role,
        storable(node.content),
        storable(node.reasoning),
        None if node.token_ids is None else pack_ids(node.token_ids),
        pack_ids(node.reasoning_ids),
        node.finish_reason,
        node.state.value,
        json.dumps(dict(node.sampling)),
        storable(node.model),
        node.fingerprint,
        json.dumps(dict(node.usage)),
        node.created,
        node.imported,
    )


def row_node(row: tuple[Any, ...]) -> Node:
    """The message of such values."""
    values = dict(zip(COLUMNS.split(", "), row, strict=True))
    ids = values.pop("token_ids")
    return Node(
        token_ids=None if ids is None else unpack_ids(ids),
        reasoning_ids=unpack_ids(values.pop("reasoning_ids")),
        state=NodeState(values.pop("state")),
        sampling=json.loads(values.pop("sampling")),
        usage=json.loads(values.pop("usage")),
        imported=bool(values.pop("imported")),
        **values,
    )


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids in four bytes each, the lowest first."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """The reverse of `pack_ids`."""
    packed = array("I")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)


def storable(text: str) -> str:
    """Text that can be stored; lone surrogates stand for no character."""
    return text.encode("utf-8", "replace").decode("utf-8")
