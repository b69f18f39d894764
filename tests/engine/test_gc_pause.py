"""The garbage collector rests during imports, and not longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from chatpaged.engine.gc_pause import collector_paused


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


def test_paused_and_restored() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_restored_after_an_error() -> None:
    with pytest.raises(ImportError), collector_paused():
        raise ImportError
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


class Node:
    other: Node


def test_what_was_made_meanwhile_is_old_and_can_still_be_collected() -> None:
    with collector_paused():
        first, second = Node(), Node()
        first.other, second.other = second, first
    assert any(node is first for node in gc.get_objects(generation=2))
    gone = weakref.ref(first)
    del first, second
    gc.collect()
    assert gone() is None


def test_what_somebody_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with collector_paused():
            pass
        assert gc.get_freeze_count() == pytest.approx(count, abs=100)
    finally:
        gc.unfreeze()
