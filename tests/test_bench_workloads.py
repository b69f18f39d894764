"""The workloads of `bench`, and files of one's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chatpaged.bench_file import read_workload
from chatpaged.bench_workloads import WORKLOADS, Chat, Workload, w1, w2, w3
from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.messages import ChatMessage

# Of the files that the reference script (make_workloads.py) writes for other engines.
DIGESTS = {
    "w1": "00a1218393a9a4d7027a0b5c6c01eb89d841bedce298cae005bcc89454295c3b",
    "w2": "ba19c35224c0d629aa4ba16b2aae2466ee6c65f4c91e0bbcad72d1aea001e1d0",
    "w3": "68296e98beaeb40f5a65eb405fd6f8091ea1ce990e39e73bfa066f8bf0bc2d96",
}


def as_written_for_others() -> dict[str, Any]:
    (one,) = w1().chats
    requests = [{"prompt": chat.turns[0], "new_tokens": chat.new_tokens} for chat in w2().chats]
    chats = w3()
    return {
        "w1": {"prompt": one.turns[0], "new_tokens": one.new_tokens},
        "w2": {"requests": requests},
        "w3": {"system": chats.system, "sessions": [chat.turns for chat in chats.chats], "new_tokens": chats.chats[0].new_tokens},
    }


def test_token_ids_are_those_that_other_engines_are_measured_with() -> None:
    found = {
        name: hashlib.sha256(json.dumps(data, separators=(",", ":")).encode()).hexdigest() for name, data in as_written_for_others().items()
    }
    assert found == DIGESTS


def test_sizes() -> None:
    assert sum(len(chat.turns[0]) for chat in w2().chats) == 10_020
    assert {name: make().num_new_tokens for name, make in WORKLOADS.items()} == {"w1": 128, "w2": 3_999, "w3": 3_072}
    assert (w3().num_replies, w3().longest) == (48, 1024 + 3 * 104)


def test_a_part_of_a_workload_says_so() -> None:
    part = w3().limited(2)
    assert (len(part.chats), part.system) == (2, w3().system)
    assert part.about.endswith("; only the first 2 of 16 chats")
    assert w3().limited(16) == w3().limited(None) == w3()


def test_ids_are_taken_modulo_a_small_vocabulary() -> None:
    fitted = w3().fitted(300)
    assert fitted.system == tuple(token_id % 300 for token_id in w3().system)
    assert max(max(turn) for chat in fitted.chats for turn in chat.turns) < 300
    assert w3().fitted(49_152) == w3()


# --- files ---------------------------------------------------------------------------------------------------------------


def render(prompt: str | Sequence[int] | Sequence[ChatMessage]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(prompt.encode())
    if all(isinstance(item, int) for item in prompt):
        return tuple(item for item in prompt if isinstance(item, int))
    if any(item.content == "refused" for item in prompt if isinstance(item, ChatMessage)):
        raise ModelError("no chat template")
    return tuple(len(item.content) for item in prompt if isinstance(item, ChatMessage))


def read(tmp_path: Path, *lines: str) -> Workload:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_workload(path, render)


def test_prompts_are_text_ids_or_messages(tmp_path: Path) -> None:
    message = '[{"role": "user", "content": "four"}]'
    workload = read(
        tmp_path,
        '\ufeff{"prompt": "ab", "max_tokens": 3}',
        "",
        '{"prompt": [5, 6], "max_tokens": 4, "arrival": 1.5, "custom_id": "x"}',
        f'{{"prompt": {message}, "max_tokens": 5, "arrival": null}}',
        f'{{"messages": {message}, "max_tokens": 6}}',
    )
    assert workload.name == "mine.jsonl"
    assert workload.chats == (Chat(((97, 98),), 3), Chat(((5, 6),), 4, 1.5), Chat(((4,),), 5), Chat(((4,),), 6))


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{bad", "not JSON: "),
        ('"text"', "must be a JSON object"),
        ("\ud800", "not JSON that can be read"),
        ('{"prompt": "a"}', "max_tokens must be a whole number of at least 1; it is missing"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens must be"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens must be"),
        ('{"max_tokens": 1}', "give either prompt or messages"),
        ('{"prompt": "a", "messages": [], "max_tokens": 1}', "exclude each other"),
        ('{"prompt": "", "max_tokens": 1}', "prompt must be"),
        ('{"prompt": [], "max_tokens": 1}', "prompt must be"),
        ('{"prompt": [1, "a"], "max_tokens": 1}', "must be an object with role and content"),
        ('{"messages": [{"role": "user", "content": "refused"}], "max_tokens": 1}', "no chat template"),
        ('{"prompt": "a", "max_tokens": 1, "arrival": -1}', "arrival must be seconds"),
        ('{"prompt": "a", "max_tokens": 1, "arrival": NaN}', "arrival must be seconds"),
        ('{"prompt": "a", "max_tokens": 1, "max_token": 1}', "did you mean max_tokens"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, part: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"prompt": "a", "max_tokens": 1}\n\n' + line.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidRequestError) as raised:
        read_workload(path, render)
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert part in str(raised.value)


def test_files_that_are_no_workload(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="has no requests"):
        read(tmp_path, "", "")
    with pytest.raises(InvalidRequestError, match="cannot read"):
        read_workload(tmp_path, render)
