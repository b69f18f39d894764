"""What somebody who reads along notices: gaps between tokens, and chats that run at once.

python -m benchmarks.streams [--model DIR] [--repeat 3] [--json OUT]

- A stream goes on while another chat sends a prompt of 4,000 tokens: the longest gap between two tokens beside the median.
- Four chats of 64 tokens together, beside one after another.
- A chat of four turns: time to the first token of each turn.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import machine, save, show
from chatpaged.chat_template import ChatMessage
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import Completion
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.model_files import resolve_model

SHORT = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
LONG_PROMPT = " a" * 4000


async def _read(
    engine: AsyncEngine, text: str, params: SamplingParams, *, times: list[float] | None = None, stop_after: asyncio.Event | None = None
) -> None:
    """Reads an answer; notes the time of each token, and ends 60 tokens after the event."""
    seen = [] if times is None else times
    after = 0
    async for output in engine.generate([ChatMessage("user", text)], params):
        seen += [time.perf_counter()] * sum(delta.num_tokens for delta in output.deltas)
        after += stop_after is not None and stop_after.is_set()
        if after == 60:
            break


async def gap_beside_a_long_prompt(engine: AsyncEngine) -> dict[str, Any]:
    """A stream, into which a prompt of 4,000 tokens comes after some time; it ends 60 tokens after that has been read."""
    stream: list[float] = []
    other: list[float] = []
    read = asyncio.Event()
    reader = asyncio.create_task(_read(engine, "Tell me a long story.", LONG, times=stream, stop_after=read))
    await asyncio.sleep(3)
    begin = time.perf_counter()
    await _read(engine, LONG_PROMPT, SamplingParams(temperature=0, max_tokens=1), times=other)
    read.set()
    await reader
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(stream)]
    alone = median(gap for gap, at in gaps if at < begin)
    longest = max(gap for gap, _ in gaps)
    return {
        "stream beside a 4,000-token prompt": "",
        "tokens": len(stream),
        "median gap ms": 1e3 * median(gap for gap, _ in gaps),
        "median alone ms": 1e3 * alone,
        "longest gap ms": 1e3 * longest,
        "longest / median": longest / median(gap for gap, _ in gaps),
        "longest / alone": longest / alone,
        "prompt read in s": other[0] - begin,
    }


async def together(engine: AsyncEngine) -> dict[str, Any]:
    """Four chats at once and one after another."""
    questions = [f"Tell me about the number {number}." for number in range(4)]
    begin = time.perf_counter()
    await asyncio.gather(*(_read(engine, question, SHORT) for question in questions))
    at_once = time.perf_counter() - begin
    batch = max(step.num_seqs for step in (await engine.snapshot()).steps)
    begin = time.perf_counter()
    for question in questions:
        await _read(engine, question, SHORT)
    serial = time.perf_counter() - begin
    return {"four chats": "", "at once s": at_once, "one by one s": serial, "ratio": at_once / serial, "largest batch": batch}


async def turns(engine: AsyncEngine) -> list[dict[str, Any]]:
    """Four turns with equal new text."""
    messages: list[ChatMessage] = []
    rows = []
    for turn in range(4):
        messages.append(ChatMessage("user", "Go on, please, and say a little more about it than before."))
        done: list[Completion] = []
        async for output in engine.generate(messages, SHORT):
            done += output.completions
            metrics = output.metrics
        messages.append(ChatMessage("assistant", done[0].text, done[0].token_ids))
        if metrics is not None:
            rows.append(
                {
                    "turn": turn + 1,
                    "prompt": metrics.prompt_tokens,
                    "cached": metrics.cached_tokens,
                    "read": metrics.prefill_tokens,
                    "first token ms": 1e3 * (metrics.time_to_first_token or 0.0),
                }
            )
    return rows


async def measure(directory: Path, repeat: int) -> dict[str, Any]:
    """All measurements."""
    result: dict[str, Any] = {"gaps": [], "together": [], "turns": []}
    async with AsyncEngine(lambda _: LLMEngine.from_pretrained(directory)) as engine:
        await _read(engine, "warm up", SHORT)
        for _ in range(repeat):
            await engine.call(lambda llm: llm.forget_cached())
            result["gaps"].append(await gap_beside_a_long_prompt(engine))
            result["together"].append(await together(engine))
            result["turns"] += await turns(engine)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the starter model)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = asyncio.run(measure(resolve_model(args.model, print), args.repeat))
    print(machine())
    for rows in result.values():
        print()
        show(rows)
    save(args.json, result)


if __name__ == "__main__":
    main()
