"""What is told under answers."""

from __future__ import annotations

from typing import Any

import pytest

from chatpaged.conversation import Node, NodeState
from chatpaged.turn_facts import TurnFacts, seconds, turn_facts


def answer(**fields: Any) -> Node:
    return Node(id="a", parent=None, role="assistant", content="x", **fields)


def test_the_figures_stand_in_one_line() -> None:
    usage = {"cached_tokens": 1204, "prefill_tokens": 31, "time_to_first_token": 0.181, "tokens_per_second": 61.7}
    assert str(turn_facts(answer(usage=usage, finish_reason="stop"))) == "cached 1,204 · read 31 · 0.18 s to first token · 62 tok/s"


def test_what_is_not_known_is_not_told() -> None:
    assert turn_facts(answer()) == TurnFacts()
    assert turn_facts(answer(usage={"cached_tokens": 0, "prefill_tokens": 5})).figures == ("cached 0", "read 5")
    assert turn_facts(answer(usage={"tokens_per_second": None, "time_to_first_token": "soon", "cached_tokens": True})) == TurnFacts()
    assert turn_facts(Node(id="u", parent=None, role="user", content="x", usage={"cached_tokens": 3})) == TurnFacts()


def test_why_something_was_read_again_is_told() -> None:
    usage = {"rereads": [{"reason": "evicted", "tokens": 640}, {"reason": "", "tokens": 2}, "damaged", {"tokens": "many"}]}
    assert turn_facts(answer(usage=usage)).notes == ("640 read again: evicted", "2 read again: reason unknown")
    assert turn_facts(answer(usage={"rereads": "damaged"})).notes == ()


def test_what_was_not_sent_is_told() -> None:
    assert turn_facts(answer(usage={"left_out": 1})).notes == ("1 oldest message not sent",)
    assert turn_facts(answer(usage={"left_out": 12, "recomputed_tokens": 7})).notes == (
        "7 computed again: memory was short",
        "12 oldest messages not sent",
    )


@pytest.mark.parametrize(
    ("reason", "state", "ending"),
    [
        ("stop", NodeState.COMPLETE, ""),
        ("length", NodeState.COMPLETE, "length limit reached: o goes on"),
        ("cancelled", NodeState.INTERRUPTED, "stopped: o goes on"),
        ("", NodeState.INTERRUPTED, "interrupted: o goes on"),
        ("repetition", NodeState.COMPLETE, "ended because it repeated itself"),
        ("error", NodeState.INTERRUPTED, "ended by an error: o goes on"),
    ],
)
def test_how_it_ended_is_told_unless_by_itself(reason: str, state: NodeState, ending: str) -> None:
    assert turn_facts(answer(finish_reason=reason, state=state)).ending == ending


def test_times_are_as_exact_as_is_of_use() -> None:
    assert [seconds(value) for value in (0.004, 9.99, 12.34, 61.0, 3600)] == ["0.00 s", "9.99 s", "12.3 s", "1 min 01 s", "60 min 00 s"]
