"""How far a download is, told rarely and shown often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chatpaged.hub_progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved by hand."""
    now = [100.0]
    monkeypatch.setattr("chatpaged.hub_progress.time.monotonic", lambda: now[0])
    return now


def counted() -> tuple[list[str], list[str], Callable[[], Progress]]:
    told: list[str] = []
    shown: list[str] = []
    return told, shown, lambda: Progress("org/name", told.append, shown.append)


def test_a_log_gets_few_lines(clock: list[float]) -> None:
    told, shown, make = counted()
    progress = make()
    progress.begin(4_000_000)
    for _ in range(4000):
        clock[0] += 0.001
        progress.receive(1000)
    assert told == [
        "fetching org/name (4.0 MB, once)",
        "fetched 1.0 MB of 4.0 MB of org/name (25 %, 1.0 MB/s)",
        "fetched 2.0 MB of 4.0 MB of org/name (50 %, 1.0 MB/s)",
        "fetched 3.0 MB of 4.0 MB of org/name (75 %, 1.0 MB/s)",
    ]
    assert 15 <= len(shown) <= 20


def test_what_was_there_is_no_speed(clock: list[float]) -> None:
    progress = counted()[2]()
    progress.begin(2_000_000_000)
    progress.advance(1_000_000_000)
    clock[0] += 1
    progress.receive(5_000_000)
    assert progress.state() == "fetched 1.00 GB of 2.00 GB of org/name (50 %, 5.0 MB/s)"


def test_states_at_the_edges(clock: list[float]) -> None:
    progress = counted()[2]()
    assert progress.state() == "nothing of org/name was fetched"
    progress.begin(0)
    assert "100 %" in progress.state()
