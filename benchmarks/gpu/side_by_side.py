"""Units of one part in several processes at once, on one GPU: most of their time goes into compiling kernels, a core for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Generic, TypeVar

from benchmarks.gpu.rows import Settings, describe

Unit = TypeVar("Unit")
Result = TypeVar("Result")
_MAX_WORKERS = 12


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Unit, Result]):
    """What came of a unit; neither result nor error means that there was no time for it.

    Attributes:
        unit: which.
        result: what its function gave.
        error: what went wrong instead.
    """

    unit: Unit
    result: Result | None = None
    error: str = ""


def outcomes(settings: Settings, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[Outcome[Unit, Result]]:
    """Runs a function on all units, until the deadline; in a smoke test one after the other, in this process.

    Args:
        settings: of the part.
        function: of a module.
        units: plain data.

    Yields:
        What came of each, as it comes.
    """
    if settings.smoke:
        for unit in units:
            yield _outcome(function, unit) if settings.seconds_left > 0 else Outcome(unit)
        return
    workers = max(1, min(_MAX_WORKERS, len(units), (os.cpu_count() or 2) - 1))
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    waiting: dict[Future[Outcome[Unit, Result]], Unit] = {pool.submit(_outcome, function, unit): unit for unit in units}
    while waiting:
        done, _ = wait(waiting, timeout=max(0.0, settings.seconds_left), return_when=FIRST_COMPLETED)
        if not done:
            break
        for future in done:
            unit, problem = waiting.pop(future), future.exception()
            yield future.result() if problem is None else Outcome(unit, error=describe(problem))  # its process has died
    yield from (Outcome(unit) for unit in waiting.values())
    # Those that are still at work are not waited for: they end with the part's process group.
    pool.shutdown(wait=not waiting, cancel_futures=True)


def _outcome(function: Callable[[Unit], Result], unit: Unit) -> Outcome[Unit, Result]:
    try:
        return Outcome(unit, function(unit))
    except Exception as error:  # noqa: BLE001 - the other units do not depend on it
        return Outcome(unit, error=describe(error))
