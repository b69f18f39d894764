"""Fixtures for tests of the application."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App

from tests.ui.patient_pilot import PatientPilot
from tests.ui.snapshots import check_snapshot

Snapshot = Callable[[App[Any], str], None]
_MODE = os.environ.get("SNAPSHOTS", "")


@pytest.fixture(autouse=True)
def _same_terminal_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the terminal of whoever runs the tests can do is not what the pictures depend on."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `run_test` gives the patient pilot."""
    monkeypatch.setattr("textual.pilot.Pilot", PatientPilot)


@pytest.fixture
def snapshot() -> Snapshot:
    """Compares the screen of an application with a picture: `snapshot(app, name)`."""

    def check(app: App[Any], name: str) -> None:
        check_snapshot(app, name, mode=_MODE)

    return check
