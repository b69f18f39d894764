"""What `chatpaged batch` costs beside the engine: rows a second of its own work, and memory.

python -m benchmarks.batch_overhead [--rows 100000] [--max-num-seqs 64] [--ordered] [--model DIR] [--json OUT]

A scripted engine answers every row with a few tokens, so that there is nothing but bookkeeping. Rows go from a file through it into a
file. Clocks around the engine's own calls, `add_request` and `step`, tell its time from the batch's: reading, checking, counting, writing.
The chat template is timed by itself, as whoever calls the engine pays for it too. For comparison a bare loop runs as many requests. Memory
is the process's peak after a tenth of the rows and at the end: what grows between is what a row costs for good. Each part runs in a process
of its own.

With --model, 32 questions are answered by a real model instead, by turns through `generate_many` and as a batch; on one thread, whose
processor time means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chatpaged.batch_file import OutputFile
from chatpaged.batch_output import OutputRows
from chatpaged.batch_rows import BatchRow, RowReader
from chatpaged.batch_run import BatchCounts, BatchRun
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.prompts import render_prompt
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.messages import ChatMessage, RenderedPrompt
from tests.byte_tokenizer import END, byte_template, byte_tokenizer

ANSWER = (*b"Yes", END)
PROMPT = RenderedPrompt("hi", tuple(b"Is this a question?"))


class Forgetful(ScriptedExecutor):
    """Keeps no steps, of which there are many here."""

    def execute(self, output: SchedulerOutput) -> StepResult:
        """See `ModelExecutor.execute`."""
        result = super().execute(output)
        self.outputs.clear()
        return result


class Clock:
    """Seconds within an engine's calls."""

    def __init__(self, engine: LLMEngine) -> None:
        self.seconds = 0.0
        for name in ("add_request", "step"):
            setattr(engine, name, self._timed(getattr(engine, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments, **named)
            self.seconds += time.perf_counter() - begin
            return result

        return timed


def make_engine(max_num_seqs: int) -> LLMEngine:
    tokenizer = byte_tokenizer()
    executor = Forgetful(ANSWER, vocab_size=258, num_blocks=8 * max_num_seqs + 1, max_num_batched_tokens=8192)
    return LLMEngine(executor, tokenizer, EngineConfig(max_num_seqs=max_num_seqs), chat_template=byte_template(tokenizer))


def write_rows(path: Path, count: int) -> None:
    with path.open("w") as file:
        for i in range(count):
            body = {"model": "m", "messages": [{"role": "user", "content": f"Is {i} a question?"}], "max_tokens": 16}
            file.write(json.dumps({"custom_id": f"row-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")


def peak_memory() -> float:
    """Most MiB that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


# --- the parts ---------------------------------------------------------------------------------------------------------


def direct(count: int, options: argparse.Namespace) -> dict[str, float]:
    engine = make_engine(options.max_num_seqs)
    params = SamplingParams(temperature=0, max_tokens=16)
    waiting: Iterator[int] = iter(range(count))
    running = done = 0
    begin = time.perf_counter()
    while done < count:
        while running < 2 * options.max_num_seqs and next(waiting, None) is not None:
            engine.add_request(PROMPT, params)
            running += 1
        ended = sum(output.finished for output in engine.step())
        running -= ended
        done += ended
    return {"seconds": time.perf_counter() - begin, "peak": peak_memory()}


def as_batch(count: int, options: argparse.Namespace) -> dict[str, float]:
    engine = make_engine(options.max_num_seqs)
    clock = Clock(engine)
    early: list[float] = []

    def watch(counts: BatchCounts) -> None:
        if not early and counts.ok >= count // 10:
            early.append(peak_memory())

    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "rows", Path(directory) / "out"
        write_rows(source, count)
        begin = time.perf_counter()
        with source.open("rb") as stream, OutputFile(target) as output:
            job = BatchRun(
                engine,
                OutputRows("m", engine.tokenizer),
                output.write,
                render=lambda _: PROMPT,
                defaults=SamplingParams(temperature=0),
                ordered=options.ordered,
            )
            job.run(RowReader(stream, models=("m",)), watch)
        seconds = time.perf_counter() - begin
        with target.open("rb") as lines:
            written = sum(1 for _ in lines)
    if (job.counts.ok, written) != (count, count):
        raise RuntimeError(f"{job.counts.ok} rows of {count} were answered, {written} written")
    return {"seconds": seconds, "own": seconds - clock.seconds, "early": early[0], "peak": peak_memory()}


def rendering(count: int, options: argparse.Namespace) -> dict[str, float]:
    engine = make_engine(options.max_num_seqs)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "rows"
        write_rows(source, count)
        with source.open("rb") as stream:
            rows = [row for row in RowReader(stream) if isinstance(row, BatchRow)]
    begin = time.perf_counter()
    for row in rows:
        render_prompt(row.prompt, engine.tokenizer, engine.chat_template)
    return {"seconds": time.perf_counter() - begin}


def with_model(directory: Path) -> list[dict[str, Any]]:
    questions = [f"Tell me about the number {i}." for i in range(32)]
    rows = "\n".join(json.dumps({"prompt": question}) for question in questions).encode()
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    figures = []
    with LLMEngine.from_pretrained(directory, EngineConfig(kv_blocks=512, threads=1)) as engine:

        def bare() -> None:
            engine.generate_many([([ChatMessage("user", question)], params) for question in questions])

        def batch() -> None:
            def render(row: BatchRow) -> RenderedPrompt:
                return render_prompt(row.prompt, engine.tokenizer, engine.chat_template)

            job = BatchRun(engine, OutputRows("m", engine.tokenizer), lambda _: None, render=render, defaults=params)
            job.run(RowReader(io.BytesIO(rows)))

        for turn in range(3):
            taken = []
            for call in (bare, batch):
                engine.forget_cached()
                begin = time.process_time()
                call()
                taken.append(time.process_time() - begin)
            figures.append({"turn": turn, "engine, processor s": taken[0], "batch": taken[1], "ratio": taken[1] / taken[0]})
    return figures


def apart(part: Any, count: int, options: argparse.Namespace) -> dict[str, float]:
    """Runs a part in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: dict[str, float] = pool.apply(part, (count, options))
    return result


def main() -> None:
    from benchmarks.report import save, show

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.model is not None:
        turns = with_model(options.model)
        show(turns)
        save(options.json, {"turns": turns})
        return
    bare, batch = (apart(part, options.rows, options) for part in (direct, as_batch))
    sample = min(options.rows, 5000)
    render = apart(rendering, sample, options)["seconds"] / sample
    figures = {
        "rows": options.rows,
        "bare loop, rows/s": options.rows / bare["seconds"],
        "as a batch, rows/s": options.rows / batch["seconds"],
        "own overhead, rows/s": options.rows / batch["own"],
        "own overhead, µs a row": batch["own"] / options.rows * 1e6,
        "rendering, µs a row": render * 1e6,
        "peak MiB after a tenth": batch["early"],
        "peak MiB at the end": batch["peak"],
        "bytes a row": (batch["peak"] - batch["early"]) * 2**20 / (0.9 * options.rows),
    }
    show([{"figure": name, "value": value} for name, value in figures.items()])
    save(options.json, {"ordered": options.ordered, "max_num_seqs": options.max_num_seqs, "figures": figures})


if __name__ == "__main__":
    main()
