"""Speed on W1 and W2 beside transformers, with the same float32 weights, in one run.

python -m benchmarks.speed [--model DIR] [--only w1,w2] [--repeat 3] [--threads N] [--json OUT]

The engines take turns, so that a machine that changes its speed changes it for all. Figures are medians over the repeats,
`ratio` is ours by theirs pair by pair. W2 against transformers takes some minutes a repeat.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.report import machine, save, show
from benchmarks.transformers_peer import TransformersPeer
from benchmarks.workloads import Request, w1, w2
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.model_files import resolve_model

PARTS = ("schedule", "operations", "prepare", "forward", "sample", "process")


class Ours:
    """Our engine, and where its time goes."""

    def __init__(self, directory: Path, threads: int) -> None:
        self.engine = LLMEngine.from_pretrained(directory, EngineConfig(dtype="float32", threads=threads))
        self.seconds: Counter[str] = Counter()
        self.steps = 0

    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """Runs all requests at once, nothing cached."""
        self.engine.forget_cached()
        names = [
            self.engine.add_request(
                request.prompt, SamplingParams(temperature=0, max_tokens=request.new_tokens, ignore_eos=True), request_id=str(i)
            )
            for i, request in enumerate(requests)
        ]
        answers: dict[str, list[int]] = {}
        while self.engine.has_unfinished:
            for output in self.engine.step():
                for completion in output.completions:
                    answers[output.request_id] = list(completion.token_ids)
            step = self.engine.last_step
            if step is not None:
                self.steps += 1
                for part in PARTS:
                    self.seconds[part] += getattr(step, part)
        return [answers[name] for name in names]

    def parts(self) -> list[dict[str, Any]]:
        """Seconds of each part of a step, and its share."""
        total = sum(self.seconds.values())
        return [
            {"part of a step": part, "ms a step": 1e3 * self.seconds[part] / self.steps, "%": 100 * self.seconds[part] / total}
            for part in PARTS
        ]


def timed(run: Callable[[Sequence[Request]], list[list[int]]], requests: Sequence[Request]) -> float:
    """Output tokens a second."""
    begin = time.perf_counter()
    answers = run(requests)
    seconds = time.perf_counter() - begin
    expected = [request.new_tokens for request in requests]
    if [len(answer) for answer in answers] != expected:
        raise RuntimeError("an engine gave answers of another length than it was asked for")
    return sum(expected) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the starter model)")
    parser.add_argument("--only", default="w1,w2", help="comma list of w1, w2")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    directory = resolve_model(args.model, print)
    torch.set_num_threads(args.threads)
    ours, peer = Ours(directory, args.threads), TransformersPeer(directory)
    peers: dict[str, dict[str, Callable[[Sequence[Request]], list[list[int]]]]] = {
        "w1": {"transformers generate": peer.one_by_one},
        "w2": {"transformers one by one": peer.one_by_one, "transformers static batch of 16": peer.static_batches},
    }
    requests = {"w1": [w1()], "w2": w2()}
    warm_up = [Request(tuple(range(100, 164)), 4)]
    ours.run(warm_up)
    peer.one_by_one(warm_up)
    print(machine())
    result: dict[str, Any] = {}
    for name in args.only.split(","):
        ours.seconds.clear()
        ours.steps = 0
        speeds: dict[str, list[float]] = {"chatpaged": [], **{other: [] for other in peers[name]}}
        for _ in range(args.repeat):
            speeds["chatpaged"].append(timed(ours.run, requests[name]))
            for other, run in peers[name].items():
                speeds[other].append(timed(run, requests[name]))
        rows = [
            {
                name: other,
                "output tok/s": median(values),
                "ratio": median(mine / theirs for mine, theirs in zip(speeds["chatpaged"], values, strict=True)),
            }
            for other, values in speeds.items()
        ]
        print()
        show(rows)
        print()
        show(ours.parts())
        result[name] = {"speeds": speeds, "rows": rows, "parts": ours.parts()}
    save(args.json, result)


if __name__ == "__main__":
    main()
