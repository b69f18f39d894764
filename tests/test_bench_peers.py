"""Other engines: how they are started, told and ended; how llama.cpp's steps are put together. No such engine is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatpaged import bench_peers
from chatpaged.bench_peers import TRANSFORMERS, Peer, Way, find_gguf, start_llama_cpp, start_transformers
from chatpaged.bench_workloads import Chat, Workload, w1, w2, w3
from chatpaged.engine.config import EngineConfig
from chatpaged.errors import ChatpagedError, InvalidRequestError
from chatpaged.llama_cpp_peer import Context, PeerError

# Answers each request with a token a second; refuses chats without an end.
FAKE = """
import json, sys
print(json.dumps({"version": "fake 1"}), flush=True)
for line in sys.stdin:
    chats = json.loads(line)["workload"]["chats"]
    if chats[0]["new_tokens"] == 13:
        sys.exit("Traceback\\nValueError: thirteen")
    if chats[0]["new_tokens"] == 14:
        print(json.dumps({"error": "fourteen"}), flush=True)
    replies = [{"arrived": chat["arrival"], "times": list(range(1, chat["new_tokens"] + 1))} for chat in chats]
    print(json.dumps({"replies": replies[:2]}), flush=True)
"""


def fake(code: str = FAKE) -> Peer:
    return Peer("fake", [sys.executable, "-c", code])


def workload(new_tokens: int, count: int = 1) -> Workload:
    return Workload("mine", "", (Chat(((1, 2),), new_tokens),) * count)


def test_a_pass_in_another_process() -> None:
    peer = fake()
    try:
        assert peer.facts == {"version": "fake 1"}
        replies = peer.run(workload(3, 2), Way("fake"))
        assert [reply.times for reply in replies] == [[1, 2, 3]] * 2
        with pytest.raises(ChatpagedError, match="fake gave 2 answers of 6 tokens in all, not 3 of 9"):
            peer.run(workload(3, 3), Way("fake"))
        with pytest.raises(ChatpagedError, match="fake: fourteen"):
            peer.run(workload(14), Way("fake"))
    finally:
        peer.close()
    assert peer._process.poll() is not None


def test_a_process_that_ends_is_told_with_its_last_words() -> None:
    peer = fake()
    try:
        for _ in range(2):
            with pytest.raises(ChatpagedError, match="fake ended: ValueError: thirteen"):
                peer.run(workload(13), Way("fake"))
    finally:
        peer.close()
    with pytest.raises(ChatpagedError, match="fake ended: exit status 3"):
        fake("import sys; sys.exit(3)")


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "_PATIENCE", 0.1)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{\"version\": 1}', flush=True); signal.pause()"
    peer = fake(code)
    peer.close()
    assert peer._process.returncode == -9


def test_ways_to_run_a_workload() -> None:
    peer = fake()
    try:
        assert peer.ways(w2()) == [Way("fake")]
        peer.name = TRANSFORMERS
        assert peer.ways(w1()) == [Way("transformers")]
        assert peer.ways(w2()) == [Way("transformers one by one"), Way("transformers batches of 16", 16)]
        assert peer.ways(w3()) == [Way("transformers kept caches")]
    finally:
        peer.close()


def test_llama_cpp_that_is_not_there(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without any packages
    python.chmod(0o755)
    with pytest.raises(InvalidRequestError, match="pip install llama-cpp-python") as raised:
        start_llama_cpp(tmp_path / "model.gguf", str(python), EngineConfig(), 1)
    assert raised.value.exit_code == 2
    with pytest.raises(InvalidRequestError, match="cannot start /no/python: "):
        start_llama_cpp(tmp_path / "model.gguf", "/no/python", EngineConfig(), 1)


def test_a_model_that_transformers_cannot_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def note(command: list[str], **options: Any) -> Any:
        started.append(command)
        return subprocess.Popen([sys.executable, "-c", "raise OSError('no such model')"], **options)

    monkeypatch.setattr(bench_peers, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": note}))
    with pytest.raises(ChatpagedError, match="transformers ended: OSError: no such model"):
        start_transformers(tmp_path, EngineConfig(trust_remote_code=True, device="cpu"), 2)
    assert started[0][-5:] == [str(tmp_path), "2", "cpu", "auto", "trust"]


def test_which_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "models_dir", lambda: tmp_path)
    file = tmp_path / "x.gguf"
    for given, model in ((None, None), (None, "org/name"), (None, str(file)), (file, None)):
        with pytest.raises(InvalidRequestError, match=r"--llama-model FILE.gguf|no file"):
            find_gguf(given, model)
    file.touch()
    assert find_gguf(file, None) == find_gguf(None, str(file)) == file
    starter = tmp_path / "kept" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    starter.parent.mkdir()
    starter.touch()
    assert find_gguf(None, None) == starter


# --- the steps of llama.cpp ----------------------------------------------------------------------------------------------


class FakeLlama:
    """Notes what is computed. Draws tokens that say where they stand."""

    def __init__(self, vocab_size: int = 5000) -> None:
        self.vocab_size = vocab_size
        self.steps: list[list[tuple[int, int, int, int]]] = []
        self.shared: list[tuple[int, int, int]] = []
        self.params = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0

    def llama_context_default_params(self) -> Any:
        return self.params

    def llama_init_from_model(self, model: object, params: Any) -> str | None:
        return "context" if params.n_ctx < 100_000 else None

    def llama_vocab_n_tokens(self, vocab: object) -> int:
        return self.vocab_size

    def llama_batch_init(self, size: int, embd: int, seqs: int) -> Any:
        names = ("token", "pos", "n_seq_id", "logits")
        return SimpleNamespace(**{name: [0] * size for name in names}, seq_id=[[0] for _ in range(size)], n_tokens=0)

    def llama_decode(self, handle: object, batch: Any) -> int:
        rows = range(batch.n_tokens)
        self.steps.append([(batch.seq_id[row][0], batch.pos[row], batch.token[row], batch.logits[row]) for row in rows])
        return 0

    def llama_memory_seq_cp(self, memory: object, source: int, target: int, begin: int, end: int) -> None:
        self.shared.append((source, target, end))


class DrawingContext(Context):
    def draw(self, row: int) -> int:
        return 500 + int(self.batch.pos[row])


def context(lib: FakeLlama, what: Workload, slots: int = 8) -> Context:
    return DrawingContext(lib, "model", what.plain(), 2, slots)


def test_replies_go_first_and_prompts_fill_the_step() -> None:
    lib = FakeLlama()
    chats = tuple(Chat((tuple(range(length)),), 2) for length in (300, 400))
    replies = context(lib, Workload("two", "", chats)).run(Workload("two", "", chats).plain())
    assert [len(reply["times"]) for reply in replies] == [2, 2]
    assert not lib.params.kv_unified
    first, second = ({slot for slot, *_ in step} for step in lib.steps[:2])
    assert first == second == {0, 1}
    # 300 and 212 of 400; then the first reply's token and the rest of the second prompt.
    assert [len(step) for step in lib.steps] == [512, 1 + 188, 1]
    assert [row for row in lib.steps[0] if row[3]] == [(1, 299, 299, 1)]
    assert lib.steps[1][0] == (1, 300, 500 + 299, 1)


def test_chats_share_the_system_prompt_and_keep_their_place() -> None:
    lib = FakeLlama()
    what = Workload("chats", "", (Chat(((1, 2), (3,)), 2), Chat(((4,),), 1), Chat(((5,),), 1, arrival=0.01)), system=(7,) * 600)
    replies = context(lib, what, slots=2).run(what.plain())
    assert sorted(len(reply["times"]) for reply in replies) == [1, 1, 2, 2]
    assert lib.params.kv_unified
    assert [len(step) for step in lib.steps[:2]] == [512, 88]
    assert [(source, end) for source, _, end in lib.shared] == [(0, 600)] * 3
    assert {target for _, target, _ in lib.shared} == {1, 2}
    rows = [row for step in lib.steps[2:] for row in step]
    # The first chat: its turn, the reply's first token; then its last one and the next turn in one piece.
    (slot,) = {slot for slot, _, token, _ in rows if token == 1}
    others = {(position, token) for place, position, token, _ in rows if place == slot}
    assert {(600, 1), (601, 2), (602, 1101), (603, 1102), (604, 3), (605, 1104)} <= others


def test_what_llama_cpp_cannot_do_is_told() -> None:
    with pytest.raises(PeerError, match="token id 7 is not in the vocabulary of the GGUF file, which has 5"):
        context(FakeLlama(vocab_size=5), w := Workload("one", "", (Chat(((7,),), 1),))).run(w.plain())
    with pytest.raises(PeerError, match="no room for 1 chats"):
        context(FakeLlama(), Workload("one", "", (Chat(((7,) * 200_000,), 1),)))
