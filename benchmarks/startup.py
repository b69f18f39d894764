"""Time to the first token of `chatpaged ask hi`, part by part.

python -m benchmarks.startup [--model DIR] [--repeat 5] [--json OUT]

Each repeat runs the real command in processes of their own: as it is, timed from outside until the first byte of the answer; with
clocks around its parts; and so once more with the garbage collector running during imports, which the engine pauses. Figures are
medians; the page cache is warm after a first run that does not count. Parts exclude what is measured within them, so that they add
up. Processor time tells parts from waiting on a machine that has other work, and counts all threads. A last table says whose modules
were imported, and how long their own code took.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import machine, save, show

STARTED = "STARTUP_BENCHMARK_STARTED"
REPORT = "STARTUP_BENCHMARK_REPORT"
COLLECT = "STARTUP_BENCHMARK_COLLECT"
COMMAND_IMPORTS = {
    "import click and the command": ("chatpaged.cli.ask",),
    "import tokenizers and jinja2": ("chatpaged.chat_template", "chatpaged.engine.llm_engine", "chatpaged.model_files"),
}
MODEL_IMPORTS = {
    "import torch": ("torch",),
    "import transformers": ("transformers",),
    "import transformers' loading code": ("transformers.modeling_utils", "transformers.generation.utils"),
    "import the model executor": ("chatpaged.engine.model_executor.model_runner",),
}


class Clock:
    """Shares out all time since the start among named parts, of which the innermost counts."""

    def __init__(self, started: float, part: str) -> None:
        self.parts: dict[str, list[float]] = {}
        self._stack = [part]
        self._last = (started, 0.0)

    def mark(self) -> None:
        """Adds the time and the processor time since the last mark to the innermost part."""
        now = (time.monotonic(), time.process_time())
        total = self.parts.setdefault(self._stack[-1], [0.0, 0.0])
        for i in (0, 1):
            total[i] += now[i] - self._last[i]
        self._last = now

    def enter(self, part: str) -> None:
        """Begins a part within the one that runs."""
        self.mark()
        self._stack.append(part)

    def leave(self) -> None:
        """Ends the innermost part."""
        self.mark()
        self._stack.pop()

    def time(self, owner: Any, name: str, part: str) -> None:
        """Puts a clock around a function, method or class method."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return original(*args, **kwargs)
            finally:
                self.leave()

        # A class method comes bound already, and must not be bound a second time.
        is_bound = getattr(original, "__self__", None) is not None
        setattr(owner, name, staticmethod(timed) if is_bound else timed)


def child(arguments: list[str]) -> None:
    """Runs the command with clocks, and writes the report at the first token."""
    clock = Clock(float(os.environ[STARTED]), "python starts")
    _import(clock)
    clock.enter("put the clocks in place")
    _instrument(clock)
    clock.leave()
    sys.argv = ["chatpaged", "ask", *arguments]
    from chatpaged.cli.main import main

    clock.enter("the rest: arguments, prompt, threads")
    main()


def _import(clock: Clock) -> None:
    """What the command imports, in its order; torch and all after it without the collector, as `LLMEngine.from_pretrained` does."""
    from chatpaged.engine.gc_pause import collector_paused

    for part, modules in COMMAND_IMPORTS.items():
        _import_part(clock, part, modules)
    with collector_paused() if COLLECT not in os.environ else nullcontext():
        for part, modules in MODEL_IMPORTS.items():
            _import_part(clock, part, modules)


def _import_part(clock: Clock, part: str, modules: tuple[str, ...]) -> None:
    clock.enter(part)
    for name in modules:
        importlib.import_module(name)
    clock.leave()


def _instrument(clock: Clock) -> None:
    import transformers

    from chatpaged.chat_template import ChatTemplate
    from chatpaged.cli import setting_options
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.engine.model_executor import model_runner
    from chatpaged.engine.model_executor.models.hf import HFModel
    from chatpaged.engine.tokenizer import Tokenizer

    clock.time(setting_options, "resolve_settings", "settings")
    clock.time(Tokenizer, "from_directory", "tokenizer")
    clock.time(ChatTemplate, "from_directory", "chat template")
    clock.time(model_runner, "check_directory", "look at the weights' files")
    clock.time(model_runner, "load_hf_model", "rotary tables, linear layers")
    clock.time(transformers.AutoConfig, "from_pretrained", "configuration")
    clock.time(transformers.AutoModelForCausalLM, "from_pretrained", "model code and weights")
    clock.time(HFModel, "geometry", "one token to learn the layers' shapes")
    clock.time(model_runner, "KVCache", "KV pool")
    engine: Any = LLMEngine
    step = engine.step

    def first_step(self: LLMEngine) -> Any:
        clock.enter("first step: prefill and first token")
        outputs = step(self)
        clock.leave()
        engine.step = step
        Path(os.environ[REPORT]).write_text(json.dumps(clock.parts), encoding="utf-8")
        return outputs

    engine.step = first_step


