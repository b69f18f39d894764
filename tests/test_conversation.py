"""A conversation is a tree in which nothing is ever replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged.conversation import Conversation, Node, NodeState, new_id, new_message_id, new_session_id
from chatpaged.errors import InvalidRequestError
from chatpaged.messages import ChatMessage


def texts(conversation: Conversation) -> list[str]:
    return [node.content for node in conversation.path()]


def test_edits_and_other_answers_are_siblings() -> None:
    talk = Conversation(system="S")
    question = talk.add_user("a")
    first = talk.add_assistant("x")
    talk.add_user("b")
    talk.add_assistant("y")
    assert texts(talk) == ["a", "x", "b", "y"]

    talk.branch(question.id)
    second = talk.add_assistant("w")
    assert texts(talk) == ["a", "w"]
    assert [node.content for node in talk.siblings(first.id)] == ["x", "w"]
    assert talk.question_of(second.id) == question

    talk.switch(first.id)
    assert texts(talk) == ["a", "x", "b", "y"]
    edited = talk.edit(talk.path()[2].id, "c")
    assert texts(talk) == ["a", "x", "c"]
    assert [node.content for node in talk.siblings(edited.id)] == ["b", "c"]
    assert [node.content for node in talk.nodes] == ["a", "x", "b", "y", "w", "c"]

    talk.edit(question.id, "A")
    assert texts(talk) == ["A"]
    assert [message.content for message in talk.messages()] == ["S", "A"]
    assert [node.content for node in talk.children(None)] == ["a", "A"]


def test_a_conversation_can_be_begun_anew_beside_itself() -> None:
    talk = Conversation()
    talk.add_user("a")
    talk.branch(None)
    assert talk.leaf is None
    assert talk.path() == ()
    talk.add_user("b")
    assert texts(talk) == ["b"]


def test_ids_of_another_tokenizer_are_left_out() -> None:
    node = Node(id="1", parent=None, role="assistant", content="x", reasoning="t", token_ids=(5,), reasoning_ids=(7,), fingerprint="f")
    assert node.message("f") == node.message() == ChatMessage("assistant", "x", (5,), "t", (7,))
    assert node.message("g") == ChatMessage("assistant", "x", None, "t")


def test_an_answer_grows_in_its_place() -> None:
    talk = Conversation()
    talk.add_user("a")
    node = talk.add_assistant()
    assert node.state is NodeState.INTERRUPTED
    assert node.can_continue
    done = talk.update(replace(node, content="x", state=NodeState.COMPLETE, finish_reason="stop"))
    assert talk.leaf == done
    assert not done.can_continue
    assert replace(done, finish_reason="length").can_continue
    with pytest.raises(InvalidRequestError, match="cannot move"):
        talk.update(replace(done, parent=None))


def test_a_message_can_be_taken_back_while_nothing_follows() -> None:
    talk = Conversation()
    first = talk.add_user("a")
    second = talk.add_assistant("x")
    with pytest.raises(InvalidRequestError, match="others follow"):
        talk.discard(first.id)
    talk.discard(second.id)
    assert talk.leaf == first
    talk.discard(first.id)
    assert [talk.leaf, *talk.nodes, *talk.children(None)] == [None]


def test_wrong_requests_are_named() -> None:
    talk = Conversation()
    user = talk.add_user("a")
    with pytest.raises(InvalidRequestError, match="no message 'z'"):
        talk.branch("z")
    with pytest.raises(InvalidRequestError, match="no answer"):
        talk.question_of(user.id)
    with pytest.raises(InvalidRequestError, match="there already"):
        talk.add(user)
    with pytest.raises(InvalidRequestError, match="unknown role 'x'"):
        talk.add(Node(id="n", parent=None, role="x", content=""))


def test_the_title_is_the_name_or_the_first_words() -> None:
    talk = Conversation()
    assert talk.title == ""
    talk.add_user("word \n" * 40)
    assert talk.title == ("word " * 12)[:59].rstrip() + "…"
    talk.name = "my name"
    assert talk.title == "my name"


@given(st.floats(0, 2**44 / 1000), st.floats(0, 2**44 / 1000))
def test_ids_sort_by_time(first: float, second: float) -> None:
    a, b = new_id(0, first), new_id(0, second)
    assert (a < b) == (int(first * 1000) < int(second * 1000))


def test_ids_are_short_and_unlike() -> None:
    assert len(new_session_id()) == 13
    assert len({new_message_id() for _ in range(10_000)}) == 10_000
