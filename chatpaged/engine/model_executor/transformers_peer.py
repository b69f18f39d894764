"""transformers' own `generate` beside our engine: `python -m ... DIRECTORY THREADS DEVICE DTYPE [trust]`.

It is told of workloads on standard input; `bench_peers.py` has what is said. One request after another is answered; or static batches
are, left-padded and as long as their longest reply, of which only what was asked for counts. A chat keeps one cache for all its
turns, which begins as a copy of that of the system prompt.
"""

from __future__ import annotations

import copy
import heapq
import inspect
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from chatpaged.engine.model_executor.model_runner import choose_device
from chatpaged.engine.model_executor.models.hf import silence_transformers
from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.weight_files import inspect_weights

_WARM_UP = (64, 4)  # prompt and new tokens


class _TokenClock:
    """Is given each step's tokens by `generate`, the prompt first, and notes when."""

    def __init__(self) -> None:
        self.puts: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """See `transformers.generation.BaseStreamer`."""
        del value
        self.puts.append(time.perf_counter())

    def end(self) -> None:
        """Likewise."""


@dataclass
class _Session:
    """A chat. `history` is everything said, the turn to be answered included."""

    chat: dict[str, Any]
    arrived: float
    history: list[int]
    turn: int = 0
    cache: Any = None

    def begin_next(self, now: float) -> bool:
        """Goes on with the next turn, if there is one."""
        self.turn += 1
        if self.turn == len(self.chat["turns"]):
            return False
        self.history = self.history + self.chat["turns"][self.turn]
        self.arrived = now
        return True


class TransformersPeer:
    """The model; greedy, end tokens ignored."""

    def __init__(self, directory: Path, *, device: str, dtype: str, trust_remote_code: bool = False) -> None:
        silence_transformers()
        self._device = choose_device(device)
        kind = choose_dtype(dtype, self._device, stored_dtype(inspect_weights(directory).stored_type))
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        model = load(directory, dtype=kind, local_files_only=True, trust_remote_code=trust_remote_code)
        self._model = model.to(self._device).eval()
        self._model.generation_config.eos_token_id = None
        # The argument's name has changed with transformers 5.20.
        names = inspect.signature(type(self._model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._generate([[7] * _WARM_UP[0]], _WARM_UP[1], None)

    def run(self, workload: dict[str, Any], batch: int) -> list[dict[str, Any]]:
        """One pass.

        Args:
            workload: see `Workload.plain`.
            batch: requests that run together; above 1 only where each chat is one request.

        Returns:
            For each reply when its turn arrived and when its tokens came.
        """
        start = time.perf_counter()
        system = self._prefill(workload["system"]) if workload["system"] else None
        sessions = (_Session(chat, chat["arrival"], workload["system"] + chat["turns"][0]) for chat in workload["chats"])
        coming = [(session.arrived, place, session) for place, session in enumerate(sessions)]
        heapq.heapify(coming)
        replies = []
        while coming:
            time.sleep(max(0.0, coming[0][0] - (time.perf_counter() - start)))
            now = time.perf_counter() - start
            taken = [heapq.heappop(coming)]
            while coming and len(taken) < batch and coming[0][0] <= now:
                taken.append(heapq.heappop(coming))
            answers = self._answer([session for _, _, session in taken], system)
            for (_, place, session), puts in zip(taken, answers, strict=True):
                times = [put - start for put in puts]
                replies.append({"arrived": session.arrived, "times": times})
                if session.begin_next(times[-1]):
                    heapq.heappush(coming, (session.arrived, place, session))
        return replies

    def _answer(self, sessions: Sequence[_Session], system: Any) -> list[list[float]]:
        """Generates the replies of a batch; returns the times of their tokens."""
        new_tokens = [session.chat["new_tokens"] for session in sessions]
        cache = None
        if len(sessions) == 1 and (system is not None or len(sessions[0].chat["turns"]) > 1):
            [session] = sessions
            if session.cache is None:
                session.cache = copy.deepcopy(system) if system is not None else self._empty_cache()
            cache = session.cache
        rows, times = self._generate([session.history for session in sessions], max(new_tokens), cache)
        for session, row in zip(sessions, rows, strict=True):
            session.history = row
        return [times[:count] for count in new_tokens]

    def _generate(self, prompts: list[list[int]], new_tokens: int, cache: Any) -> tuple[list[list[int]], list[float]]:
        """Generates for a batch. A prompt is the whole history, of which a cache may hold the beginning."""
        length = max(map(len, prompts))
        pads = [length - len(prompt) for prompt in prompts]
        clock = _TokenClock()
        with torch.inference_mode():
            rows = self._model.generate(
                input_ids=torch.tensor([[0] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)], device=self._device),
                attention_mask=torch.tensor([[0] * pad + [1] * (length - pad) for pad in pads], device=self._device),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
                streamer=clock,
                **({self._cache_name: cache} if cache is not None else {}),
            )
        return [row[pad:] for pad, row in zip(pads, rows.tolist(), strict=True)], clock.puts[1:]

    def _prefill(self, prompt: list[int]) -> Any:
        cache = self._empty_cache()
        with torch.inference_mode():
            self._model(torch.tensor([prompt], device=self._device), logits_to_keep=1, **{self._cache_name: cache})
        return cache

    def _empty_cache(self) -> Any:
        cache: Any = transformers.DynamicCache
        return cache(config=self._model.config)


def main() -> None:
    """Serves until standard input ends."""
    # What libraries print must not come between the lines.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        directory, threads, device, dtype, *trust = sys.argv[1:]
        torch.set_num_threads(int(threads))
        peer = TransformersPeer(Path(directory), device=device, dtype=dtype, trust_remote_code=bool(trust))
        out.write(json.dumps({"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}) + "\n")
        out.flush()
        for line in sys.stdin:
            asked = json.loads(line)
            out.write(json.dumps({"replies": peer.run(asked["workload"], asked["batch"])}) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