# --- the parent --------------------------------------------------------------------------------------------------------


def whole(arguments: list[str]) -> float:
    """Seconds until the real command writes the first byte of its answer."""
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "chatpaged", "ask", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        if process.stdout is None or not process.stdout.read(1):
            raise RuntimeError("the command gave no answer")
        seconds = time.monotonic() - begin
        process.stdout.read()
    return seconds


def parts(arguments: list[str], report: Path, *, collect: bool = False) -> dict[str, list[float]]:
    """Seconds and processor seconds of each part, in a process with clocks; with `collect` the garbage collector goes on during imports."""
    report.unlink(missing_ok=True)
    environment = {**os.environ, **({COLLECT: "1"} if collect else {}), REPORT: str(report), STARTED: str(time.monotonic())}
    command = [sys.executable, "-m", "benchmarks.startup", "--child", *arguments]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, env=environment)
    found: dict[str, list[float]] = json.loads(report.read_text(encoding="utf-8"))
    return found


def imports(arguments: list[str]) -> list[dict[str, Any]]:
    """Whose modules the command imports, and the time of their own code, by package; torch's and transformers' parts apart."""
    command = [sys.executable, "-X", "importtime", "-m", "chatpaged", "ask", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = {}
    modules: Counter[str] = Counter()
    for own, name in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE):
        pieces = name.split(".")
        package = ".".join(pieces[:2]) if pieces[0] in {"torch", "transformers"} else pieces[0]
        seconds[package] = seconds.get(package, 0.0) + int(own) / 1e6
        modules[package] += 1
    heaviest = sorted(seconds.items(), key=lambda item: -item[1])
    return [{"imported": name, "modules": modules[name], "seconds": value} for name, value in heaviest[:16]]


def measure(arguments: list[str], repeat: int, report: Path) -> dict[str, Any]:
    """Medians over the repeats."""
    whole(arguments)
    wholes: list[float] = []
    runs: list[dict[str, list[float]]] = []
    collecting: list[dict[str, list[float]]] = []
    for _ in range(repeat):
        wholes.append(whole(arguments))
        runs.append(parts(arguments, report))
        collecting.append(parts(arguments, report, collect=True))
    rows = [_row(name, [run[name] for run in runs]) for name in runs[0]]
    sums, slow = ([[sum(column) for column in zip(*run.values(), strict=True)] for run in kind] for kind in (runs, collecting))
    rows += [_row("all parts", sums), _row("all parts, collector running", slow)]
    rows.append({"part": "the command, timed from outside", "seconds": median(wholes), "processor": None})
    # Of the imports alone: they run on one thread, while threads that wait for work take processor time in what follows.
    ratio = median(_import_time(mine) / _import_time(theirs) for mine, theirs in zip(runs, collecting, strict=True))
    return {"rows": rows, "paused by collecting": ratio, "wholes": wholes, "runs": runs, "collecting": collecting}


def _import_time(run: dict[str, list[float]]) -> float:
    return sum(run[part][1] for part in MODEL_IMPORTS)


def _row(name: str, pairs: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {"part": name, "seconds": median(pair[0] for pair in pairs), "processor": median(pair[1] for pair in pairs)}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the starter model)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    arguments = [*(("--model", args.model) if args.model else ()), "--max-tokens", "1", "--temperature", "0", "hi"]
    with tempfile.TemporaryDirectory() as directory:
        result = measure(arguments, args.repeat, Path(directory) / "report.json")
    result["imports"] = imports(arguments)
    print(machine())
    print()
    show(result["rows"])
    print(f"\nprocessor time of imports without by with the collector, run by run: {result['paused by collecting']:.2f}")
    print()
    show(result["imports"])
    save(args.json, result)


if __name__ == "__main__":
    main()
