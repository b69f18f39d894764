"""What one more token of an answer costs the window, from the first to the last of a very long answer.

Feeds tokens of Markdown into the list of messages at a fixed rate, as the engine would, in a window of 120 x 40 that nobody sees, and
reports for each tenth of the answer: processor time of the UI's thread a token, its share of a core, and the longest time for which
the event loop did not come round. `--kind` chooses what the answer is made of; `mixed` has everything.

    python -m benchmarks.streaming --tokens 20000 --rate 200 --json streaming.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App, ComposeResult

from benchmarks.report import machine, save, show
from chatpaged.conversation import Node
from chatpaged.ui.collector import calm_collector
from chatpaged.ui.widgets.message_item import MessageItem
from chatpaged.ui.widgets.message_list import MessageList

TENTHS = 10
_BEAT = 0.005
_TEXT = (
    "the model reads tokens and keeps blocks of memory for every chat so that a **shared** beginning is `stored` once and *never* "
    "copied until somebody writes into it while others still look at [it](https://example.org/x)"
)
_WORDS = tuple(_TEXT.split())


def _sentence(random_: random.Random, words: int) -> str:
    return " ".join(random_.choices(_WORDS, k=words)).capitalize() + "."


def _paragraph(random_: random.Random) -> str:
    return " ".join(_sentence(random_, random_.randint(8, 20)) for _ in range(random_.randint(2, 6))) + "\n\n"


def _code(random_: random.Random, lines: int) -> str:
    body = "".join(f"    value_{i} = compute({random_.randint(0, 999)}, name='{random_.choice(_WORDS)}')  # step\n" for i in range(lines))
    return f"```python\ndef function():\n{body}```\n\n"


def _list(random_: random.Random, items: int) -> str:
    return "".join(f"{i + 1}. {_sentence(random_, 9)}\n   - {_sentence(random_, 5)}\n" for i in range(items)) + "\n"


def _table(random_: random.Random, rows: int) -> str:
    body = "".join(f"| {i} | {_sentence(random_, 4)} | {random_.random():.3f} |\n" for i in range(rows))
    return f"| row | what | value |\n|---|---|---:|\n{body}\n"


def _mixed(random_: random.Random, length: int) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        parts += [f"## {_sentence(random_, 4)}\n\n", _paragraph(random_), _list(random_, random_.randint(3, 9)), _paragraph(random_)]
        parts += [_code(random_, random_.choice((6, 30))), _table(random_, random_.randint(3, 8)), f"> {_sentence(random_, 12)}\n\n"]
        if len(parts) % 5 == 1:
            parts += [_code(random_, 500), _sentence(random_, 1500) + "\n\n"]
    return "".join(parts)


KINDS: dict[str, Callable[[random.Random, int], str]] = {
    "mixed": _mixed,
    "paragraph": lambda random_, length: _sentence(random_, length // 5),
    "code": lambda random_, length: _code(random_, length // 60),
    "list": lambda random_, length: _list(random_, length // 60),
    "table": lambda random_, length: _table(random_, length // 45),
    "paragraphs": lambda random_, length: "".join(_paragraph(random_) for _ in range(length // 250)),
}


def tokens(kind: str, count: int) -> list[str]:
    """Markdown in pieces of about four characters."""
    text = KINDS[kind](random.Random(1), count * 5)
    return re.findall(r"\s?\S{1,5}|\s", text)[:count]


class Window(App[None]):
    """Nothing but messages."""

    def compose(self) -> ComposeResult:
        """The list."""
        yield MessageList()


class Meter:
    """Processor time by tenths, and how long the loop did not come round."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[dict[str, Any]] = []
        self.longest = 0.0
        self._begin = (time.thread_time(), time.process_time(), time.perf_counter())

    async def beat(self) -> None:
        """Comes round as often as it may."""
        while True:
            begin = time.thread_time()
            await asyncio.sleep(_BEAT)
            # Processor time: other processes are none of our business.
            self.longest = max(self.longest, time.thread_time() - begin)

    def tenth(self, fed: int, widgets: int) -> None:
        """A tenth is over."""
        now = (time.thread_time(), time.process_time(), time.perf_counter())
        ui, whole, wall = (now[i] - self._begin[i] for i in range(3))
        self.rows.append(
            {
                "tokens": fed,
                "us a token": ui / (self.count / TENTHS) * 1e6,
                "share of a core": ui / wall,
                "with threads": whole / wall,
                "longest block ms": self.longest * 1000,
                "widgets": widgets,
            }
        )
        self.longest, self._begin = 0.0, now


async def measure(kind: str, count: int, rate: float) -> dict[str, Any]:
    """Feeds an answer, and finishes it."""
    app = Window()
    pieces = tokens(kind, count)
    async with app.run_test(size=(120, 40)) as pilot:
        messages = app.query_one(MessageList)
        await messages.show([MessageItem(Node(id="q", parent=None, role="user", content="Write."))])
        item = MessageItem(Node(id="a", parent="q", role="assistant", content=""))
        await messages.begin(item)
        await pilot.pause()
        calm_collector()
        meter = Meter(len(pieces))
        beat = asyncio.create_task(meter.beat())
        start = time.perf_counter()
        for i, piece in enumerate(pieces, start=1):
            messages.feed("a", piece)
            wait = start + i / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            if i % max(len(pieces) // TENTHS, 1) == 0:
                meter.tenth(i, len(app.query("*")))
        text = "".join(pieces)
        meter.longest = 0.0
        begin = time.perf_counter()
        await messages.finish(MessageItem(Node(id="a", parent="q", role="assistant", content=text)))
        await pilot.pause()
        ending = {"finish seconds": time.perf_counter() - begin, "finish longest block ms": meter.longest * 1000}
        beat.cancel()
        rows = meter.rows
        return {
            "kind": kind, "rows": rows, **ending, "seconds": time.perf_counter() - start,
            "last by first": rows[-1]["us a token"] / rows[0]["us a token"],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=200.0, help="tokens a second")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    for kind in args.kind or ["mixed"]:
        result = asyncio.run(measure(kind, args.tokens, args.rate))
        results.append(result)
        print(f"\n{kind}: last tenth by first {result['last by first']:.2f}; finished in {result['finish seconds']:.3f} s, "
              f"longest block {result['finish longest block ms']:.0f} ms")  # fmt: skip
        show(result["rows"])
    print(f"\n{machine()}")  # at the end: it imports torch, whose objects the garbage collector would look through while we measure
    save(args.json, {"results": results})


if __name__ == "__main__":
    main()
