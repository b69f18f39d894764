"""Everything that needs a GPU to be known, measured once: kernels, graphs, models, bandwidth, speed.

python -m benchmarks.gpu [--json FILE] [--parts NAME,NAME] [--budget SECONDS] [--directory DIR] [--smoke]

Made for a machine with an NVIDIA GPU that is at hand for a few minutes and has no network: models have random weights, in the shapes
of Qwen3-0.6B and Llama-3-8B. Each part runs in a process of its own, with its share of the time; it may fail or be ended without
loss to the others, and what there was no time for is told. One table, and one JSON file. The exit code is 1 if a part has failed or a
bound is not met, 2 if there is no GPU.

--smoke is the same code on a CPU with tiny shapes, to see that it runs; what it measures means nothing. Triton's interpreter takes part
where Triton is installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any

from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.rows import NO_TIME, Row

BUDGET = 450
"""Seconds in all: under eight minutes, with some to spare for what comes before the first part."""
_OWN_SHARE = 0.9
"""Of its time a part plans with this much; what it has begun then may take the rest."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
_MODEL_BYTES = 20e9
_NOT_INHERITED = ("TRITON_INTERPRET", "HF_HUB_OFFLINE")


def run_part(part: Part, seconds: float, directory: Path, *, smoke: bool) -> Iterator[Row]:
    """Runs a part, and ends it when its time is over.

    Args:
        part: which.
        seconds: how long it may take.
        directory: of the models.
        smoke: see `Settings`.

    Yields:
        Its rows, as it finds them.
    """
    begin = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.child", part.function, part.name, str(directory), str(begin + _OWN_SHARE * seconds)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, "smoke"] if smoke else command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=child_environment(os.environ, smoke=smoke),
            start_new_session=True,  # it may have processes of its own, which end with it
        )
        ended = threading.Event()

        def end() -> None:
            ended.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            with process:
                yield from (Row(**json.loads(line)) for line in process.stdout or ())
        finally:
            timer.cancel()
            with contextlib.suppress(ProcessLookupError):  # processes of its own may still be at work
                os.killpg(process.pid, signal.SIGKILL)
        if ended.is_set():
            yield Row(part=part.name, what="the rest", left_out=f"{NO_TIME}: ended after {seconds:.0f} s")
        elif process.returncode:
            yield Row(part=part.name, what="the part", error=f"its process ended with {process.returncode}: {_last_line(errors)}")


def child_environment(environment: Mapping[str, str], *, smoke: bool) -> dict[str, str]:
    """Nothing is looked for in a network, and nothing is interpreted on a GPU."""
    kept = {name: value for name, value in environment.items() if smoke or name not in _NOT_INHERITED}
    return kept | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _last_line(errors: Any) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was said")


def run_parts(
    parts: Sequence[Part], budget: float, directory: Path, *, smoke: bool, keep: Callable[[Sequence[Row]], None] = lambda _: None
) -> list[Row]:
    """Runs parts one after the other; what a part leaves of its time goes to those that follow.

    Args:
        parts: which.
        budget: seconds in all.
        directory: of the models.
        smoke: see `Settings`.
        keep: is given all rows there are, after each part.
    """
    deadline = time.monotonic() + budget
    rows: list[Row] = []
    for number, part in enumerate(parts):
        left = deadline - time.monotonic()
        seconds = left * part.share / sum(other.share for other in parts[number:])
        if seconds < 1:
            rows.append(Row(part=part.name, what=part.about, left_out=NO_TIME))
            keep(rows)
            continue
        print(f"{part.name}: {part.about}; at most {seconds:.0f} s ...", file=sys.stderr, flush=True)
        begin = time.monotonic()
        found = list(run_part(part, seconds, directory, smoke=smoke))
        rows += found or [Row(part=part.name, what=part.about, error="it has told nothing")]
        rows.append(Row(part=part.name, what="seconds that it took", value=time.monotonic() - begin, unit="s"))
        keep(rows)
    return rows


def card() -> dict[str, Any]:
    """The GPU and what drives it; found out in another process, as it would keep memory in this one."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu.card"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def place_for_models() -> Path:
    """A directory that is removed afterwards: in memory, where there is room enough."""
    roomy = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK) and disk_usage(_SHARED_MEMORY).free > _MODEL_BYTES
    return Path(tempfile.mkdtemp(prefix="chatpaged-gpu-", dir=_SHARED_MEMORY if roomy else None))


def chosen(names: str | None) -> list[Part]:
    """The parts of these names, in their own order.

    Raises:
        ValueError: there is no such part.
    """
    if names is None:
        return list(PARTS)
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - {part.name for part in PARTS}
    if unknown or not wanted:
        raise ValueError(f"no part {', '.join(sorted(unknown)) or 'named'}; there are {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS if part.name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks.report import save, show

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parts", help="some of them, with commas between")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds in all")
    parser.add_argument("--directory", type=Path, help="where models are written, and kept for the next time")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if not 0 < options.budget < math.inf:
        parser.error(f"--budget is a number of seconds above 0, not {options.budget}")
    if options.json is not None and options.json.is_dir():
        parser.error(f"--json: {options.json} is a directory; name a file")
    try:
        parts = chosen(options.parts)
        if options.json is not None:
            options.json.touch()  # what was measured for minutes should not be lost at the end
        facts = {"name": "none: a smoke test, whose figures mean nothing"} if options.smoke else card()
    except (ValueError, RuntimeError, OSError) as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    directory = options.directory if options.directory is not None else place_for_models()
    begin = time.monotonic()
    rows: list[Row] = []

    def keep(found: Sequence[Row]) -> None:
        rows[:] = found
        save(options.json, {"smoke": options.smoke, "card": facts, "rows": [row.saved() for row in rows]})

    is_whole = False
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was begun is ended, and its directory removed, likewise
    try:
        directory.mkdir(parents=True, exist_ok=True)
        run_parts(parts, options.budget, directory, smoke=options.smoke, keep=keep)
        is_whole = True
    except KeyboardInterrupt:
        print("benchmarks.gpu: interrupted; this is what there is so far", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
        if options.directory is None:
            rmtree(directory, ignore_errors=True)
    print(f"GPU: {', '.join(str(value) for value in facts.values())}\n")
    show([row.shown() for row in rows if not row.detail or row.is_bad], words=("what", "unit", "target", "result"))
    bad = sum(row.is_bad for row in rows)
    print(
        f"\n{time.monotonic() - begin:.0f} s; {bad} rows failed or not met"
        + (": a smoke test, no figure means anything" if options.smoke else "")
    )
    if not is_whole:
        return 130
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
