"""Work in processes of its own that begins long before it is asked for, one after another, behind everything else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[3]


def has_triton() -> bool:
    """Whether these processes find Triton, which this one does not (`tests/conftest.py`)."""
    try:
        return bool(version("triton"))
    except PackageNotFoundError:
        return False


@dataclass(frozen=True)
class Job:
    """What Python is started with, in the root of the repository."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


class Processes:
    """Runs jobs. Each has a cache of compiled kernels of its own."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._done: dict[str, Future[subprocess.CompletedProcess[str]]] = {}
        self._running: subprocess.Popen[str] | None = None

    def start(self, name: str) -> Future[subprocess.CompletedProcess[str]]:
        """Begins a job, unless it has begun already."""
        if name not in self._done:
            self._done[name] = self._pool.submit(self._run, self._jobs[name])
        return self._done[name]

    def result(self, name: str) -> subprocess.CompletedProcess[str]:
        """What came of a job, when it has ended."""
        return self.start(name).result()

    def close(self) -> None:
        """Ends what nobody waits for any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            self._running.kill()
        self._pool.shutdown()

    def _run(self, job: Job) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            command = ["nice", "-n", "19", sys.executable, *job.arguments]
            variables = environment | {"TRITON_CACHE_DIR": directory} | dict(job.variables)
            with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=errors, text=True) as self._running:
                code = self._running.wait()
            self._running = None
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(command, code, output.read(), errors.read())
