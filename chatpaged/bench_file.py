"""A file of one's own to measure with: a request on each line.

```text
{"prompt": "Why is the sky blue?", "max_tokens": 64}
{"prompt": [100, 2023, 17], "max_tokens": 16, "arrival": 0.5}
{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
```

`arrival` is in seconds after the start; without it a request is there from the start. Messages may stand under `prompt` as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from chatpaged.amounts import counted
from chatpaged.batch_fields import check_names, messages_of, shown
from chatpaged.bench_workloads import Chat, Workload
from chatpaged.errors import ChatpagedError, InvalidRequestError
from chatpaged.messages import ChatMessage

Render = Callable[[str | Sequence[int] | Sequence[ChatMessage]], tuple[int, ...]]
"""Turns a prompt into token ids."""

_FIELDS = frozenset({"custom_id", "prompt", "messages", "max_tokens", "arrival"})
_MAX_LINE = 64 * 2**20


def read_workload(path: Path, render: Render) -> Workload:
    """Reads a file.

    Args:
        path: the file.
        render: turns prompts into token ids.

    Raises:
        InvalidRequestError: it cannot be read or has nothing in it; or names the line that is wrong.
    """
    try:
        with path.open("rb") as stream:
            chats = _chats(stream, path, render)
    except OSError as error:
        raise InvalidRequestError(f"cannot read {path}: {error.strerror or error}") from error
    if not chats:
        raise InvalidRequestError(f"{path} has no requests in it")
    return Workload(path.name, f"{counted(len(chats), 'request')} from {path}", tuple(chats))


def _chats(stream: BinaryIO, path: Path, render: Render) -> list[Chat]:
    chats = []
    number = 0
    while line := stream.readline(_MAX_LINE):
        number += 1
        if not line.strip():
            continue
        try:
            chats.append(_chat(_parse(line), render))
        except ChatpagedError as error:
            raise InvalidRequestError(f"{path}, line {number}: {error}") from error
    return chats


def _parse(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON that can be read: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"a request must be a JSON object, not {shown(fields)}")
    return fields


def _chat(fields: dict[str, Any], render: Render) -> Chat:
    check_names(fields, _FIELDS)
    new_tokens = fields.get("max_tokens")
    if not isinstance(new_tokens, int) or isinstance(new_tokens, bool) or new_tokens < 1:
        what = "it is missing" if new_tokens is None else f"not {shown(new_tokens)}"
        raise InvalidRequestError(f"max_tokens must be a whole number of at least 1; {what}")
    arrival = fields.get("arrival") or 0.0
    if not isinstance(arrival, int | float) or isinstance(arrival, bool) or not 0 <= arrival < math.inf:
        raise InvalidRequestError(f"arrival must be seconds after the start, not {shown(arrival)}")
    return Chat((render(_prompt(fields)),), new_tokens, float(arrival))


def _prompt(fields: dict[str, Any]) -> str | Sequence[int] | Sequence[ChatMessage]:
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidRequestError("give either prompt or messages" if prompt is None else "prompt and messages exclude each other")
    if messages is not None:
        return messages_of(messages)
    if isinstance(prompt, str) and prompt:
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError(f"prompt must be text, token ids or messages, not {shown(prompt)}")
    if not all(_is_whole(item) for item in prompt):
        return messages_of(prompt)
    return prompt


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
