"""Writes that nobody waits for arrive whole, in order, and late rather than never."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatpaged import session_reply, store_background, store_database, store_queue
from chatpaged.chat_template import ChatTemplate
from chatpaged.conversation import Conversation, NodeState
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.errors import InvalidRequestError, StoreError
from chatpaged.session import ChatSession, SessionModel
from chatpaged.store import Store
from chatpaged.store_background import BackgroundStore
from tests.byte_tokenizer import END, TEMPLATE, byte_tokenizer

LIMIT = 120.0  # seconds; only a broken test waits so long


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def store(path: Path, errors: list[str]) -> Iterator[BackgroundStore]:
    store = BackgroundStore(path, on_error=lambda error: errors.append(str(error)))
    store.opened.result(LIMIT)
    yield store
    store.close(LIMIT)
    assert not store._writer.is_alive()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite gives up on a lock almost at once, and so do reads on writes."""
    monkeypatch.setattr(store_database, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(store_background, "BEHIND_SECONDS", 0.01)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes, and takes its time."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA busy_timeout = 20000")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def on_disk(path: Path, conversation: Conversation) -> Conversation:
    with Store(path) as store:
        return store.load(conversation.id)


def contents(conversation: Conversation) -> list[str]:
    return [node.content for node in conversation.nodes]


def hold(store: BackgroundStore) -> threading.Event:
    """Keeps the writer busy until the event is set."""
    begun, may_end = threading.Event(), threading.Event()

    def wait(_: Store) -> None:
        begun.set()
        assert may_end.wait(LIMIT)

    store.write(wait)
    assert begun.wait(LIMIT)
    return may_end


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_writes_arrive_in_order_and_as_they_were_asked_for(store: BackgroundStore, path: Path, errors: list[str]) -> None:
    conversation = Conversation(system="S", model="m")
    question = conversation.add_user("q")
    may_end = hold(store)
    store.add_session(conversation)
    answer = conversation.add_assistant("a")
    store.add_message(conversation, answer)
    conversation.system = "T"
    store.update_session(conversation)
    conversation.system = "never asked for"
    conversation.add_user("nor this")
    store.rename(conversation.id, "name")
    store.set_pinned(conversation.id, pinned=True)
    store.set_unread(conversation.id, unread=True)
    store.set_draft(conversation.id, "hal")
    store.set_draft(conversation.id, "half")
    may_end.set()
    assert store.flush(LIMIT)
    stored = on_disk(path, conversation)
    assert (stored.system, stored.name, stored.leaf) == ("T", "name", answer)
    assert stored.nodes == (question, answer)
    with Store(path) as direct:
        (info,) = direct.sessions()
        assert (info.pinned, info.unread, direct.draft(info.id)) == (True, True, "half")
    assert errors == []


