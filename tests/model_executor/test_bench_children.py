"""What `bench` runs in processes of their own, here in this one: transformers beside the engine, and the machine's ceilings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chatpaged.bench_workloads import Chat, Workload
from chatpaged.child_process import run_module
from chatpaged.engine.model_executor import ceilings
from chatpaged.engine.model_executor.transformers_peer import TransformersPeer


@pytest.fixture(scope="module")
def peer(model_directory: Callable[[str], Path]) -> TransformersPeer:
    return TransformersPeer(model_directory("llama"), device="cpu", dtype="float64")


def test_batches_give_each_request_what_it_asked_for(peer: TransformersPeer) -> None:
    chats = tuple(Chat((tuple(range(10, 10 + length)),), length) for length in (3, 8, 5))
    for batch in (1, 2, 16):
        replies = peer.run(Workload("mine", "", chats).plain(), batch)
        assert [len(reply["times"]) for reply in replies] == [3, 8, 5]
        assert all(reply["times"] == sorted(reply["times"]) for reply in replies)
        begin_together = replies[0]["times"][0] == replies[1]["times"][0]
        assert begin_together == (batch > 1)


def test_a_chat_with_a_kept_cache_says_what_it_says_without_one(peer: TransformersPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[list[int], list[int]]] = []
    generate = peer._generate

    def noted(prompts: list[list[int]], new_tokens: int, cache: object) -> tuple[list[list[int]], list[float]]:
        rows, times = generate(prompts, new_tokens, cache)
        answers.extend(zip(prompts, rows, strict=True))
        return rows, times

    monkeypatch.setattr(peer, "_generate", noted)
    what = Workload("chats", "", (Chat(((20, 21), (22,)), 4), Chat(((30,), (31, 32)), 4)), system=tuple(range(50, 80)))
    replies = peer.run(what.plain(), 1)
    assert [reply["arrived"] for reply in replies[:2]] == [0.0, 0.0]
    assert [reply["arrived"] for reply in replies[2:]] == [reply["times"][-1] for reply in replies[:2]]
    assert [len(prompt) for prompt, _ in answers] == [32, 31, 37, 37]
    for prompt, row in answers:
        assert generate([prompt], 4, None)[0] == [row]
    assert answers[2][0][: len(answers[0][1])] == answers[0][1]


def test_later_requests_are_waited_for(peer: TransformersPeer) -> None:
    chats = (Chat(((5, 6),), 2, arrival=0.3), Chat(((7,),), 2))
    first, second = peer.run(Workload("mine", "", chats).plain(), 16)
    assert (first["arrived"], second["arrived"]) == (0.0, 0.3)
    assert second["times"][0] > 0.3


def test_ceilings() -> None:
    found = ceilings.measure(torch.device("cpu"), read_bytes=2**20, rows=64)
    assert (found["device"], found["threads"]) == ("cpu", torch.get_num_threads())
    assert found["read_gb_per_second"] > 0
    assert ceilings.native_read_bandwidth(torch.ones(2**18)) > 0
    assert found["float32_gflop_per_second"] > 0


def test_ceilings_as_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_module("chatpaged.engine.model_executor.ceilings").returncode != 0  # without arguments
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["ceilings", "1", "cpu"])
    monkeypatch.setattr(ceilings, "measure", lambda device: {"device": device.type, "threads": torch.get_num_threads()})
    ceilings.main()
    torch.set_num_threads(threads)
    assert json.loads(capsys.readouterr().out) == {"device": "cpu", "threads": 1}
