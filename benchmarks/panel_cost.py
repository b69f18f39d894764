"""What looking at the engine costs the engine: its speed with the panel refreshed four times a second, and without.

python -m benchmarks.panel_cost [--model DIR] [--only scripted,model] [--seconds 5] [--repeat 3] [--json OUT]

- `scripted`: 20,000 blocks, 32 sequences of 4,000 tokens, 20 resting chats of 4,000 tokens; the pretended model sleeps 20 ms a
  step, as a real one leaves Python to others. All the rest is real.
- `model`: four chats at once on a real model.

Both ways the application runs (headless, 120x40) and every stream is read. Windows alternate, in the order that cancels a
drift; `ratio` is with by without, pair by pair. Printed as well: milliseconds of a refresh, on the engine's thread and on the UI's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from textual.app import App, ComposeResult

from benchmarks.report import machine, save, show
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.retained_prefixes import PrefixKeys
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.engine_rows import ChatFacts
from chatpaged.engine_view import EngineView
from chatpaged.model_files import resolve_model
from chatpaged.ui.widgets.engine_panel import EnginePanel

REFRESH_SECONDS = 0.25
STEP_SECONDS = 0.02
ENDLESS = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)


class Pretending(ScriptedExecutor):
    """A model that takes some time without needing Python."""

    def execute(self, output: SchedulerOutput) -> StepResult:
        """Sleeps, then answers."""
        begin = time.perf_counter()
        time.sleep(STEP_SECONDS)
        result = super().execute(output)
        self.outputs.clear()  # what tests look at would grow for ever
        return StepResult(token_ids=result.token_ids, forward=time.perf_counter() - begin)


class PanelApp(App[None]):
    """The panel, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.panel = EnginePanel()

    def compose(self) -> ComposeResult:
        """The panel over the whole screen."""
        self.panel.styles.width = "1fr"
        yield self.panel


class Refresher:
    """Does what the application does four times a second."""

    def __init__(self, engine: AsyncEngine, app: PanelApp, running: Sequence[str], resting: Sequence[PrefixKeys]) -> None:
        self._engine = engine
        self._app = app
        self._running = running
        self._resting = resting
        self.engine_seconds: list[float] = []
        self.ui_seconds: list[float] = []

    async def run(self) -> None:
        """Refreshes until it is cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """One refresh."""
        snapshot, cached, seconds = await self._engine.call(self._look)
        begin = time.perf_counter()
        chats = [ChatFacts(id=name, title=f"Chat {name}", request_id=name) for name in self._running]
        chats += [ChatFacts(id=f"rest-{i}", title=f"Resting chat {i}", cached_blocks=blocks) for i, blocks in enumerate(cached)]
        self._app.panel.show(EngineView.of(snapshot, chats, in_view=self._running[0]))
        # What is painted afterwards is not in it: only the ratio of speeds knows of that.
        self.ui_seconds.append(time.perf_counter() - begin)
        self.engine_seconds.append(seconds)

    def _look(self, engine: LLMEngine) -> tuple[EngineSnapshot, list[tuple[int, ...]], float]:
        begin = time.perf_counter()
        snapshot, cached = engine.snapshot(), [engine.cached_blocks(keys) for keys in self._resting]
        return snapshot, cached, time.perf_counter() - begin


async def measure(
    engine: AsyncEngine, prompts: Sequence[Sequence[int]], resting: Sequence[Sequence[int]], options: argparse.Namespace
) -> Any:
    """Speeds in alternating windows."""
    app = PanelApp()
    async with app.run_test(size=(120, 40)):
        for prompt in resting:
            await _read(engine, prompt, SamplingParams(temperature=0, max_tokens=1), "warm-up", asyncio.Event())
        keys = await engine.call(lambda llm: [llm.prefix_keys(prompt) for prompt in resting])
        names = [f"chat-{i}" for i in range(len(prompts))]
        begun = [asyncio.Event() for _ in prompts]
        readers = [
            asyncio.create_task(_read(engine, *chat)) for chat in zip(prompts, itertools.repeat(ENDLESS), names, begun, strict=False)
        ]
        refresher = Refresher(engine, app, names, keys)
        await asyncio.gather(*(event.wait() for event in begun))  # all of them write before anything is measured
        speeds: dict[bool, list[float]] = {False: [], True: []}
        for with_panel in itertools.chain.from_iterable([(False, True), (True, False)][turn % 2] for turn in range(options.repeat)):
            task = asyncio.create_task(refresher.run()) if with_panel else None
            speeds[with_panel].append(await _speed(engine, options.seconds))
            if task is not None:
                await _end([task])
        await _end(readers)
    return {
        "without": speeds[False],
        "with": speeds[True],
        "engine ms": [1e3 * seconds for seconds in refresher.engine_seconds],
        "UI ms": [1e3 * seconds for seconds in refresher.ui_seconds],
    }


async def _read(engine: AsyncEngine, prompt: Sequence[int], params: SamplingParams, name: str, begun: asyncio.Event) -> None:
    async for _ in engine.generate(tuple(prompt), params, request_id=name, interactive=False):
        begun.set()


async def _progress(engine: AsyncEngine) -> tuple[int, float]:
    """Tokens decoded, and when."""
    return await engine.call(lambda llm: (llm.scheduler.counters.decode_tokens, time.perf_counter()))


async def _speed(engine: AsyncEngine, seconds: float) -> float:
    """Tokens a second over some time."""
    tokens, begin = await _progress(engine)
    await asyncio.sleep(seconds)
    more, end = await _progress(engine)
    return (more - tokens) / (end - begin)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def run(factory: Callable[[], LLMEngine], *, num_chats: int, num_resting: int, length: int, options: argparse.Namespace) -> Any:
    """One engine; its chats begin alike and go on at random."""
    rng = random.Random(0)
    beginning = [rng.randrange(100, 200) for _ in range(length // 8)]
    prompts = [beginning + [rng.randrange(100, 200) for _ in range(length - len(beginning))] for _ in range(num_chats + num_resting)]
    async with AsyncEngine(lambda _: factory()) as engine:
        return await measure(engine, prompts[:num_chats], prompts[num_chats:], options)


def scripted() -> LLMEngine:
    """A large pool without a model."""
    from tests.byte_tokenizer import byte_tokenizer

    executor = Pretending([120], num_blocks=20_000, vocab_size=258, max_num_batched_tokens=8192)
    return LLMEngine(executor, byte_tokenizer(), EngineConfig(max_num_seqs=32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the starter model)")
    parser.add_argument("--only", default="scripted,model", help="comma list of scripted, model")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of windows")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for name in args.only.split(","):
        if name == "scripted":
            result[name] = asyncio.run(run(scripted, num_chats=32, num_resting=20, length=4000, options=args))
        else:
            directory = resolve_model(args.model, print)
            result[name] = asyncio.run(
                run(lambda: LLMEngine.from_pretrained(directory), num_chats=4, num_resting=4, length=256, options=args)
            )
    print(machine())
    print()
    show([_row(name, figures) for name, figures in result.items()])
    save(args.json, result)


def _row(name: str, figures: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "engine": name,
        "tok/s without": median(figures["without"]),
        "tok/s with": median(figures["with"]),
        "ratio": f"{median(ours / theirs for ours, theirs in zip(figures['with'], figures['without'], strict=True)):.4f}",
        "refreshes": len(figures["UI ms"]),
        "engine ms": median(figures["engine ms"]),
        "UI ms": median(figures["UI ms"]),
    }


if __name__ == "__main__":
    main()
