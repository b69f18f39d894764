"""Conversations are kept, found again and never lost, whatever other processes do and however one ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatpaged import store_database
from chatpaged.conversation import Conversation, Node, NodeState
from chatpaged.errors import InvalidRequestError, StoreError
from chatpaged.store import Store
from chatpaged.store_database import APPLICATION_ID, MIGRATIONS, _statements
from chatpaged.store_rows import pack_ids, unpack_ids

ROOT = Path(__file__).parent.parent


def talk(*contents: str, name: str = "", now: float = 1000.0) -> Conversation:
    conversation = Conversation(name=name, system="S", model="m", now=now)
    for i, content in enumerate(contents):
        if i % 2:
            answer = conversation.add_assistant(content, now=now + i)
            conversation.update(replace(answer, state=NodeState.COMPLETE, finish_reason="stop"))
        else:
            conversation.add_user(content, now=now + i)
    return conversation


def same(first: Conversation, second: Conversation) -> bool:
    return {k: v for k, v in vars(first).items() if k != "_children"} == {k: v for k, v in vars(second).items() if k != "_children"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


def test_what_is_kept_comes_back(path: Path) -> None:
    conversation = talk("q", "a")
    first = conversation.path()[0]
    with Store(path) as store:
        store.add_session(conversation)
        conversation.branch(first.id)
        node = conversation.add_assistant("part", now=1005.0)
        store.add_message(conversation, node)
        whole = replace(
            node,
            content="part of it\0é",
            reasoning="hm",
            token_ids=(1, 2**32 - 1),
            reasoning_ids=(7,),
            finish_reason="length",
            state=NodeState.COMPLETE,
            sampling={"temperature": 0.5, "stop": ["x"]},
            model="m2",
            fingerprint="abc",
            usage={"prompt_tokens": 3},
        )
        store.update_message(conversation.update(whole))
    with Store(path) as store:
        again = store.load(conversation.id)
    assert same(again, conversation)
    assert again.leaf == whole
    assert [node.content for node in again.siblings(whole.id)] == ["a", "part of it\0é"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_only_the_owner_may_look(path: Path) -> None:  # K3
    before = os.umask(0o022)
    try:
        with Store(path) as store:
            store.add_session(talk("secret"))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("conversations.db", "conversations.db-wal", "conversations.db-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    Store(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_made_by_looking(path: Path) -> None:
    with Store(path, create=False) as store:
        assert store.sessions() == []
        assert store.latest() is None
        assert store.search("abc") == []
        with pytest.raises(InvalidRequestError, match="nothing has been saved"):
            store.resolve("x")
    assert not path.parent.exists()


def test_sessions_are_listed_renamed_and_deleted(path: Path) -> None:
    old, new = talk("first question", now=1000.0), talk("second", "answer", now=2000.0)
    with Store(path) as store:
        store.add_session(new)
        store.add_session(old)
        assert [(info.title, info.num_messages) for info in store.sessions()] == [("second", 2), ("first question", 1)]
        store.rename(old.id, " my\nname ")
        assert store.resolve("My name").id == old.id
        store.delete(new.id)
        assert [info.title for info in store.sessions()] == ["my name"]
        assert store.search("answer") == []
        with pytest.raises(StoreError, match="deleted meanwhile"):
            store.add_message(new, new.add_user("more"))
        with pytest.raises(StoreError, match="deleted meanwhile"):
            store.update_message(new.path()[0])
        with pytest.raises(StoreError, match="UNIQUE"):
            store.add_session(old)
        assert store.taken_ids(old) == {old.id, *(node.id for node in old.nodes)}
        assert store.taken_ids(new) == frozenset()
    assert b"answer" not in path.read_bytes()


def test_what_is_thrown_away_is_nowhere_until_it_is_taken_back(path: Path) -> None:
    kept, gone = talk("kept question", now=1000.0), talk("thrown question", "thrown answer", name="mine", now=2000.0)
    with Store(path) as store:
        store.add_session(kept, gone)
        store.throw_away(gone.id)
        assert [info.id for info in store.sessions()] == [kept.id]
        latest = store.latest()
        assert latest is not None
        assert latest.id == kept.id
        assert [hit.session for hit in store.search("question")] == [kept.id]
        for look in (store.load, store.resolve, lambda _: store.resolve("mine"), lambda _: store.resolve_message(gone.nodes[0].id)):
            with pytest.raises(InvalidRequestError, match=r"no (session|message)"):
                look(gone.id)
        store.add_message(gone, gone.add_user("said meanwhile"))
        assert store.taken_ids(gone) == {gone.id, *(node.id for node in gone.nodes)}
        store.undelete(gone.id)
        assert same(store.load(gone.id), gone)
        assert [info.id for info in store.sessions()] == [gone.id, kept.id]


@pytest.mark.parametrize("how", ["message", "growth", "session"])
def test_what_one_throws_away_and_another_goes_on_with_comes_back(path: Path, how: str) -> None:
    conversation = talk("question", "answer")
    with Store(path) as ours, Store(path) as theirs:
        ours.add_session(conversation)
        ours.throw_away(conversation.id)
        ours.update_message(conversation.nodes[-1])  # an answer that was stopped
        ours.update_session(conversation)
        assert ours.sessions() == []
        if how == "message":
            theirs.add_message(conversation, conversation.add_user("more"))
        elif how == "growth":
            theirs.update_message(conversation.update(replace(conversation.nodes[-1], content="longer")))
        else:
            theirs.update_session(conversation)
        assert [info.id for info in ours.sessions()] == [conversation.id]
        ours.purge(conversation.id)
        assert same(ours.load(conversation.id), conversation)
        ours.throw_away(conversation.id)
        ours.purge(conversation.id)
        ours.undelete(conversation.id)
        assert ours.sessions() == []


def test_what_was_thrown_away_is_deleted_for_good_later(path: Path) -> None:
    old, new, kept = talk("old secret"), talk("new secret"), talk("kept")
    with Store(path) as store:
        store.add_session(old, new, kept)
        store.throw_away(old.id, now=time.time() - 25 * 3600)
        store.throw_away(new.id)
        assert store.empty_bin() == 1
        store.undelete(old.id)
        store.undelete(new.id)
        assert {info.title for info in store.sessions()} == {"new secret", "kept"}
        store.throw_away(new.id)
        assert store.empty_bin(before=time.time() + 1) == 1
        store.undelete(new.id)
        assert [info.title for info in store.sessions()] == ["kept"]
    assert b"secret" not in path.read_bytes()


def test_the_marks_of_the_user_change_nothing_else(path: Path) -> None:
    conversations = [talk(f"question {i}", now=1000.0 + i) for i in range(3)]
    with Store(path) as store:
        store.add_session(*conversations)
        before = store.load(conversations[0].id)
        store.set_pinned(conversations[0].id, pinned=True)
        store.set_unread(conversations[1].id, unread=True)
        store.set_draft(conversations[0].id, "half a\nsentence \ud800")
        for nobody in ("", "nobody"):
            store.set_draft(nobody, "lost")
            assert store.draft(nobody) == ""
        assert [(info.title, info.pinned, info.unread) for info in store.sessions()] == [
            ("question 2", False, False),
            ("question 1", False, True),
            ("question 0", True, False),
        ]
        assert [info.title for info in store.sessions(2, pinned_first=True)] == ["question 0", "question 2"]
        assert (store.draft(conversations[0].id), store.draft(conversations[1].id)) == ("half a\nsentence ?", "")
        assert same(store.load(conversations[0].id), before)


def test_a_store_of_the_first_format_is_brought_up_to_date(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in _statements(MIGRATIONS[0]):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute(
        "INSERT INTO sessions (id, name, title, system, model, leaf, created, updated) VALUES ('s', '', 't', NULL, 'm', NULL, 1, 2)"
    )
    connection.close()
    with Store(path) as store:
        assert [(info.id, info.pinned, info.unread) for info in store.sessions()] == [("s", False, False)]
        assert (store.draft("s"), store.load("s").updated) == ("", 2.0)


def test_a_leaf_that_could_not_be_kept_is_replaced_by_the_newest_message(path: Path) -> None:
    conversation = talk("question", "answer")
    with Store(path) as store:
        store.add_session(conversation)
        conversation.add_user("lost")
        store.update_session(conversation)
        leaf = store.load(conversation.id).leaf
        assert leaf is not None
        assert leaf.content == "answer"


def test_two_processes_on_one_session_keep_what_both_do(path: Path) -> None:
    conversation = talk("question")
    with Store(path) as store, Store(path) as other:
        store.add_session(conversation)
        mine, theirs = store.load(conversation.id), other.load(conversation.id)
        other.rename(conversation.id, "their name")
        other.add_message(theirs, theirs.add_user("theirs"))
        store.add_message(mine, mine.add_user("mine"))
        both = store.load(conversation.id)
        assert both.name == store.sessions()[0].title == "their name"
        assert [node.content for node in both.children(conversation.nodes[0].id)] == ["theirs", "mine"]
        assert [node.content for node in both.path()] == ["question", "mine"]


def test_sessions_are_found_by_what_is_typed(path: Path) -> None:
    first, second, third = talk("Rust borrow checker"), talk("Rust lifetimes"), talk("bread", name="Baking")
    with Store(path) as store:
        for conversation in (first, second, third):
            store.add_session(conversation)
        assert store.resolve(first.id).id == first.id
        assert store.resolve(first.id[-4:]).id == first.id
        assert store.resolve("baking").id == third.id
        assert store.resolve("rust b").id == first.id
        assert store.resolve("lifetime").id == second.id
        with pytest.raises(InvalidRequestError, match=rf"'rust' may be .*{second.id} \(Rust lifetimes\)"):
            store.resolve("rust")
        with pytest.raises(InvalidRequestError, match=rf"did you mean {third.id} \(Baking\)"):
            store.resolve("bakin-g")
        with pytest.raises(InvalidRequestError, match="no session ''"):
            store.resolve("")
        conversation, node = store.resolve_message(second.nodes[0].id[-7:])
        assert (conversation.id, node) == (second.id, second.nodes[0])
        with pytest.raises(InvalidRequestError, match="or more messages"):
            store.resolve_message(second.nodes[0].id[0])
        for wrong in ("", "*", "zzz"):
            with pytest.raises(InvalidRequestError, match="no message"):
                store.resolve_message(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pineapple", ["The magic word is Pineapple, 100 %"]),
        ("neapp MAGIC", ["The magic word is Pineapple, 100 %"]),
        ("pineapple missing", []),
        ("Ic", ["The magic word is Pineapple, 100 %"]),
        ("%", ["The magic word is Pineapple, 100 %"]),
        ("_", []),
        ('"quoted"', ['say "quoted" OR NEAR(this)']),
        ("OR NEAR(", ['say "quoted" OR NEAR(this)']),
        ("", []),
        ("   ", []),
    ],
)
def test_search(path: Path, text: str, found: list[str]) -> None:
    contents = ["The magic word is Pineapple, 100 %", 'say "quoted" OR NEAR(this)', "x is y"]
    with Store(path) as store:
        store.add_session(talk(*contents))
        assert [hit.excerpt for hit in store.search(text)] == found


def test_search_follows_answers_that_grow(path: Path) -> None:
    conversation = talk("q")
    with Store(path) as store:
        store.add_session(conversation)
        node = conversation.add_assistant("elephant")
        store.add_message(conversation, node)
        store.update_message(replace(node, content="elephants and " + "x" * 100 + " giraffes"))
        assert [hit.message for hit in store.search("giraffe")] == [node.id]
        store.update_message(replace(node, content="none"))
        assert store.search("elephant") == []
        hit = store.search("none")[0]
        assert (hit.session, hit.title, hit.role) == (conversation.id, "q", "assistant")


@given(text=st.text(st.characters()) | st.text("\"'*()^:-+ \0ANDORNOT{}", max_size=30) | st.text("ab ", min_size=900, max_size=3000))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_search_is_an_error_and_every_text_finds_itself(text: str) -> None:
    storable = text.encode("utf-8", "replace").decode("utf-8")
    conversation = talk(f"before {storable} after")
    store = Store(Path(":none:"), create=False)
    store.add_session(conversation)
    found = [hit.message for hit in store.search(text)]
    if "\0" not in text:  # SQLite's own text functions stop there
        assert found == ([conversation.nodes[0].id] if text.split() else [])
    store.close()


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_are_packed(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == tuple(ids)
    assert len(pack_ids(ids)) == 4 * len(ids)


# --- files that are not what they should be ------------------------------------------------------------------------------


def refused(path: Path) -> str:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_damaged_store_is_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database " * 500)
    assert "is damaged" in refused(path)


def test_a_store_that_is_damaged_inside_says_so(path: Path) -> None:
    with Store(path) as store:
        for i in range(40):
            store.add_session(talk(f"question {i} " * 50))
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xaa" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"), Store(path) as store:
        store.load(store.sessions()[0].id)


def test_a_newer_store_and_a_foreign_one_are_left_alone(path: Path) -> None:
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert f"newer version of chatpaged (format 99, this one knows {len(MIGRATIONS)})" in refused(path)
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    assert "another program" in refused(path)


def test_a_file_in_place_of_the_directory_of_a_store_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.touch()
    assert f"Not a directory: {file};" in refused(file / "chatpaged/conversations.db")
    assert f"Not a directory: {file};" in refused(file / "conversations.db")


def test_a_store_that_cannot_be_opened_or_written(path: Path, tmp_path: Path) -> None:
    path.mkdir(parents=True)
    assert "is a directory" in refused(path)
    (tmp_path / "file").write_text("")
    assert "cannot open the store" in refused(tmp_path / "file" / "below" / "c.db")


def test_a_full_disk_loses_nothing_that_was_saved(path: Path) -> None:
    conversation = talk("kept")
    with Store(path) as store:
        store.add_session(conversation)
        pages = store._database._connection.execute("PRAGMA page_count").fetchone()[0]
        store._database._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="no space left"):
            store.add_message(conversation, conversation.add_user("x" * 100_000))
    with Store(path) as store:
        assert [node.content for node in store.load(conversation.id).nodes] == ["kept"]
        assert len(store.sessions()) == 1


def test_a_locked_store_is_waited_for_and_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_database, "BUSY_SECONDS", 0.05)
    locked = pytest.raises(StoreError, match=r"locked by another process for 0\.05 s")
    with Store(path) as holder, Store(path) as other, holder._database.writing(), locked:
        other.add_session(talk("x"))


# --- many processes, and their end -----------------------------------------------------------------------------------------

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from chatpaged.conversation import Conversation
from chatpaged.store import Store
path, number, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.stdin.read(1)
for i in range(count):
    with Store(path) as store:
        conversation = Conversation()
        conversation.add_user(f"question {number}.{i}")
        store.add_session(conversation)
        node = conversation.add_assistant("answer")
        store.add_message(conversation, node)
        for length in range(1, 5):
            store.update_message(replace(node, content="answer " * length))
"""


