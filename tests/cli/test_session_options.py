"""Which conversation a command goes on with, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from chatpaged.cli.answers import Answers
from chatpaged.cli.session_options import SessionChoice, run_draft, session_options
from chatpaged.cli.signals import INTERRUPTED, Interrupted
from chatpaged.conversation import Conversation, NodeState
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow
from chatpaged.errors import ChatpagedError, InvalidRequestError
from chatpaged.messages import ChatMessage
from chatpaged.paths import store_file
from chatpaged.session import SessionOptions
from chatpaged.store import Store
from tests.test_session import GREEDY, World, counted


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def ask(world: World, *arguments: str, system: str | None = None, shown: list[str] | None = None) -> Answers:
    """A command with these options, as `ask` is one."""

    @click.command()
    @click.argument("text")
    @session_options
    def command(*, text: str, **options: Any) -> Answers:
        choice = SessionChoice.take(options)
        with choice.opened(world.model, system=system, options=SessionOptions()) as session:
            draft = session.draft(text)
            return run_draft(world.llm, session, draft, GREEDY, lambda delta: (shown if shown is not None else []).append(delta.text))

    answers: Answers = command.main([*arguments], standalone_mode=False)
    return answers


@pytest.fixture
def world(home: Path) -> World:
    return World(home / "unused" / "x.db")


def kept() -> list[Conversation]:
    with Store(create=False) as store:
        return [store.load(info.id) for info in store.sessions()]


def said(conversation: Conversation) -> list[str]:
    return [node.content for node in conversation.path() if node.role == "user"]


def test_conversations_are_kept_and_gone_on_with(world: World) -> None:
    answers = ask(world, "one", system="S")
    assert answers.completions[0].text == "abcdefghij"
    assert answers.metrics is not None
    first = kept()[0]
    assert (first.system, said(first), first.model) == ("S", ["one"], "scripted")
    ask(world, "other")
    assert len(kept()) == 2
    ask(world, "-c", "more")
    ask(world, "--session", first.id, "two")
    ask(world, "--session", "one", "three", system="T")
    assert sorted(said(conversation) for conversation in kept()) == [["one", "two", "three"], ["other", "more"]]
    assert kept()[0].system == "T"

    ask(world, "--reply-to", first.leaf.id if first.leaf else "", "branch")
    talk = kept()[0]
    assert said(talk) == ["one", "branch"]
    assert [node.content for node in talk.siblings(talk.path()[2].id)] == ["two", "branch"]


def test_nothing_is_kept_where_nothing_is_to_be(world: World, home: Path) -> None:
    ask(world, "--no-save", "one")
    assert not (home / "data").exists()
    ask(world, "one")
    before = [(conversation.updated, said(conversation)) for conversation in kept()]
    metrics = ask(world, "--no-save", "-c", "secret").metrics
    asked = [*kept()[0].messages(), ChatMessage("user", "secret")]
    assert metrics is not None
    assert metrics.prompt_tokens == len(world.template.render(asked).token_ids)
    assert [(conversation.updated, said(conversation)) for conversation in kept()] == before
    assert b"secret" not in store_file().read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-c", "x"), "nothing has been saved yet"),
        (("--session", "a", "x"), "nothing has been saved yet"),
        (("--reply-to", "a", "x"), "no message 'a'"),
        (("-c", "--session", "a", "x"), "-c and --session each name a conversation"),
        (("--session", "a", "--reply-to", "b", "x"), "--session and --reply-to"),
    ],
)
def test_what_is_not_there_is_named(world: World, home: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ask(world, *arguments)
    assert not (home / "data").exists()


def test_an_interrupted_answer_is_shown_and_kept_as_far_as_it_came(home: Path) -> None:
    def script(row: ScheduledRow, sample: SampleRow) -> int:
        if sample.position == 5:
            raise Interrupted(INTERRUPTED)
        return b"\xc3\xa9ab\xc3"[sample.position]

    shown: list[str] = []
    answers = ask(World(home / "x.db", script=script), "one", shown=shown)
    assert answers.interrupted_by == INTERRUPTED
    assert "".join(shown) == answers.completions[0].text == "éab\ufffd"
    assert answers.metrics is not None
    leaf = kept()[0].leaf
    assert leaf is not None
    assert (leaf.state, leaf.finish_reason, leaf.token_ids) == (NodeState.INTERRUPTED, "cancelled", tuple(b"\xc3\xa9ab\xc3"))


def test_a_failed_answer_is_an_error(home: Path) -> None:
    world = World(home / "x.db", script=lambda row, sample: -1 if sample.position == 2 else counted(row, sample))
    with pytest.raises(ChatpagedError, match="no numbers"):
        ask(world, "one")
    assert kept()[0].path()[-1].content == "ab"
