"""What the application costs, measured from outside: on a terminal of its own, by keys, while the engine decodes on all cores.

    python -m benchmarks.app [--model DIR] [--repeat 3] [--steps 150] [--keys 60] [--json OUT]

- Start: until the whole window has been drawn, and until the model is ready.
- Key echo: from a key being sent until the terminal has been told to show it; nothing running, in a chat that is being answered, and in a
  new chat while four others are being answered.
- Engine speed with the window and its engine panel, beside an `AsyncEngine` without one that answers the same questions: tokens a second
  over as many steps from the same place in the answers, one and four chats. Both alternate; ratios are of one round.
- Share of a core that the UI's thread takes meanwhile.

Clocks are in the engine's `step`, in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.report import machine, save, show
from benchmarks.terminal import Terminal

REPORT = "APP_BENCHMARK_REPORT"
QUESTIONS = [f"Tell me a very long story about the number {number}." for number in range(4)]
SAMPLING = {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}
OPTIONS = ["--temperature", "0", "--max-tokens", "1500", "--ignore-eos"]
SKIPPED = 10
"""Steps after the last chat has come in that do not count."""
WINDOW = ("chatpaged", "What shall we talk about?", "sk anything", "Help")
NEW_CHAT, QUIT, STOP, CLEAR = "\x0e", "\x11", "\x1b", "\x15"


class Steps:
    """When the engine ended a step, how many answers grew in it, and the processor time of the main thread by then."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, float]] = []

    def put_in_place(self) -> None:
        """Has every engine of this process note its steps."""
        from chatpaged.engine.llm_engine import LLMEngine

        step = LLMEngine.step
        clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)

        def noted(engine: LLMEngine) -> Any:
            outputs = step(engine)
            self.rows.append((time.monotonic(), sum(bool(output.deltas) for output in outputs), time.clock_gettime(clock)))
            return outputs

        LLMEngine.step = noted  # type: ignore[method-assign, assignment]


def speed(rows: list[list[float]], chats: int, steps: int) -> dict[str, float]:
    """Tokens a second of so many chats, from a little after all of them are being answered, and the main thread's share meanwhile."""
    at = next(i for i in range(len(rows)) if all(row[1] == chats for row in rows[i : i + SKIPPED + steps]))
    (begin, _, begin_cpu), (end, _, end_cpu) = rows[at + SKIPPED - 1], rows[at + SKIPPED + steps - 1]
    return {"speed": chats * steps / (end - begin), "share": (end_cpu - begin_cpu) / (end - begin)}


# --- in a process of its own -------------------------------------------------------------------------------------------


def child(arguments: list[str]) -> None:
    """The command line with a clock in the engine; the report is written at its end."""
    from chatpaged.cli.main import main

    steps = Steps()
    sys.argv = ["chatpaged", *arguments]
    try:
        # Not before the window is there: what it imports belongs to the engine's thread.
        threading.Timer(1.5, steps.put_in_place).start()
        main()
    finally:
        Path(os.environ[REPORT]).write_text(json.dumps(steps.rows), encoding="utf-8")


def headless(model: str | None, steps: int) -> None:
    """The same questions without a window: one chat, then four."""
    from chatpaged.chat_template import ChatMessage
    from chatpaged.engine.async_engine import AsyncEngine
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.engine.sampling_params import SamplingParams
    from chatpaged.model_files import resolve_model

    noted = Steps()
    noted.put_in_place()
    params = SamplingParams(**SAMPLING | {"max_tokens": steps + 6 * SKIPPED})  # type: ignore[arg-type]

    async def read(engine: AsyncEngine, text: str) -> None:
        async for _ in engine.generate([ChatMessage("user", text)], params):
            pass

    async def measure() -> None:
        directory = resolve_model(model, lambda _: None)
        async with AsyncEngine(lambda _: LLMEngine.from_pretrained(directory)) as engine:
            await read(engine, QUESTIONS[0])
            await asyncio.gather(*(read(engine, question) for question in QUESTIONS))

    asyncio.run(measure())
    Path(os.environ[REPORT]).write_text(json.dumps(noted.rows), encoding="utf-8")


# --- the parent --------------------------------------------------------------------------------------------------------


