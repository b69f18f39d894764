"""`chatpaged bench`: how fast the engine is on this machine, and beside other engines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chatpaged.bench_workloads import WORKLOADS
from chatpaged.cli.ask import load_model, open_model
from chatpaged.cli.options import engine_config, engine_options
from chatpaged.cli.prompt_options import PromptOptions, model_name_options
from chatpaged.cli.setting_options import SettingsCommand
from chatpaged.cli.terminal import Status, configure_streams, printable
from chatpaged.engine.config import EngineConfig
from chatpaged.errors import ChatpagedError, InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.bench_peers import Peer, Way
    from chatpaged.bench_replies import Figures
    from chatpaged.bench_report import Measured
    from chatpaged.bench_run import OurEngine
    from chatpaged.bench_workloads import Workload
    from chatpaged.engine.executor import ModelCode
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.local_model import LocalModel
    from chatpaged.messages import ChatMessage

_TRANSFORMERS, _LLAMA_CPP = "transformers", "llama.cpp"
_INTERVAL = 0.2  # seconds between two changes of the status line


@click.command("bench", cls=SettingsCommand, context_settings={"max_content_width": 100})
@click.argument("workloads", nargs=-1, metavar="[w1|w2|w3|FILE.jsonl]...")
@model_name_options
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Passes of each workload.")
@click.option("--limit", type=click.IntRange(min=1), metavar="K", help="Only the first K chats of each workload.")
@click.option("--vs", multiple=True, type=click.Choice([_TRANSFORMERS, _LLAMA_CPP]), help="Measure another engine too, by turns with ours.")
@click.option("--llama-python", metavar="PATH", help="A Python that has llama-cpp-python.  [default: this one]")
@click.option("--llama-model", type=click.Path(path_type=Path), metavar="FILE.gguf", help="The model for llama.cpp.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="OUT", help="Write everything to a file as well.")
@engine_options
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Measure the engine: tokens a second, times to the first token and between tokens, and where a step's time goes.

    w1 is one stream, w2 32 mixed requests at once, w3 16 chats of three turns with a shared system prompt; without any, all three
    are run. A line of FILE.jsonl is {"prompt": text, token ids or messages, "max_tokens": n, "arrival": seconds}. Nothing is read from
    the cache on disk, and nothing written, unless --disk-cache is given.

    Exit codes: 0 ok, 1 failed while running, 2 usage, 3 model, 4 input too long, 5 not enough memory, 130 interrupted.
    """
    configure_streams()
    asked = _BenchOptions.take(options)
    model = options.pop("model")
    # What an earlier run has left on disk would be found and not measured, unless somebody asks for just that.
    if ctx.get_parameter_source("disk_cache") is not ParameterSource.COMMANDLINE:
        options["no_disk_cache"] = True
    config = engine_config(**options)
    with ExitStack() as stack:
        Bench(asked, model, config, stack).run()


@dataclass(frozen=True, slots=True)
class _BenchOptions:
    """What is measured, and beside what."""

    workloads: tuple[str, ...]
    repeat: int
    limit: int | None
    vs: tuple[str, ...]
    llama_python: str | None
    llama_model: Path | None
    json_file: Path | None

    @classmethod
    def take(cls, options: dict[str, Any]) -> _BenchOptions:
        """Takes them out of a command's parameters.

        Raises:
            InvalidRequestError: they contradict each other, or name what is not there.
        """
        taken = cls(**{field.name: options.pop(field.name) for field in fields(cls)})
        for name in ("llama_python", "llama_model"):
            if getattr(taken, name) is not None and _LLAMA_CPP not in taken.vs:
                raise InvalidRequestError(f"--{name.replace('_', '-')} needs --vs {_LLAMA_CPP}")
        for name in taken.workloads:
            if name not in WORKLOADS and not Path(name).exists():
                raise InvalidRequestError(f"no workload and no file {name!r}; workloads are {', '.join(WORKLOADS)}")
        if taken.json_file is not None and not taken.json_file.absolute().parent.is_dir():
            raise InvalidRequestError(f"no directory for {taken.json_file}")
        return taken


