"""What a batch's input may look like, and what it may not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from chatpaged import batch_rows
from chatpaged.batch_rows import BadRow, BatchRow, RowReader
from chatpaged.errors import InvalidRequestError
from chatpaged.messages import ChatMessage

HI = (ChatMessage("user", "hi"),)
# As OpenAI's documentation of the Batch API shows them.
DOCUMENTED = [
    (
        '{"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-3.5-turbo-0125", "messages": '
        '[{"role": "system", "content": "You are a helpful assistant."},{"role": "user", "content": "Hello world!"}],"max_tokens": 1000}}'
    ),
    (
        '{"custom_id": "request-2", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-3.5-turbo-0125", "messages": '
        '[{"role": "system", "content": "You are an unhelpful assistant."},{"role":"user", "content": "Hello world!"}],"max_tokens": 1000}}'
    ),
]


def read(*lines: str | bytes | dict[str, Any], **options: Any) -> list[BatchRow | BadRow]:
    raw = [line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode() for line in lines]
    return list(RowReader(io.BytesIO(b"\n".join(raw)), **options))


def row_of(**fields: Any) -> BatchRow:
    (row,) = read(fields)
    assert isinstance(row, BatchRow), row
    return row


def bad(*lines: str | bytes | dict[str, Any], **options: Any) -> BadRow:
    row = read(*lines, **options)[-1]
    assert isinstance(row, BadRow), row
    return row


def chat(**body: Any) -> dict[str, Any]:
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    return fields | {"body": {"messages": [{"role": "user", "content": "hi"}], **body}}


# --- forms ---------------------------------------------------------------------------------------------------------------


def test_rows_as_the_documentation_shows_them() -> None:  # H8
    first, second = read(*DOCUMENTED, models=("gpt-3.5-turbo-0125",))
    assert first == BatchRow(
        1,
        "request-1",
        (ChatMessage("system", "You are a helpful assistant."), ChatMessage("user", "Hello world!")),
        {"max_tokens": 1000},
    )
    assert isinstance(second, BatchRow)
    assert (second.number, second.custom_id) == (2, "request-2")


def test_plain_rows() -> None:  # H8
    assert row_of(prompt="hi") == BatchRow(1, "line-1", HI)
    assert row_of(messages=[{"role": "user", "content": "hi"}], temperature=0) == BatchRow(1, "line-1", HI, {"temperature": 0})
    assert row_of(custom_id="mine", prompt="hi", user="me", metadata={"a": "b"}).custom_id == "mine"


def test_completions_get_their_text_as_it_is() -> None:
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 4}}
    assert read(fields) == [BatchRow(1, "a", "Once", {"max_tokens": 4})]
    fields["body"] = {"prompt": ["Once"]}
    assert read(fields) == [BatchRow(1, "a", "Once")]
    fields["body"] = {"messages": []}
    assert "'messages' in body" in bad(fields).message
    fields["body"] = {"max_tokens": 3}
    assert bad(fields).message == "the row has no prompt"


def test_raw_prompts_are_those_outside_of_messages() -> None:
    rows = read({"prompt": "a"}, {"messages": [{"role": "user", "content": "hi"}]}, raw=True)
    assert [row.prompt for row in rows if isinstance(row, BatchRow)] == ["a", HI]


def test_one_prompt_a_line() -> None:  # H8
    rows = read("\ufeffWhy?", "", '{"not": json', "  two  words \r", text=True)
    assert rows == [
        BatchRow(1, "line-1", (ChatMessage("user", "Why?"),)),
        BatchRow(3, "line-3", (ChatMessage("user", '{"not": json'),)),
        BatchRow(4, "line-4", (ChatMessage("user", "  two  words "),)),
    ]
    assert "byte 0xff at position 2" in bad(b"a\xff", text=True).message


def test_marks_line_ends_and_empty_lines_are_tolerated() -> None:
    rows = list(RowReader(io.BytesIO(b'\xef\xbb\xbf{"prompt": "hi"}\r\n\r\n   \n{"prompt": "hi"}')))
    assert rows == [BatchRow(1, "line-1", HI), BatchRow(4, "line-4", HI)]
    with pytest.raises(InvalidRequestError, match="UTF-16"):
        list(RowReader(io.BytesIO('{"prompt": "hi"}'.encode("utf-16"))))
    assert read() == []


def test_contents_of_several_parts_and_newer_role_names() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "refusal": None},
        {"role": "user", "content": "go on"},
    ]
    assert row_of(messages=messages).prompt == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "one\ntwo"),
        ChatMessage("assistant", "ok", reasoning="hm"),
        ChatMessage("user", "go on"),
    )


# --- values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2, "seed": 7}, None),
        ({"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True}, None),
        ({"stop": "\n"}, {"stop": ("\n",)}),
        ({"stop": ["a", "b"], "stop_token_ids": [1, 2]}, {"stop": ("a", "b"), "stop_token_ids": (1, 2)}),
        ({"stop": []}, {}),
        ({"logit_bias": {"42": -100, "7": 1.5}}, {"logit_bias": {42: -100, 7: 1.5}}),
        ({"max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": 9, "max_tokens": 9}, {"max_tokens": 9}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": False}, {}),
        ({"logprobs": 4}, {"logprobs": 4}),
        ({"temperature": None, "stop": None, "tools": None, "unheard_of": None}, {}),
        ({"response_format": {"type": "text"}, "tools": [], "stream_options": {}, "store": False}, {}),
    ],
)
def test_sampling_values(given: dict[str, Any], taken: dict[str, Any] | None) -> None:
    expected = given if taken is None else taken
    assert row_of(prompt="hi", **given).sampling == expected
    (row,) = read(chat(**given))
    assert isinstance(row, BatchRow)
    assert row.sampling == expected


def test_streams_are_counted() -> None:  # H8
    reader = RowReader(io.BytesIO(b'{"prompt": "a", "stream": true}\n{"prompt": "b", "stream": false}\n{"prompt": "", "stream": true}'))
    assert [type(row) for row in reader] == [BatchRow, BatchRow, BadRow]
    assert reader.num_streams == 1


# --- bad rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"prompt": "hi", "temperatur": 0}, ("unknown field 'temperatur'", "did you mean temperature?")),  # A10
        ({"prompt": "hi", "logit_biases": {}}, ("'logit_biases'", "logit_bias")),
        ({"prompt": "hi", "lora": "x"}, ("unknown field 'lora'",)),
        ({"prompt": "hi", "tools": [{"type": "function"}]}, ("field 'tools' is not supported",)),
        ({"prompt": "hi", "response_format": {"type": "json_object"}}, ("field 'response_format' is not supported",)),
        (chat(temperatur=0), ("unknown field 'temperatur' in body",)),
        (chat() | {"temperature": 0}, ("unknown field 'temperature'",)),
        (chat() | {"method": "GET"}, ("method must be 'POST', not 'GET'",)),
        (chat() | {"url": "/v1/embeddings"}, ("url must be '/v1/chat/completions' or '/v1/completions', not '/v1/embeddings'",)),
        ({"custom_id": "a", "url": "/v1/chat/completions"}, ("the row has no body",)),
        ({"body": 3}, ("body must be an object, not 3",)),
        ({"prompt": ""}, ("empty prompt",)),
        ({"prompt": 3}, ("prompt must be text, not 3",)),
        ({"prompt": "a", "messages": []}, ("both",)),
        ({"custom_id": "a"}, ("neither prompt nor messages",)),
        ({"custom_id": 3, "prompt": "a"}, ("custom_id must be text, not 3",)),
        ({"prompt": "a", "model": 3}, ("model must be text, not 3",)),
        ({"messages": []}, ("empty prompt",)),
        ({"messages": [{"role": "user", "content": ""}]}, ("empty prompt",)),
        ({"messages": "hi"}, ("messages must be a list of messages, not 'hi'",)),
        ({"messages": ["hi"]}, ("messages[0] must be an object",)),
        ({"messages": [{"content": "hi"}]}, ("messages[0] has no role",)),
        ({"messages": [{"role": "robot", "content": "hi"}]}, ("unknown role 'robot'",)),
        ({"messages": [{"role": 1, "content": "hi"}]}, ("role of messages[0] must be text, not 1",)),
        ({"messages": [{"role": "user"}]}, ("content of messages[0]",)),
        ({"messages": [{"role": "user", "content": "hi", "name": "bob"}]}, ("unknown field 'name' in messages[0]",)),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, ("'image_url'",)),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning": 1}]}, ("must be text, not 1",)),
        ({"prompt": "a", "stop": 3}, ("stop must be a text or a list of texts, not 3",)),
        ({"prompt": "a", "stop_token_ids": ["1"]}, ("stop_token_ids",)),
        ({"prompt": "a", "logit_bias": [1]}, ("logit_bias must be an object",)),
        ({"prompt": "a", "logit_bias": {"x": 1}}, ("'x', which is no token id",)),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, ("logit_bias of token 1 must be a number, not 'x'",)),
        ({"prompt": "a", "ignore_eos": 1}, ("ignore_eos must be true or false, not 1",)),
        ({"prompt": "a", "top_logprobs": 2}, ("top_logprobs needs logprobs: true",)),
        ({"prompt": "a", "top_logprobs": "2", "logprobs": True}, ("top_logprobs must be a whole number",)),
        ({"prompt": "a", "top_logprobs": 2, "logprobs": 2}, ("give one",)),
        ({"prompt": "a", "max_tokens": 2, "max_completion_tokens": 3}, ("give one",)),
    ],
)
def test_bad_fields(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    row = bad(fields, models=("m",))
    assert row.code == "invalid_row"
    for part in parts:
        assert part in row.message


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{bad json", "not JSON: Expecting property name enclosed in double quotes at column 2; --text"),
        ("Why is the sky blue?", "--text takes one prompt a line"),
        (b'{"prompt": "\xff"}', "not valid UTF-8: byte 0xff at position 13 of the line"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"prompt": "a", "temperature": NaN}', "NaN is no JSON number"),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ("[" * 100_000, "not JSON that can be read"),
        ('["a"]', "a row must be a JSON object, not ['a']"),
    ],
)
def test_lines_that_are_no_rows(line: str | bytes, part: str) -> None:  # H1
    row = bad('{"prompt": "hi"}', line)
    assert (row.number, row.custom_id, row.code) == (2, "line-2", "invalid_row")
    assert part in row.message


def test_pairs_of_surrogates_are_text() -> None:
    (row,) = read('{"prompt": "\\ud83d\\ude00"}')
    assert isinstance(row, BatchRow)
    assert row.prompt == (ChatMessage("user", "😀"),)


def test_ids_that_are_given_twice() -> None:  # H6
    rows = read(
        {"custom_id": "a", "prompt": "1"}, {"custom_id": "a", "prompt": "2"}, {"prompt": "3"}, {"custom_id": "line-3", "prompt": "4"}
    )
    assert [(type(row), row.custom_id) for row in rows] == [(BatchRow, "a"), (BadRow, "a"), (BatchRow, "line-3"), (BadRow, "line-3")]
    codes = [row.code for row in rows if isinstance(row, BadRow)]
    assert codes == ["duplicate_custom_id"] * 2
    # A bad row has taken its id as well: otherwise two rows of the output would have the same.
    assert bad({"custom_id": "a", "promt": "1"}, {"custom_id": "a", "prompt": "2"}).code == "duplicate_custom_id"


def test_rows_for_another_model() -> None:  # H8
    row = bad({"prompt": "a", "model": "gpt-4"}, models=("starter", "org/name"))
    assert (row.code, "'gpt-4'" in row.message, "'starter'" in row.message) == ("model_mismatch", True, True)
    assert isinstance(read({"prompt": "a", "model": "org/name"}, models=("starter", "org/name"))[0], BatchRow)
    assert isinstance(read({"prompt": "a", "model": "gpt-4"})[0], BatchRow)


# --- a stream that never ends --------------------------------------------------------------------------------------------


def test_lines_too_long_are_skipped_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "MAX_LINE", 2**20)
    lines = b'{"prompt": "a"}\n' + b"x" * (5 * 2**20 + 3) + b'\n{"prompt": "b"}\n' + b"y" * 2**20
    reader = RowReader(io.BytesIO(lines))
    rows = list(reader)
    assert [row.number for row in rows] == [1, 2, 3, 4]
    assert [type(row) for row in rows] == [BatchRow, BadRow, BatchRow, BadRow]
    assert isinstance(rows[1], BadRow)
    assert rows[1].message == "the line is longer than 1 MiB"
    assert reader.bytes_read == len(lines)


def test_rows_are_read_when_it_is_their_turn() -> None:
    def lines() -> Iterator[bytes]:
        yield b'{"prompt": "a"}\n'
        raise AssertionError("read ahead")

    class Endless(io.BytesIO):
        source = lines()

        def readline(self, size: int | None = -1, /) -> bytes:
            return next(self.source)

    assert next(iter(RowReader(Endless()))).custom_id == "line-1"
