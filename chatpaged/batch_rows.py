"""A batch's input: one row a line, read when it is its turn, each either something to run or the reason why it cannot be run.

Three forms may stand in one file:

```text
{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [...], "max_tokens": 9}}
{"messages": [...], "max_tokens": 9}
{"prompt": "Why is the sky blue?"}
```

With `text`, a line is a prompt and nothing else.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from chatpaged.batch_fields import SAMPLING_FIELDS, STREAM, check_names, messages_of, sampling_of, shown
from chatpaged.errors import InvalidRequestError
from chatpaged.messages import ChatMessage

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MAX_LINE = 64 * 2**20
INVALID_ROW, DUPLICATE, MODEL_MISMATCH = "invalid_row", "duplicate_custom_id", "model_mismatch"
_ENVELOPE = frozenset({"method", "url", "body"})
_COMPLETION_FIELDS = SAMPLING_FIELDS | {"model", "prompt"}
_CHAT_FIELDS = _COMPLETION_FIELDS | {"messages"}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request.

    Attributes:
        number: its line, from 1 on; empty lines count.
        custom_id: the user's name for it; `line-N` where there is none.
        prompt: messages; or, of a completion, text that goes to the model as it is.
        sampling: values that are given, by their names in `SamplingParams`.
    """

    number: int
    custom_id: str
    prompt: str | tuple[ChatMessage, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that is no request, and why."""

    number: int
    custom_id: str
    code: str
    message: str


class RowReader:
    """Reads rows from a stream of bytes, one after another.

    Of all rows it keeps a hash of their ids, some 100 bytes each, to find those that are given twice.

    Attributes:
        num_streams: rows that asked for a stream, which a batch has none of.
        bytes_read: how far it has come.
    """

    def __init__(self, stream: BinaryIO, *, text: bool = False, raw: bool = False, models: Sequence[str] = ()) -> None:
        """Makes a reader.

        Args:
            stream: the input.
            text: each line is a prompt.
            raw: a prompt outside of messages goes to the model as it is, as that of a completion.
            models: names of the model that is loaded, of which a row may give one; without any, it may give what it likes.
        """
        self._stream = stream
        self._text = text
        self._raw = raw
        self._models = models
        self._ids: set[int] = set()
        self.num_streams = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[BatchRow | BadRow]:
        """Reads the rows.

        Raises:
            InvalidRequestError: this is not UTF-8 text at all.
        """
        number = 0
        while line := self._stream.readline(MAX_LINE + 1):
            number += 1
            self.bytes_read += len(line)
            if number == 1:
                line = _without_mark(line)
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                self._skip_line()
                message = f"the line is longer than {MAX_LINE // 2**20} MiB"
                yield self._unless_known(BadRow(number, f"line-{number}", INVALID_ROW, message))
            elif line.strip():
                yield self._row(number, line)

    def _skip_line(self) -> None:
        while (rest := self._stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
            self.bytes_read += len(rest)
        self.bytes_read += len(rest)

    def _row(self, number: int, line: bytes) -> BatchRow | BadRow:
        name = f"line-{number}"
        try:
            if self._text:
                row: BatchRow | BadRow = BatchRow(number, name, self._prompt(_decode(line).rstrip("\r\n")))
            else:
                fields = _parse(line)
                name = _id_of(fields, name)
                row = self._request(number, name, fields)
        except _OtherModelError as error:
            row = BadRow(number, name, MODEL_MISMATCH, str(error))
        except InvalidRequestError as error:
            row = BadRow(number, name, INVALID_ROW, str(error))
        return self._unless_known(row)

    def _unless_known(self, row: BatchRow | BadRow) -> BatchRow | BadRow:
        key = hash(row.custom_id)
        if key in self._ids:
            return BadRow(row.number, row.custom_id, DUPLICATE, f"custom_id {shown(row.custom_id)} is that of an earlier row")
        self._ids.add(key)
        return row

    def _request(self, number: int, name: str, fields: dict[str, Any]) -> BatchRow:
        url = CHAT
        if _ENVELOPE.isdisjoint(fields):
            check_names(fields, _CHAT_FIELDS | {"custom_id"})
        else:
            url, fields = _unpacked(fields)
            check_names(fields, _CHAT_FIELDS if url == CHAT else _COMPLETION_FIELDS, "body")
        self._check_model(fields.get("model"))
        row = BatchRow(number, name, self._prompt_of(fields, url), sampling_of(fields))
        self.num_streams += fields.get(STREAM) is True
        return row

    def _prompt_of(self, fields: Mapping[str, Any], url: str) -> str | tuple[ChatMessage, ...]:
        prompt, messages = fields.get("prompt"), fields.get("messages")
        if url == COMPLETION:
            return _checked(prompt)
        if messages is None and prompt is None:
            raise InvalidRequestError("the row has neither prompt nor messages")
        if messages is not None and prompt is not None:
            raise InvalidRequestError("the row has both prompt and messages; give one")
        return messages_of(messages) if messages is not None else self._prompt(_checked(prompt))

    def _prompt(self, text: str) -> str | tuple[ChatMessage, ...]:
        return text if self._raw else (ChatMessage("user", text),)

    def _check_model(self, model: object) -> None:
        if model is None or not self._models:
            return
        if not isinstance(model, str):
            raise InvalidRequestError(f"model must be text, not {shown(model)}")
        if model not in self._models:
            raise _OtherModelError(f"the row is for model {shown(model)}, but {self._models[0]!r} is loaded; --ignore-model runs it anyway")


class _OtherModelError(InvalidRequestError):
    """A row for a model that is not loaded."""


# --- one line ----------------------------------------------------------------------------------------------------------


def _without_mark(line: bytes) -> bytes:
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InvalidRequestError("the input is UTF-16; a batch is read as UTF-8, convert it first (iconv -f utf-16 -t utf-8)")
    return line.removeprefix(codecs.BOM_UTF8)


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"not valid UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line") from error


def _parse(line: bytes) -> dict[str, Any]:
    text = _decode(line)
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
        if _SURROGATE.search(line):
            json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError("not valid UTF-8 text: half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"not JSON: {error.msg} at column {error.colno}; --text takes one prompt a line") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON that can be read: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"a row must be a JSON object, not {shown(fields)}")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _id_of(fields: dict[str, Any], name: str) -> str:
    custom_id = fields.get("custom_id")
    if custom_id is None:
        return name
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidRequestError(f"custom_id must be text, not {shown(custom_id)}")
    return custom_id


def _unpacked(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Address and body of a row in OpenAI's form."""
    check_names(fields, _ENVELOPE | {"custom_id"})
    method, url, body = fields.get("method", "POST"), fields.get("url", CHAT), fields.get("body")
    if method != "POST":
        raise InvalidRequestError(f"method must be 'POST', not {shown(method)}")
    if url not in (CHAT, COMPLETION):
        raise InvalidRequestError(f"url must be {CHAT!r} or {COMPLETION!r}, not {shown(url)}")
    if not isinstance(body, dict):
        raise InvalidRequestError("the row has no body" if body is None else f"body must be an object, not {shown(body)}")
    return url, body


def _checked(prompt: object) -> str:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]  # as OpenAI's own client sends a single one
    if prompt is None:
        raise InvalidRequestError("the row has no prompt")
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"prompt must be text, not {shown(prompt)}")
    if not prompt:
        raise InvalidRequestError("empty prompt")
    return prompt