class Bench:
    """One run of the command."""

    def __init__(self, asked: _BenchOptions, model: str | None, config: EngineConfig, stack: ExitStack) -> None:
        from chatpaged.bench_machine import num_threads

        self._asked = asked
        self._config = config
        self._stack = stack
        self._status = Status()
        self._threads = num_threads(config)
        self._peers: list[Peer] = []
        if _LLAMA_CPP in asked.vs:  # what may be missing is found out before anything is loaded
            self._start_llama_cpp(model)
        nothing: dict[str, Any] = {"system": None, "template": None, "template_args": (), "raw_prompt": False}
        prompts = PromptOptions.take_for_rows({"model": model, **nothing})
        self._model = open_model(prompts, self._status, trust_remote_code=config.trust_remote_code)
        self._workloads = [self._workload(name) for name in dict.fromkeys(asked.workloads or WORKLOADS)]

    def run(self) -> None:
        """Measures everything and tells it."""
        from chatpaged.bench_machine import describe_machine
        from chatpaged.bench_report import machine_lines

        ceilings = self._ceilings()
        llm = self._stack.enter_context(load_model(self._model, self._config, self._status))
        ours = self._our_engine(llm)
        for workload in self._workloads:
            ours.check_fits(workload)
        if _TRANSFORMERS in self._asked.vs:
            self._start_transformers()
        machine = describe_machine(self._threads)
        _write([f"model {self._model.name}", f"runs on {llm.code.with_reason}", *machine_lines(machine, ceilings), *self._peer_lines()])
        measured = []
        for workload in self._workloads:
            measured.append(self._measure(workload, ours))
            _write(["", *measured[-1].lines(ceilings, llm.scheduler.blocks.pool.num_usable)])
        if self._asked.json_file is not None:
            self._save(self._asked.json_file, llm.code, machine, ceilings, measured)

    # --- before ------------------------------------------------------------------------------------------------------

    def _workload(self, name: str) -> Workload:
        from chatpaged.bench_file import read_workload

        whole = WORKLOADS[name]() if name in WORKLOADS else read_workload(Path(name), _renderer(self._model))
        return whole.limited(self._asked.limit).fitted(self._model.tokenizer.vocab_size)

    def _start_llama_cpp(self, model: str | None) -> None:
        from chatpaged.bench_peers import find_gguf, start_llama_cpp

        gguf = find_gguf(self._asked.llama_model, model)
        self._add_peer(lambda: start_llama_cpp(gguf, self._asked.llama_python, self._config, self._threads), f"llama.cpp with {gguf.name}")

    def _start_transformers(self) -> None:
        from chatpaged.bench_peers import start_transformers

        self._add_peer(lambda: start_transformers(self._model.directory, self._config, self._threads), _TRANSFORMERS)

    def _add_peer(self, start: Callable[[], Peer], what: str) -> None:
        self._status.show(f"loading {what}")
        try:
            peer = start()
        finally:
            self._status.clear()
        self._stack.callback(peer.close)
        self._peers.append(peer)

    def _peer_lines(self) -> list[str]:
        return [f"beside {peer.name}: {peer.facts['version']}" for peer in self._peers]

    def _ceilings(self) -> dict[str, Any] | None:
        from chatpaged.bench_machine import measure_ceilings

        self._status.show("measuring the machine")
        try:
            return measure_ceilings(self._threads, self._config.device)
        except ChatpagedError as error:
            self._status.note(str(error))
            return None
        finally:
            self._status.clear()

    def _our_engine(self, llm: LLMEngine) -> OurEngine:
        from chatpaged.bench_run import OurEngine
        from chatpaged.bench_steps import ModelCost
        from chatpaged.bench_workloads import warm_up
        from chatpaged.engine.tokenizer import read_json
        from chatpaged.engine.weight_files import inspect_weights

        cost = ModelCost.of(
            inspect_weights(self._model.directory),
            read_json(self._model.directory / "config.json"),
            weight_bytes=llm.code.weight_bytes,
            kv_bytes=llm.block_bytes / self._config.block_size,
        )
        ours = OurEngine(llm, cost)
        first = warm_up().fitted(self._model.tokenizer.vocab_size)
        if first.longest <= llm.scheduler.max_tokens:
            ours.run(first)
        return ours

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _measure(self, workload: Workload, ours: OurEngine) -> Measured:
        """Runs a workload on all engines by turns, so that a machine that changes its speed changes it for all."""
        from chatpaged.bench_report import OURS, Measured

        runs: list[tuple[str, Callable[[_Progress], Figures]]] = [(OURS, lambda progress: ours.run(workload, progress.update))]
        runs += [(way.name, partial(_run_peer, peer, way, workload)) for peer in self._peers for way in peer.ways(workload)]
        measured = Measured(workload)
        try:
            for number in range(self._asked.repeat):
                for name, run in runs:
                    progress = _Progress(self._status, f"{workload.name}, pass {number + 1} of {self._asked.repeat}: {name}", workload)
                    measured.passes.setdefault(name, []).append(_with_load(run, progress))
        finally:
            self._status.clear()
        return measured

    def _save(
        self, path: Path, code: ModelCode, machine: dict[str, Any], ceilings: dict[str, Any] | None, measured: Sequence[Measured]
    ) -> None:
        from chatpaged.paths import write_text

        asked = {"repeat": self._asked.repeat, "limit": self._asked.limit, "workloads": list(self._asked.workloads or WORKLOADS)}
        result = {
            "machine": machine,
            "ceilings": ceilings,
            "model": {"name": self._model.name, "directory": str(self._model.directory)},
            "code": asdict(code),
            "options": asked | {"engine": asdict(self._config)},
            "peers": {peer.name: peer.facts for peer in self._peers},
            "workloads": [one.plain() for one in measured],
        }
        write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


