"""A conversation's tree as lines, and what sharing saves."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chatpaged.branch_tree import TreeFacts, TreeRow, known_tokens, tree_facts, tree_rows
from chatpaged.conversation import Conversation, Node


def conversation_of(parents: list[int], leaf: int | None) -> Conversation:
    """Messages 0, 1, 2...; each follows an earlier one, or none where that would be itself."""
    conversation = Conversation()
    for number, parent in enumerate(parents):
        before = parent % (number + 1) - 1
        role = "user" if before < 0 or conversation.node(str(before)).role == "assistant" else "assistant"
        conversation.add(Node(id=str(number), parent=str(before) if before >= 0 else None, role=role, content=f"message {number}"))
    conversation.branch(str(leaf % len(parents)) if leaf is not None and parents else None)
    return conversation


def chain(length: int) -> Conversation:
    return conversation_of(list(range(length)), length - 1)


def drawn(conversation: Conversation) -> list[str]:
    return [f"{row.guides}{'◆' if row.is_leaf else '●' if row.in_view else '○'} {row.node.id}" for row in tree_rows(conversation)]


def depth_of(row: TreeRow) -> int:
    """In how many branches of branches it is; 0 is the left edge."""
    return len(row.guides) // 2


TREES = st.tuples(st.lists(st.integers(0, 40), max_size=40), st.none() | st.integers(0, 40))


@given(TREES)
def test_every_message_stands_once_below_the_one_it_follows(tree: tuple[list[int], int | None]) -> None:
    conversation = conversation_of(*tree)
    rows = tree_rows(conversation)
    assert sorted(row.node.id for row in rows) == sorted(node.id for node in conversation.nodes)
    place = {row.node.id: number for number, row in enumerate(rows)}
    assert all(place[row.node.parent] < place[row.node.id] for row in rows if row.node.parent is not None)
    assert [row.node.id for row in rows if row.in_view] == [node.id for node in conversation.path()]
    assert [row.node.id for row in rows if row.is_leaf] == ([conversation.leaf.id] if conversation.leaf is not None else [])
    for row in rows:
        siblings = conversation.siblings(row.node.id)
        assert (siblings[row.position - 1].id, row.siblings) == (row.node.id, len(siblings))


@given(TREES)
def test_only_what_branches_off_is_indented_and_by_one_step(tree: tuple[list[int], int | None]) -> None:
    conversation = conversation_of(*tree)
    rows = tree_rows(conversation)
    depth = {row.node.id: depth_of(row) for row in rows}
    for row in rows:
        before = depth[row.node.parent] if row.node.parent is not None else 0
        assert depth_of(row) - before in {0, 1}
        if row.siblings == 1:
            assert depth_of(row) == before
    assert all(depth_of(row) == 0 for row in rows if row.in_view)
    for parent in (None, *(node.id for node in conversation.nodes)):
        children = conversation.children(parent)
        before = depth[parent] if parent is not None else 0
        assert sum(depth[child.id] == before for child in children) == min(1, len(children))


@given(TREES)
def test_lines_that_connect_are_drawn_down_to_what_they_connect(tree: tuple[list[int], int | None]) -> None:
    rows = tree_rows(conversation_of(*tree))
    for above, row in pairwise(rows):
        # A line in a column goes on below until the message stands there that the branches lead beside.
        for column in range(0, len(above.guides), 2):
            assert len(row.guides) <= column or row.guides[column] in "│├"
            if len(row.guides) < len(above.guides) - 2:
                raise AssertionError("a branch ends without the way it has left going on")
    assert not rows or depth_of(rows[-1]) == 0


@given(TREES)
def test_branches_are_counted_by_their_ends(tree: tuple[list[int], int | None]) -> None:
    conversation = conversation_of(*tree)
    ends = [node for node in conversation.nodes if not conversation.children(node.id)]
    ways = [{node.id for node in conversation.path(end.id)} for end in ends]
    facts = tree_facts(conversation)
    assert (facts.messages, facts.branches) == (len(conversation.nodes), len(ends))
    assert facts.shared == sum(sum(node.id in way for way in ways) > 1 for node in conversation.nodes)


def test_a_fork_is_drawn_beside_the_way_in_view() -> None:
    #   0 ── 1 ── 2 ── 3
    #        │    └─── 4 ── 5
    #        └─── 6
    conversation = conversation_of([0, 1, 2, 3, 3, 5, 2], 5)
    assert drawn(conversation) == ["● 0", "● 1", "├─○ 6", "● 2", "├─○ 3", "● 4", "◆ 5"]
    conversation.branch("1")
    assert drawn(conversation) == ["● 0", "◆ 1", "├─○ 2", "│ ├─○ 3", "│ ○ 4", "│ ○ 5", "○ 6"]


def test_several_beginnings_are_beside_each_other() -> None:
    assert drawn(conversation_of([0, 1, 0, 0], 3)) == ["┌─○ 0", "│ ○ 1", "├─○ 2", "◆ 3"]


def test_a_long_conversation_is_laid_out_at_once() -> None:
    conversation = chain(20_000)
    start = time.perf_counter()
    rows = tree_rows(conversation)
    assert {row.guides for row in rows} == {""}
    assert tree_facts(conversation).shared == 0
    assert time.perf_counter() - start < 5


def answer(node_id: str, parent: str, prompt: int, written: int) -> Node:
    usage = {"prompt_tokens": prompt, "completion_tokens": written}
    return Node(id=node_id, parent=parent, role="assistant", content="", usage=usage, token_ids=(1,) * (written - 1))


def test_what_is_shared_is_counted_once() -> None:
    conversation = Conversation()
    conversation.add(Node(id="q", parent=None, role="user", content="q"))
    conversation.add(answer("a", "q", 100, 20))
    conversation.add(answer("b", "q", 100, 30))
    conversation.add(Node(id="q2", parent="a", role="user", content="q2"))
    conversation.add(answer("c", "q2", 130, 5))
    conversation.add(answer("d", "q2", 130, 7))
    # 100 in three branches, 20 + 10 in two.
    assert tree_facts(conversation) == TreeFacts(messages=6, branches=3, shared=3, tokens=172, saved_tokens=230)


def test_tokens_are_told_only_where_they_are_known() -> None:
    assert known_tokens(answer("a", "q", 100, 20)) == 20
    assert known_tokens(Node(id="i", parent=None, role="assistant", content="x", token_ids=(1, 2), reasoning_ids=(3,))) == 3
    assert known_tokens(Node(id="u", parent=None, role="user", content="x")) is None
    conversation = Conversation()
    conversation.add(Node(id="q", parent=None, role="user", content="q"))
    conversation.add(answer("a", "q", 100, 20))
    left_out = answer("b", "q", 50, 20)
    conversation.add(Node(id="b", parent="q", role="assistant", content="", usage={**left_out.usage, "left_out": 3}))
    assert tree_facts(conversation).tokens == 120
