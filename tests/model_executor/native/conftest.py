"""The native kernels, or why there are none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache

import pytest

from chatpaged.engine.model_executor.native.library import Team, native_problem

Teams = Callable[..., Team]


@pytest.fixture(scope="session", autouse=True)
def _native() -> None:
    """Without a compiler there are no kernels, and nothing to test. With one they have to be there."""
    problem = native_problem()
    if problem is None:
        return
    compiler = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is not None:
        pytest.fail(f"{problem}, although there is {compiler}: python setup.py build_ext --inplace")
    pytest.skip(problem)


@pytest.fixture(scope="session")
def teams() -> Teams:
    """Teams of so many threads with an instruction set, each made once."""
    return cache(Team)


@pytest.fixture(scope="session")
def team(teams: Teams) -> Team:
    """The best kernels on one thread."""
    return teams(1, None)
