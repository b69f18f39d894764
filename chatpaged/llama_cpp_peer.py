"""llama.cpp beside our engine: `python llama_cpp_peer.py MODEL.gguf THREADS SLOTS`, told of workloads on standard input.

Run by another Python, which has llama-cpp-python and knows nothing of this package: nothing of it is imported. See
`bench_peers.py` for what is said.

As a library, llama.cpp leaves it to its caller who computes what when. Here it is as in its server: a step takes one token of each
reply that is being written, and is filled up with pieces of prompts, oldest first, to 512 tokens. A system prompt that chats share
is computed once and given to each of them with `llama_memory_seq_cp`; a chat keeps its place in the cache through all its turns.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

_STEP_TOKENS = 512
_MOST_SLOTS = 64
_ROUND = 256  # llama.cpp reserves its cache in units of this many tokens
_WARM_UP = 4


class PeerError(Exception):
    """Something that the user can be told in a line."""


class Turn:
    """A chat in a slot of the cache, at the turn that is being answered.

    `pending` are the tokens that are to be computed next: a prompt's, or the last one of the reply.
    """

    def __init__(self, chat: dict[str, Any], slot: int, position: int) -> None:
        self.later = deque(chat["turns"][1:])
        self.new_tokens: int = chat["new_tokens"]
        self.slot = slot
        self.position = position
        self.pending: list[int] = list(chat["turns"][0])
        self.arrived = chat["arrival"]
        self.times: list[float] = []

    @property
    def is_complete(self) -> bool:
        """Whether the reply has all its tokens."""
        return len(self.times) >= self.new_tokens

    def begin_next(self, now: float) -> bool:
        """Goes on with the next turn, if there is one. The reply's last token is still to be computed before it."""
        if not self.later:
            return False
        self.pending += self.later.popleft()
        self.arrived, self.times = now, []
        return True