class Bench:
    """Runs and measures.

    Attributes:
        model: name for `--model`; None is the starter model.
    """

    def __init__(self, directory: Path, model: str | None, steps: int, keys: int) -> None:
        self.model = model
        self._report = directory / "report.json"
        self._steps = steps
        self._keys = keys
        self._random = random.Random(1)
        self._letters = 0
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            **{f"XDG_{name}_HOME": str(directory / name.lower()) for name in ("CONFIG", "DATA", "STATE")},
            "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),  # as after an installation
            "TERM": "xterm-256color",
            REPORT: str(self._report),
        }

    def _options(self) -> list[str]:
        return ["--model", self.model] if self.model else []

    def start_up(self) -> dict[str, float]:
        """Seconds until the window is there, and until the model is."""
        with Terminal([sys.executable, "-m", "chatpaged", "run", *self._options()], self._environment) as terminal:
            window = max(terminal.time_of(text) for text in WINDOW)
            ready = terminal.time_of("is ready")
            terminal.send(QUIT)
            terminal.end()
            return {"window s": window - terminal.started, "ready s": ready - terminal.started}

    def echo(self, terminal: Terminal) -> list[float]:
        """Milliseconds until each key is seen. Letters that no answer has, each for the first time."""
        times = []
        for _ in range(self._keys):
            letter = chr(0x0410 + self._letters % 64)
            self._letters += 1
            time.sleep(self._random.uniform(0.05, 0.25))
            position, sent = terminal.send(letter)
            times.append(1e3 * (terminal.time_of(letter, since=position) - sent))
            if self._letters % 32 == 0:
                terminal.send(CLEAR)
        terminal.send(CLEAR)
        return times

    def _ask(self, terminal: Terminal, question: str, *, first: bool) -> None:
        if not first:
            terminal.send(NEW_CHAT)
            time.sleep(0.5)
        terminal.send(question + "\r")
        time.sleep(0.5)

    def app(self) -> tuple[list[list[float]], dict[str, list[float]]]:
        """A round with the window: the steps, and key echo by what is going on."""
        command = [sys.executable, "-m", "benchmarks.app", "--child", "run", *OPTIONS, *self._options()]
        echo: dict[str, list[float]] = {}
        with Terminal(command, self._environment) as terminal:
            terminal.wait("is ready")
            time.sleep(1)
            echo["nothing running"] = self.echo(terminal)
            self._ask(terminal, QUESTIONS[0], first=True)
            time.sleep(2 + self._steps * 0.05)
            echo["in the chat that is answered"] = self.echo(terminal)
            terminal.send(STOP)
            time.sleep(1)
            for question in QUESTIONS:
                self._ask(terminal, question, first=False)
            time.sleep(4 + self._steps * 0.1)
            echo["in the last of four that are answered"] = self.echo(terminal)
            terminal.send(NEW_CHAT)
            time.sleep(1)
            echo["in a new chat beside four"] = self.echo(terminal)
            terminal.send(QUIT)
            terminal.end()
        return self._steps_of_report(), echo

    def headless(self) -> list[list[float]]:
        """A round without."""
        import subprocess

        command = [sys.executable, "-m", "benchmarks.app", "--headless", "--steps", str(self._steps), *self._options()]
        subprocess.run(command, check=True, env=self._environment)
        return self._steps_of_report()

    def _steps_of_report(self) -> list[list[float]]:
        rows: list[list[float]] = json.loads(self._report.read_text(encoding="utf-8"))
        self._report.unlink()
        return rows

    def round(self) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
        """A round of both: a row for each number of chats, and key echo."""
        without = self.headless()
        with_window, echo = self.app()
        rows = []
        for chats in (1, len(QUESTIONS)):
            theirs, ours = speed(without, chats, self._steps), speed(with_window, chats, self._steps)
            rows.append(
                {
                    "chats": chats,
                    "headless tok/s": theirs["speed"],
                    "in the app tok/s": ours["speed"],
                    "ratio": ours["speed"] / theirs["speed"],
                    "UI thread's share of a core": ours["share"],
                    "headless": theirs["share"],
                }
            )
        return rows, echo


def measure(bench: Bench, repeat: int) -> dict[str, Any]:
    """All measurements."""
    bench.start_up()  # writes bytecode, warms the page cache
    starts = [bench.start_up() for _ in range(repeat + 2)]
    rounds: list[dict[str, Any]] = []
    echo: dict[str, list[float]] = {}
    for _ in range(repeat):
        rows, times = bench.round()
        rounds += rows
        for name, values in times.items():
            echo.setdefault(name, []).extend(values)
    return {
        "start": [{"start": "median", **{name: median(start[name] for start in starts) for name in starts[0]}}],
        "echo": [
            {"key echo, ms": name, "p50": median(values), "p95": quantiles(values, n=20)[-1], "max": max(values), "keys": len(values)}
            for name, values in echo.items()
        ],
        "speed": sorted(rounds, key=lambda row: row["chats"]),
        "starts": starts,
    }


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the starter model)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150, help="steps that count")
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--only-start", action="store_true", help="only how fast it starts")
    parser.add_argument("--headless", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.headless:
        headless(args.model, args.steps)
        return
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), args.model, args.steps, args.keys)
        if args.only_start:
            show([bench.start_up() for _ in range(args.repeat + 1)])
            return
        result = measure(bench, args.repeat)
    print(machine())
    for name in ("start", "echo", "speed"):
        print()
        show(result[name])
    save(args.json, result)


if __name__ == "__main__":
    main()
