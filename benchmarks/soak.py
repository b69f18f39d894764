"""Many chats on a pool for a few of them, for a long time: everything at random, and every answer checked.

python -m benchmarks.soak [--model DIR] [--minutes 10] [--sessions 64] [--seed 1] [--json OUT]

Chats say something, go back and say something else, ask for another answer or two, are stopped, looked at, pinned; now and then the
process "quits": the engine is closed, sometimes with answers on their way, and a new one takes over the files. Some chats are private.
What must hold: each answer is, bit by bit, what an engine without any sharing, batching or tiers says to the same tokens; a stopped one
is the beginning of it. Nothing waits for ever. Blocks, files, open files and memory do not grow.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from benchmarks.report import machine, save, show
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.sequence import Keep
from chatpaged.model_files import resolve_model
from chatpaged.session import ChatSession, Reply, SessionModel, SessionOptions

MAX_TOKENS = 40
MAX_STEPS = 4000
SYSTEM = "You are a helpful assistant. " * 12
WORDS = ("sea", "moon", "bread", "rain", "clock", "river", "fox", "lamp", "stone", "music", "glass", "winter", "bridge", "garden")


@dataclass
class Limits:
    """How much of everything.

    Attributes:
        sessions: chats.
        kv_blocks: of the pool.
        max_num_seqs: answers at once.
        swap_space: bytes.
        disk_cache: bytes.
        chat_tokens: a chat that has grown longer begins anew.
    """

    sessions: int = 64
    kv_blocks: int = 8 * 60
    max_num_seqs: int = 12
    swap_space: int = 128 * 2**20
    disk_cache: int = 512 * 2**20
    chat_tokens: int = 700


@dataclass
class Soak:
    """A run and all it has seen."""

    model: Path
    limits: Limits
    directory: Path
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    """Resident MiB each time the process "quits"."""

    def __post_init__(self) -> None:
        self.solo = LLMEngine.from_pretrained(self.model, EngineConfig(kv_blocks=200, max_num_seqs=1, enable_prefix_caching=False))
        self.llm = self._load()
        whom = SessionModel("soak", self.llm.tokenizer, self.llm.chat_template)
        self.whom = whom
        self.chats = [self._new_chat(i) for i in range(self.limits.sessions)]
        self.live: dict[str, tuple[int, Reply, int]] = {}
        self.steps = 0
        self._descriptors = self._open_files()
        self._things = ((0.15, self.say), (0.015, self.cancel), (0.015, self.look), (0.005, self.pin), (0.0015, self.quit))

    def _load(self) -> LLMEngine:
        limits = self.limits
        config = EngineConfig(
            kv_blocks=limits.kv_blocks,
            max_num_seqs=limits.max_num_seqs,
            swap_space=self.rng.choice([0, limits.swap_space]),
            disk_cache=limits.disk_cache,
            disk_cache_directory=self.directory,
        )
        return LLMEngine.from_pretrained(self.model, config)

    def _new_chat(self, number: int) -> ChatSession:
        is_private = number % 8 == 7
        options = SessionOptions(salt=b"private" if is_private else b"", keep=Keep.MEMORY if is_private else Keep.FILE)
        chat = ChatSession(self.whom, options=options)
        chat.conversation.system = SYSTEM if number % 2 else f"You are number {number % 5}."
        return chat

    def _open_files(self) -> int:
        return psutil.Process().num_fds()

    # --- what happens ------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Does random things for so long, then lets everything come to its end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.act()
        self.drain()
        self.restart()

    def act(self) -> None:
        """One random thing, or a step."""
        choice = self.rng.random()
        for share, thing in self._things:
            choice -= share
            if choice < 0:
                thing()
                return
        self.step()
        if not self.live:
            self.llm.work_ahead()

    def cancel(self) -> None:
        """Stops an answer."""
        if self.live:
            self._abort(self.rng.choice(list(self.live)))
            self.counts["cancelled"] += 1

    def look(self) -> None:
        """Goes to a chat."""
        turn = self.rng.choice(self.chats).last_turn
        self.llm.look_at(turn.token_ids if turn is not None else None)

    def pin(self) -> None:
        """Pins the first chat, as it is now."""
        turn = self.chats[0].last_turn
        if turn is not None:
            self.counts["pinned"] += self.llm.pin("chat", turn.token_ids).pinned

    def quit(self) -> None:
        """Ends the process, with or without answers on their way."""
        if self.rng.random() < 0.5:
            self.drain()
        self.restart()

    def say(self) -> None:
        """Sends something in a chat that is not being answered."""
        number = self.rng.randrange(len(self.chats))
        if any(there == number for there, _, _ in self.live.values()):
            return
        chat = self.chats[number]
        if chat.last_turn is not None and len(chat.last_turn.token_ids) > self.limits.chat_tokens:
            chat = self.chats[number] = self._new_chat(number)
        nodes = chat.conversation.path()
        kind = self.rng.random()
        text = f"Tell me about the {self.rng.choice(WORDS)} and the {self.rng.choice(WORDS)}. " * self.rng.choice([1, 1, 1, 8])
        if nodes and kind < 0.15:
            draft = chat.draft_again()
            self.counts["again"] += 1
        elif nodes and kind < 0.3:
            chat.branch(self.rng.choice(nodes).parent)
            if chat.conversation.leaf is not None and chat.conversation.leaf.role == "user":
                chat.branch(chat.conversation.leaf.parent)
            draft = chat.draft(text)
            self.counts["branched"] += 1
        else:
            draft = chat.draft(text)
        params = SamplingParams(
            temperature=self.rng.choice([0.0, 0.9]),
            seed=self.rng.randrange(1000),
            max_tokens=self.rng.randint(1, MAX_TOKENS),
            n=self.rng.choice([1, 1, 1, 2]),
            ignore_eos=True,
        )
        reply = chat.start(self.llm, draft, params, interactive=self.rng.random() < 0.5)
        if self.rng.random() < 0.3:
            self.llm.set_priority(reply.request_id, self.rng.randint(0, 2), interactive=False)
        self.live[reply.request_id] = (number, reply, self.steps)
        self.counts["sent"] += 1

    def step(self) -> None:
        """One step of the engine."""
        self.steps += 1
        for output in self.llm.step():
            self._take(output)
        if self.steps % 50 == 0:
            self.llm.check_invariants()
        stuck = [request_id for request_id, (_, _, since) in self.live.items() if self.steps - since > MAX_STEPS]
        if stuck:
            raise RuntimeError(f"{stuck} have been waiting for {MAX_STEPS} steps")

    def drain(self) -> None:
        """Everything that was sent is answered."""
        while self.live:
            self.step()

    def restart(self) -> None:
        """The process ends, and another one begins."""
        for request_id in list(self.live):
            self._abort(request_id)
        self.llm.check_invariants()
        snapshot = self.llm.snapshot()
        if snapshot.used_blocks or snapshot.shared_blocks:
            raise RuntimeError(f"{snapshot.used_blocks + snapshot.shared_blocks} blocks are in use by nobody")
        self.counts.update({name: snapshot.counters[name] for name in COUNTERS})
        self.llm.close()
        self.llm = self._load()
        self.counts["restarts"] += 1
        gc.collect()
        self.memory.append(psutil.Process().memory_info().rss / 2**20)
        kept = sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())
        if kept > 1.05 * self.limits.disk_cache:
            raise RuntimeError(f"{kept} bytes of files, {self.limits.disk_cache} are allowed")
        if self._open_files() > self._descriptors + 4:
            raise RuntimeError(f"{self._open_files()} open files, {self._descriptors} at the beginning")

    def _abort(self, request_id: str) -> None:
        output = self.llm.abort(request_id)
        if output is not None:
            self._take(output)

    # --- and what it must be -----------------------------------------------------------------------------------------------

    def _take(self, output: RequestOutput) -> None:
        number, reply, _ = self.live[output.request_id]
        if output.error is not None:
            raise output.error
        reply.take(output)
        if output.finished:
            reply.end()
            del self.live[output.request_id]
            self._check(reply)
            self.chats[number].model = self.whom

    def _check(self, reply: Reply) -> None:
        """Compares answers with those of an engine that has nothing else to do."""
        for completion in reply.completions:
            count = len(completion.token_ids)
            if count == 0:
                continue
            # Samples of one request have seeds that follow one another.
            params = replace(reply.params, n=1, max_tokens=count, seed=reply.seed + completion.index)
            expected = self.solo.generate(reply.draft.prompt, params).completions[0].token_ids
            if completion.token_ids != expected:
                raise RuntimeError(f"another answer than alone: {completion.token_ids} in place of {expected}")
            self.counts["checked"] += 1

    def close(self) -> None:
        """Gives memory back."""
        self.llm.close()
        self.solo.close()


COUNTERS = (
    "preemptions", "evictions", "swap_out", "swap_in", "disk_writes", "disk_reads", "disk_faults", "disk_drops", "recomputed_tokens",
    "prefix_hit_tokens", "copies", "pin_yields",
)  # fmt: skip


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(resolve_model(options.model, print), Limits(sessions=options.sessions), Path(directory), random.Random(options.seed))
        try:
            soak.run(60 * options.minutes)
        finally:
            soak.close()
    row = {**soak.counts, "MiB at first": round(soak.memory[0]), "MiB at last": round(soak.memory[-1]), "most MiB": round(max(soak.memory))}
    show([{"what": name, "count": value} for name, value in sorted(row.items())])
    save(options.json, {"machine": machine(), "rows": [row], "MiB": soak.memory})


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