def test_eight_processes_at_once(path: Path) -> None:  # J3: the store is made, migrated and written by all of them together
    command = [sys.executable, "-c", WRITER, str(path)]
    processes = [subprocess.Popen([*command, str(i), "5"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) for i in range(8)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    for process in processes:
        _, complaint = process.communicate(timeout=120)
        assert (process.returncode, complaint) == (0, b"")
    with Store(path) as store:
        assert sorted(info.title for info in store.sessions()) == sorted(f"question {i}.{k}" for i in range(8) for k in range(5))
        assert len(store.search("answer", 100)) == 40


GROWER = """
import sys
from dataclasses import replace
from pathlib import Path
from chatpaged.conversation import Conversation
from chatpaged.store import Store
with Store(Path(sys.argv[1])) as store:
    conversation = Conversation()
    conversation.add_user("question")
    store.add_session(conversation)
    node = conversation.add_assistant("")
    store.add_message(conversation, node)
    for length in range(1, 100_000):
        store.update_message(replace(node, content="word " * length, token_ids=tuple(range(length))))
        print(length, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.7])
def test_what_was_saved_outlives_a_kill(path: Path, seconds: float) -> None:  # J2
    process = subprocess.Popen([sys.executable, "-c", GROWER, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    told = [first, *process.stdout.read().splitlines(keepends=True)]
    process.stdout.close()
    process.wait()
    saved = [int(line) for line in told if line.endswith(b"\n")][-1]
    with Store(path) as store:
        conversation = store.load(store.sessions()[0].id)
        node = conversation.leaf
        assert isinstance(node, Node)
        assert conversation.path()[0].content == "question"
        assert node.state is NodeState.INTERRUPTED
        assert node.token_ids is not None
        assert saved <= len(node.token_ids) <= saved + 1
        assert node.content == "word " * len(node.token_ids)
        assert [hit.message for hit in store.search("word")] == [node.id]
