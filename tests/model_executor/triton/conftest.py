"""Starts the processes of `test_triton.py` when tests begin: beside those of one thread there is a core for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_executor.triton.jobs import JOBS
from tests.model_executor.triton.processes import Processes, has_triton

HERE = Path(__file__).parent
PROCESSES = pytest.StashKey[Processes]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts what the chosen tests will ask for."""
    if session.config.option.collectonly or not has_triton():
        return
    chosen = [item for item in session.items if item.path == HERE / "test_triton.py" and isinstance(item, pytest.Function)]
    processes = session.config.stash[PROCESSES] = Processes(JOBS)
    for item in chosen:
        processes.start(str(item.callspec.params["job"]))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends them."""
    processes = config.stash.get(PROCESSES, None)
    if processes is not None:
        processes.close()


@pytest.fixture
def processes(pytestconfig: pytest.Config) -> Processes:
    """Where the tests find what came of them."""
    return pytestconfig.stash[PROCESSES]
