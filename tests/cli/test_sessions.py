"""`chatpaged sessions`."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from chatpaged.conversation import Conversation
from chatpaged.paths import store_file
from chatpaged.session_formats import to_json
from chatpaged.store import Store
from tests.cli.runner import Result, run_inside, run_process
from tests.cli.test_completion import complete


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def sessions(*arguments: str, stdin: bytes = b"") -> Result:
    return run_inside("sessions", *arguments, stdin=stdin)


def good(*arguments: str, stdin: bytes = b"") -> str:
    result = sessions(*arguments, stdin=stdin)
    assert (result.status, result.err) == (0, "")
    return result.out


def saved(*contents: str, name: str = "", now: float = 1700000000.0) -> Conversation:
    talk = Conversation(name=name, model="m", now=now)
    for i, content in enumerate(contents):
        talk.add_assistant(content, now=now + i) if i % 2 else talk.add_user(content, now=now + i)
    with Store() as store:
        store.add_session(talk)
    return talk


def test_nothing_is_made_by_looking(home: Path) -> None:
    assert sessions("list").err == "chatpaged: no conversations have been saved yet\n"
    assert good("list", "--json") == '{"sessions": []}\n'
    assert sessions("search", "x").err == "chatpaged: nothing found\n"
    assert good("search", "x", "--json") == '{"messages": []}\n'
    sessions("show", "x").failed(2, "nothing has been saved")
    assert not (home / "data").exists()


def test_list_show_search() -> None:
    old = saved("Old question", "The answer is a pineapple")
    new = saved("New question", now=1800000000.0)
    lines = good("ls").splitlines()
    assert [line.split()[0] for line in lines] == ["ID", new.id, old.id]
    assert lines[2].split("  ")[-1] == "Old question"
    assert [line.split()[0] for line in good("list", "-n", "1").splitlines()] == ["ID", new.id]
    listed = json.loads(good("list", "--json"))["sessions"]
    assert [(entry["id"], entry["num_messages"], entry["updated"]) for entry in listed] == [
        (new.id, 1, "2027-01-15T08:00:00+00:00"),
        (old.id, 2, "2023-11-14T22:13:21+00:00"),
    ]
    shown = good("show", "old")
    assert shown.startswith(
        f"{old.id}  Old question\n\nYou  {old.nodes[0].id}\nOld question\n\nAssistant  {old.nodes[1].id}  (interrupted)\n"
    )
    data = json.loads(good("show", old.id[-4:], "--json"))
    assert [(entry["role"], entry["versions"]) for entry in data["messages"]] == [
        ("user", [old.nodes[0].id]),
        ("assistant", [old.nodes[1].id]),
    ]
    assert good("search", "NEAPP").splitlines() == [
        f"{old.id}  Old question",
        f"    {old.nodes[1].id}  Assistant: The answer is a pineapple",
    ]
    assert [hit["session"] for hit in json.loads(good("search", "question", "--json"))["messages"]] == [new.id, old.id]
    assert sessions("search", "--", '"(*').err == "chatpaged: nothing found\n"
    sessions("show", "question").failed(2, "may be", old.id, new.id)


def test_rename_and_delete() -> None:
    first, second = saved("one"), saved("two")
    assert good("rename", "one", "My talk") == f"{first.id}  My talk\n"
    assert json.loads(good("rename", "my talk", "Mine", "--json")) == {"id": first.id, "title": "Mine"}
    sessions("delete", "Mine").failed(2, f"this deletes {first.id} (Mine, 1 messages); say --yes")
    assert good("rm", "Mine", "two", "-y").startswith(f"deleted {first.id} (Mine, 1 messages), {second.id} (two")
    third = saved("three")
    assert json.loads(good("delete", "three", "--yes", "--json")) == {"deleted": [third.id]}
    assert good("list", "--json") == '{"sessions": []}\n'


def test_export_and_import_are_each_others_reverse(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # J6
    first, second = saved("one", "```\nopen"), saved("two", now=1800000000.0)
    exported = good("export", "--all")
    assert good("export", "one") == to_json(first)
    assert json.loads(exported)[1]["session"]["id"] == second.id
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "empty"))
    assert good("import", "-", stdin=exported.encode()).splitlines() == [f"{first.id}  one (2 messages)", f"{second.id}  two (1 messages)"]
    assert good("export", "-a", "--json") == exported
    # Once more: new ids, nothing is overwritten; also where a file holds the same one twice.
    imported = json.loads(good("import", "-", "--json", stdin=f"[{to_json(first)},{to_json(first)}]".encode()))["sessions"]
    assert len({first.id, *(entry["id"] for entry in imported)}) == 3
    assert len(json.loads(good("list", "--json"))["sessions"]) == 4


def test_export_into_a_file(home: Path) -> None:
    saved("one `````", "answer")
    sessions("export", "one", "-o", str(home / "out/talk.md")).failed(2, "No such file or directory")
    (home / "out").mkdir()
    good("export", "one", "-o", str(home / "out/talk.md"))
    text = (home / "out/talk.md").read_text(encoding="utf-8")
    assert "\n``````text\none `````\n``````\n" in text
    assert stat.S_IMODE((home / "out/talk.md").stat().st_mode) == 0o600
    assert good("export", "one", "--format", "markdown") == text
    good("export", "one", "-o", str(home / "talk.json"))
    assert (home / "talk.json").read_text(encoding="utf-8") == good("export", "one")
    sessions("export").failed(2, "--all")
    sessions("export", "one", "--all").failed(2, "--all")
    sessions("export", "one", "--json", "--format", "markdown").failed(2, "exclude each other")
    sessions("export", "one", "-o", str(home / "talk.json/x")).failed(2, "cannot write")


def test_import_of_others(home: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "look"}]}]
    (home / "my talk.json").write_text(json.dumps(messages), encoding="utf-8-sig")
    result = sessions("import", str(home / "my talk.json"))
    assert result.status == 0
    assert result.err == "chatpaged: my talk: left out image_url (1 times)\n"
    assert result.out.endswith("  my talk (1 messages)\n")


def test_a_wrong_file_imports_nothing(home: Path) -> None:
    (home / "good.json").write_text('[{"role": "user", "content": "hi"}]')
    (home / "bad.json").write_text("{")
    (home / "latin.json").write_bytes(b"\xe9")
    sessions("import", str(home / "good.json"), str(home / "bad.json")).failed(2, "cannot import", "bad.json", "no JSON")
    sessions("import", str(home / "latin.json")).failed(2, "not in UTF-8")
    sessions("import", str(home / "none.json")).failed(2, "does not exist")
    assert not (home / "data").exists()


def test_a_damaged_store_is_one_line() -> None:
    saved("x")
    store_file().write_bytes(b"x" * 5000)
    sessions("list").failed(1, "is damaged", str(store_file()), "move it away")
    run_process("sessions", "list").failed(1, "is damaged")


def test_ids_and_names_are_completed(home: Path) -> None:
    first, second = saved("one", name="Baking"), saved("two")
    data = str(home / "data")
    assert sorted(complete("sessions", "show", "", XDG_DATA_HOME=data)) == sorted([first.id, second.id, "Baking"])
    assert complete("sessions", "delete", "Ba", XDG_DATA_HOME=data) == ["Baking"]
    assert complete("sessions", "export", second.id[-4:], XDG_DATA_HOME=data) == [second.id]
    assert complete("sessions", "show", "", XDG_DATA_HOME=str(home / "none")) == []
    assert not (home / "none").exists()
    store_file().write_bytes(b"x" * 5000)
    assert complete("sessions", "show", "B", XDG_DATA_HOME=data) == []


def test_export_writes_where_it_is_told(home: Path) -> None:
    saved("a", name="one")
    target, link = home / "target.json", home / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    good("export", "one", "-o", str(link))
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == good("export", "one")
    pipe = home / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    good("export", "one", "-o", str(pipe))
    assert os.read(reader, 2**20).decode() == good("export", "one")
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