class Context:
    """A cache for so many chats, and the rows of one step."""

    def __init__(self, lib: Any, model: Any, workload: dict[str, Any], threads: int, slots: int) -> None:
        self.lib = lib
        self.shared = workload["system"]
        lengths = [sum(len(turn) + chat["new_tokens"] for turn in chat["turns"]) for chat in workload["chats"]]
        # The first slot holds what chats share. They share cells only in a cache that is one for all slots.
        self.slots = list(range(bool(self.shared), min(slots, _MOST_SLOTS, len(lengths)) + bool(self.shared)))
        own = -(-max(lengths) // _ROUND) * _ROUND
        params = lib.llama_context_default_params()
        params.n_ctx = len(self.slots) * own + -(-len(self.shared) // _ROUND) * _ROUND
        params.n_seq_max = self.slots[-1] + 1
        params.kv_unified = bool(self.shared)
        params.n_batch = params.n_ubatch = _STEP_TOKENS
        params.n_threads = params.n_threads_batch = threads
        self.handle = lib.llama_init_from_model(model, params)
        if not self.handle:
            raise PeerError(f"no room for {len(self.slots)} chats of {own} tokens")
        self.memory = lib.llama_get_memory(self.handle)
        self.batch = lib.llama_batch_init(_STEP_TOKENS, 0, 1)
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def close(self) -> None:
        """Gives its memory back."""
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.handle)

    def put(self, row: int, token: int, turn: Turn) -> None:
        """Fills a row of the step with a token of a chat."""
        if token >= self.vocab_size:
            raise PeerError(f"token id {token} is not in the vocabulary of the GGUF file, which has {self.vocab_size}")
        batch = self.batch
        batch.token[row], batch.pos[row], batch.logits[row] = token, turn.position, 0
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, turn.slot
        turn.position += 1

    def compute(self, rows: int) -> None:
        """Runs the rows through the model."""
        self.batch.n_tokens = rows
        status = self.lib.llama_decode(self.handle, self.batch)
        if status:
            raise PeerError(f"llama_decode failed with status {status}")

    def draw(self, row: int) -> int:
        """The likeliest token after a row."""
        import numpy as np  # noqa: PLC0415 - comes with llama-cpp-python, in the Python that has it

        logits = self.lib.llama_get_logits_ith(self.handle, row)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def step(self, turns: list[Turn]) -> list[tuple[Turn, int]]:
        """Computes pending tokens, replies first; returns the chats that have none left, with their next token."""
        rows = 0
        ready = []
        for turn in sorted(turns, key=lambda turn: (not turn.times, turn.arrived)):
            piece = turn.pending[: _STEP_TOKENS - rows]
            del turn.pending[: len(piece)]
            for token in piece:
                self.put(rows, token, turn)
                rows += 1
            if piece and not turn.pending:
                self.batch.logits[rows - 1] = 1
                ready.append((turn, rows - 1))
        self.compute(rows)
        return [(turn, self.draw(row)) for turn, row in ready]

    def clear(self) -> None:
        """Empties the cache."""
        self.lib.llama_memory_clear(self.memory, True)

    def compute_shared(self) -> None:
        """Computes what all chats begin with."""
        turn = Turn({"turns": [self.shared], "new_tokens": 0, "arrival": 0.0}, 0, 0)
        while turn.pending:
            self.step([turn])

    def begin(self, chat: dict[str, Any], slot: int) -> Turn:
        """Gives a chat a slot."""
        self.lib.llama_memory_seq_rm(self.memory, slot, -1, -1)
        if self.shared:
            self.lib.llama_memory_seq_cp(self.memory, 0, slot, 0, len(self.shared))
        return Turn(chat, slot, len(self.shared))

    def run(self, workload: dict[str, Any]) -> list[dict[str, Any]]:
        """One pass: all chats to their end, as many at once as there are slots."""
        self.clear()
        start = time.perf_counter()
        if self.shared:
            self.compute_shared()
        coming = deque(sorted(workload["chats"], key=lambda chat: chat["arrival"]))
        free = list(self.slots)
        live: list[Turn] = []
        replies: list[dict[str, Any]] = []
        while coming or live:
            now = time.perf_counter() - start
            while coming and free and coming[0]["arrival"] <= now:
                live.append(self.begin(coming.popleft(), free.pop()))
            if not live:
                time.sleep(coming[0]["arrival"] - now)
                continue
            results = self.step(live)
            now = time.perf_counter() - start
            for turn, token in results:
                turn.pending = [token]
                turn.times.append(now)
                if turn.is_complete:
                    replies.append({"arrived": turn.arrived, "times": turn.times})
                    if not turn.begin_next(now):
                        live.remove(turn)
                        free.append(turn.slot)
        return replies


class Engine:
    """The model, and the cache for the workload of the last pass."""

    def __init__(self, lib: Any, path: str, threads: int, slots: int) -> None:
        params = lib.llama_model_default_params()
        params.use_mmap = False  # else the first pass would read the file
        self.lib, self.threads, self.slots = lib, threads, slots
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise PeerError(f"cannot load {path}")
        self.context: Context | None = None
        self.workload: dict[str, Any] = {}

    def run(self, workload: dict[str, Any]) -> list[dict[str, Any]]:
        """One pass. Where the workload is another than before, its cache is made and the model warmed up before."""
        if self.context is None or workload != self.workload:
            if self.context is not None:
                self.context.close()
            self.context = Context(self.lib, self.model, workload, self.threads, self.slots)
            self.workload = workload
            first = workload["chats"][0]["turns"][0]
            self.context.run({"chats": [{"turns": [first], "new_tokens": _WARM_UP, "arrival": 0.0}]})
        return self.context.run(workload)


def main() -> None:
    """Serves until standard input ends."""
    # What libraries print must not come between the lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # This file's directory holds modules of our own, which nobody here must find.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        import llama_cpp as lib  # noqa: PLC0415 - it may be missing, which is told in words
    except ImportError:
        tell({"error": "no module llama_cpp"})
        return
    path, threads, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    silent = lib.llama_log_callback(lambda *_: None)  # kept: llama.cpp holds only its address
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    try:
        engine = Engine(lib, path, threads, slots)
        tell({"version": f"llama-cpp-python {lib.__version__}", "system": lib.llama_print_system_info().decode()})
        for line in sys.stdin:
            tell({"replies": engine.run(json.loads(line)["workload"])})
    except PeerError as error:
        tell({"error": str(error)})


if __name__ == "__main__":
    main()