class _Progress:
    """A line on a terminal that says how far a pass is."""

    def __init__(self, status: Status, what: str, workload: Workload) -> None:
        self._status = status
        self._what = what
        self._whole = workload.num_new_tokens
        self._last = time.monotonic()
        status.show(what)

    def update(self, num_tokens: int) -> None:
        """Shows how many tokens there are, if that was not done just now."""
        now = time.monotonic()
        if now - self._last >= _INTERVAL:
            self._last = now
            self._status.show(f"{self._what}, {num_tokens:,} of {self._whole:,} tokens")


def _run_peer(peer: Peer, way: Way, workload: Workload, progress: _Progress) -> Figures:
    from chatpaged.bench_replies import reply_figures

    del progress  # it tells of its replies when they are complete
    return reply_figures(peer.run(workload, way))


def _with_load(run: Callable[[_Progress], Figures], progress: _Progress) -> Figures:
    """A pass, with what other programs did meanwhile."""
    from chatpaged.bench_machine import LoadMeter

    meter = LoadMeter()
    figures = run(progress)
    return figures | {"foreign_load_percent": meter.foreign_percent()}


def _renderer(model: LocalModel) -> Callable[[str | Sequence[int] | Sequence[ChatMessage]], tuple[int, ...]]:
    """Prompts as `batch` understands them: a text is a question, where the model has a chat template."""
    from chatpaged.engine.prompts import render_prompt
    from chatpaged.messages import ChatMessage

    def render(prompt: str | Sequence[int] | Sequence[ChatMessage]) -> tuple[int, ...]:
        if isinstance(prompt, str) and model.template is not None:
            prompt = [ChatMessage("user", prompt)]
        return render_prompt(prompt, model.tokenizer, model.template).token_ids

    return render


def _write(lines: Sequence[str]) -> None:
    sys.stdout.write(printable("\n".join(lines)) + "\n")
    sys.stdout.flush()
