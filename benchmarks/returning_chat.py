"""How soon a chat of 4,000 tokens goes on, depending on where its blocks are by then.

python -m benchmarks.returning_chat [--model DIR] [--tokens 4000] [--rounds 5] [--json OUT]

Each round tells a new story of random words to four engines. In all but the first, another story pushes it out of the pool; then
twenty tokens more are said, and the time to the first token is taken. `device` finds the story in its pool, `host` in host memory
(beside a CPU, a mapped file), `disk` in block files that lie in the page cache, `disk cold` in files whose pages were dropped before (as
far as the system follows that advice), `recompute` nowhere. `ratio` is to recompute; `moved` is what came back, in blocks.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import machine, save, show
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.model_files import resolve_model

NEW_TOKENS = 20
_ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


@dataclass
class Place:
    """An engine whose chats come back from one place."""

    name: str
    engine: LLMEngine
    is_pushed_out: bool = True
    before: Callable[[], None] = lambda: None
    seconds: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    def measure(self, story: list[int], other: list[int], more: list[int]) -> None:
        """One round."""
        say(self.engine, story)
        while self.engine.work_ahead():
            pass
        if self.is_pushed_out:
            say(self.engine, other)
        while self.engine.snapshot().counters.get("disk_pending", 0):
            pass
        self.before()
        metrics = self.engine.generate(story + more, _ONE).metrics
        self.seconds.append(metrics.time_to_first_token or 0.0)
        self.moved.append(metrics.swap_in)


def say(engine: LLMEngine, token_ids: list[int]) -> None:
    """Has a text read."""
    engine.generate(token_ids, _ONE)


def drop_pages(directory: Path) -> None:
    """Asks the system to forget what it has in memory of files."""
    for path in directory.rglob("*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def places(model: Path, num_tokens: int, stack: ExitStack, scratch: Path) -> list[Place]:
    """All of them, loaded."""

    def load(**options: Any) -> LLMEngine:
        blocks = -(-(num_tokens + NEW_TOKENS + 1) // 16) + 8
        return stack.enter_context(LLMEngine.from_pretrained(model, EngineConfig(**{"kv_blocks": blocks, **options})))

    warm, cold = scratch / "warm", scratch / "cold"
    return [
        Place("device", load(kv_blocks=4 * num_tokens // 16), is_pushed_out=False),
        Place("host", load(swap_space=2**31)),
        Place("disk", load(disk_cache=2**33, disk_cache_directory=warm)),
        Place("disk cold", load(disk_cache=2**33, disk_cache_directory=cold), before=lambda: drop_pages(cold)),
        Place("recompute", load()),
    ]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        found = places(resolve_model(options.model, print), options.tokens, stack, Path(scratch))
        for _ in range(options.rounds + 1):  # the first one warms up
            story, other, more = (
                [rng.randrange(1000, 40000) for _ in range(count)] for count in (options.tokens, options.tokens, NEW_TOKENS)
            )
            for place in found:
                place.measure(story, other, more)
        recompute = statistics.median(found[-1].seconds[1:])
        rows = [
            {
                "place": place.name,
                "first token ms": round(1000 * (median := statistics.median(place.seconds[1:])), 1),
                "worst ms": round(1000 * max(place.seconds[1:]), 1),
                "ratio": round(recompute / median, 1),
                "moved": max(place.moved),
                "declined": place.engine.snapshot().counters["tier_declined"],
            }
            for place in found
        ]
        code = str(found[0].engine.code)
    show(rows)
    save(options.json, {"machine": machine(), "code": code, "tokens": options.tokens, "rows": rows})
    print(f"{options.tokens} tokens, {code}")


if __name__ == "__main__":
    main()