def test_what_a_message_has_become_replaces_what_is_queued_of_it(store: BackgroundStore, path: Path) -> None:
    conversation = Conversation()
    conversation.add_user("q")
    store.add_session(conversation)
    may_end = hold(store)
    first, second = (conversation.add_assistant(text) for text in ("one", "two"))
    for node in (first, second):
        store.add_message(conversation, node)
    for i in range(100):
        for node in (first, second):
            store.update_message(conversation.update(replace(node, content=f"{node.content} {i}")))
    assert len(store._queue._entries) == 2
    may_end.set()
    assert store.flush(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q", "one 99", "two 99"]
    for i in range(3):
        store.update_message(replace(first, content=f"more {i}"))
    assert store.flush(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q", "more 2", "two 99"]


def test_a_message_that_grows_while_it_is_written_is_written_again(store: BackgroundStore, path: Path) -> None:
    conversation = Conversation()
    conversation.add_user("q")
    store.add_session(conversation)
    node = conversation.add_assistant("one")
    with locked(path):
        store.add_message(conversation, node)
        wait_until(lambda: store._queue._current is not None)
        store.update_message(replace(node, content="two"))
        store.update_message(replace(node, content="three"))
    assert store.flush(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q", "three"]


def test_nobody_waits_for_a_locked_store(store: BackgroundStore, path: Path) -> None:  # J3
    conversation = Conversation()
    conversation.add_user("q")
    with locked(path):
        begin = time.monotonic()
        store.add_session(conversation)
        for i in range(100):
            node = conversation.add_assistant(f"{i}")
            store.add_message(conversation, node)
            store.update_message(replace(node, content=f"{i}!"))
        assert time.monotonic() - begin < 1.0  # SQLite would have waited 20 s
        assert not store.flush(0.01)
    assert store.flush(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q", *(f"{i}!" for i in range(100))]


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_outlasts_the_patience_loses_nothing_and_is_told_once(path: Path) -> None:
    told: list[str] = []
    store = BackgroundStore(path, on_error=lambda error: told.append(str(error)))
    store.opened.result(LIMIT)
    assert store.flush(LIMIT)
    conversation = Conversation()
    conversation.add_user("q")
    with locked(path):
        store.add_session(conversation)
        wait_until(lambda: told)
        node = conversation.add_assistant("one")
        store.add_message(conversation, node)
        for i in range(20):
            store.update_message(conversation.update(replace(node, content=f"{i}")))
            conversation.model = f"m{i}"
            store.update_session(conversation)
            assert not store.flush(0.05)
    assert len(told) == 1
    assert "locked by another process" in told[0]
    # The next write takes with it what could not be written before.
    store.set_draft(conversation.id, "more")
    assert store.flush(LIMIT)
    stored = on_disk(path, conversation)
    assert (contents(stored), stored.model) == (["q", "19"], "m19")
    assert store.close(LIMIT)


@pytest.mark.usefixtures("impatient")
def test_what_failed_is_tried_again_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_queue, "RETRY_SECONDS", 0.02)
    told: list[StoreError] = []
    store = BackgroundStore(path, on_error=told.append)
    store.opened.result(LIMIT)
    conversation = Conversation()
    conversation.add_user("q")
    with locked(path):
        store.add_session(conversation)
        wait_until(lambda: told)
    wait_until(store._queue._is_done)
    assert contents(on_disk(path, conversation)) == ["q"]
    store.close(LIMIT)


def test_a_full_disk_keeps_the_order_until_there_is_room(store: BackgroundStore, path: Path, errors: list[str]) -> None:
    def limit(pages: int) -> Callable[[Store], object]:
        return lambda direct: direct._database._connection.execute(f"PRAGMA max_page_count = {pages}")

    conversation = Conversation()
    conversation.add_user("q")
    store.add_session(conversation)
    store.write(limit(1))  # no more than there are
    question = conversation.add_user("long " * 20000)
    store.add_message(conversation, question)
    assert not store.flush(LIMIT)
    answer = conversation.add_assistant("a")
    store.add_message(conversation, answer)
    store.update_message(conversation.update(replace(answer, content="answer")))
    assert not store.flush(LIMIT)
    assert len(errors) == 1
    assert "no space left" in errors[0]
    assert contents(on_disk(path, conversation)) == ["q"]
    store._queue._entries[("", -1)] = store_queue._Entry(-1, ("", -1), limit(2**30))
    store._queue._entries.move_to_end(("", -1), last=False)
    assert store.flush(LIMIT)
    assert on_disk(path, conversation).path() == conversation.path()


def test_what_can_never_be_written_holds_nothing_up(
    store: BackgroundStore, path: Path, errors: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    conversation = Conversation()
    node = conversation.add_user("q")
    for _ in range(3):
        store.update_message(node)  # never added
        assert store.flush(LIMIT)
    store.rename("nobody", "x")
    store.write(lambda _: 1 // 0)
    store.add_session(conversation)
    store.add_session(conversation)
    assert store.flush(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q"]
    assert [error.split(";")[0] for error in errors] == [
        f"message {node.id} was deleted meanwhile",
        "cannot keep a change: no session 'nobody'",
        "cannot keep a change: integer division or modulo by zero",
        f"the store {path} failed: UNIQUE constraint failed: sessions.id",
    ]
    assert len(caplog.records) == 1


def test_a_conversation_that_was_deleted_elsewhere_and_is_gone_on_with_is_kept(
    store: BackgroundStore, path: Path, errors: list[str]
) -> None:
    conversation = Conversation()
    conversation.add_user("q")
    store.add_session(conversation)
    assert store.flush(LIMIT)
    with Store(path) as other:
        other.delete(conversation.id)
    answer = conversation.add_assistant("a")
    store.add_message(conversation, answer)
    assert store.flush(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q", "a"]
    assert errors == []


def test_a_listener_that_has_gone_ends_nothing(path: Path) -> None:
    def gone(_: StoreError) -> None:
        raise RuntimeError("the loop is closed")

    store = BackgroundStore(path, on_error=gone)
    store.rename("nobody", "x")
    conversation = Conversation()
    conversation.add_user("q")
    store.add_session(conversation)
    assert store.close(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q"]


# --- reading -----------------------------------------------------------------------------------------------------------------


def test_reads_see_the_writes_before_them(store: BackgroundStore) -> None:
    async def main() -> None:
        for i in range(20):
            conversation = Conversation()
            conversation.add_user(f"question {i}")
            store.add_session(conversation)
            assert len(await store.read(lambda direct: direct.sessions())) == i + 1
        store.throw_away(conversation.id)
        assert await store.read(lambda direct: direct.search("question 19")) == []
        store.undelete(conversation.id)
        assert (await store.read(lambda direct: direct.load(conversation.id))).id == conversation.id
        with pytest.raises(InvalidRequestError, match="no session"):
            await store.read(lambda direct: direct.load("nobody"))

    run(main)


def test_reads_do_not_wait_for_long(store: BackgroundStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_background, "BEHIND_SECONDS", 0.2)

    async def main() -> None:
        assert store.flush(LIMIT)
        may_end = hold(store)
        store.set_draft("x", "y")
        begin = time.monotonic()
        assert await store.read(lambda direct: direct.sessions()) == []
        assert time.monotonic() - begin >= 0.2
        monkeypatch.setattr(store_background, "BEHIND_SECONDS", LIMIT)
        # It has been waited for: nobody else does.
        assert await store.read(lambda direct: direct.sessions()) == []
        may_end.set()

    run(main)


# --- beginning and end ---------------------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_opened_says_so_and_is_tried_again(path: Path, errors: list[str]) -> None:
    path.mkdir()
    store = BackgroundStore(path, on_error=lambda error: errors.append(str(error)))
    with pytest.raises(StoreError, match="is a directory"):
        store.opened.result(LIMIT)
    conversation = Conversation()
    conversation.add_user("q")
    store.add_session(conversation)
    assert not store.flush(LIMIT)

    async def read() -> None:
        with pytest.raises(StoreError, match="is a directory"):
            await store.read(lambda direct: direct.sessions())

    run(read)
    path.rmdir()
    assert store.close(LIMIT)
    assert contents(on_disk(path, conversation)) == ["q"]
    assert len(errors) == 1


@pytest.mark.usefixtures("impatient")
def test_closing_gives_up_on_what_cannot_be_written(path: Path) -> None:
    told: list[StoreError] = []
    store = BackgroundStore(path, on_error=told.append)
    assert store.opened.result(LIMIT) is None
    assert store.flush(LIMIT)
    conversation = Conversation()
    conversation.add_user("q")
    with locked(path):
        store.add_session(conversation)
        assert not store.close(LIMIT)
        assert not store._writer.is_alive()
        assert not store.close(LIMIT)
    assert told
    with pytest.raises(StoreError, match="closed"):
        store.update_session(conversation)
    with pytest.raises(StoreError, match="closed"):
        store.update_message(conversation.nodes[0])


def test_what_was_thrown_away_is_deleted_at_the_end(path: Path) -> None:
    conversations = [Conversation() for _ in range(4)]
    for i, conversation in enumerate(conversations):
        conversation.add_user(f"secret {i}")
    with Store(path) as direct:
        direct.add_session(*conversations)
        direct.throw_away(conversations[0].id, now=time.time() - 2 * 24 * 3600)  # by one that was killed
        direct.throw_away(conversations[1].id)  # by another that may still take it back
    store = BackgroundStore(path, on_error=lambda _: None)
    store.throw_away(conversations[2].id)
    store.throw_away(conversations[3].id)
    store.undelete(conversations[3].id)
    assert store.close(LIMIT)
    with Store(path) as direct:
        for conversation in conversations:
            direct.undelete(conversation.id)
        assert {info.title for info in direct.sessions()} == {"secret 1", "secret 3"}


def test_what_another_goes_on_with_is_not_deleted_at_the_end(path: Path) -> None:
    conversation = Conversation()
    conversation.add_user("question")
    ours, theirs = (BackgroundStore(path, on_error=lambda _: None) for _ in range(2))
    ours.add_session(conversation)
    ours.throw_away(conversation.id)
    assert ours.flush(LIMIT)
    theirs.add_message(conversation, conversation.add_user("more"))
    assert theirs.flush(LIMIT)
    assert ours.close(LIMIT)
    assert theirs.close(LIMIT)
    assert contents(on_disk(path, conversation)) == ["question", "more"]


def test_a_session_keeps_its_answers_in_the_background(store: BackgroundStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_reply, "SAVE_SECONDS", 0.0)
    tokenizer = byte_tokenizer()
    template = ChatTemplate(TEMPLATE, tokenizer)
    engine = LLMEngine(ScriptedExecutor([*b"an answer", END]), tokenizer, chat_template=template)
    session = ChatSession(SessionModel("m", tokenizer, template, 8192), store=store)
    reply = session.start(engine, session.draft("q"), SamplingParams(temperature=0, n=2))
    stream = session.stream(engine, reply)
    next(stream)
    assert store.flush(LIMIT)
    stored = on_disk(path, session.conversation)
    assert contents(stored) == ["q", "a", "a"]
    assert stored.nodes[-1].state is NodeState.INTERRUPTED
    for _ in stream:
        pass
    assert store.flush(LIMIT)
    stored = on_disk(path, session.conversation)
    assert stored.nodes == session.conversation.nodes
    assert stored.leaf == session.conversation.leaf
