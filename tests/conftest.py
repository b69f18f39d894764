"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chatpaged.model_files import starter_directory


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what whoever runs it has set, or changes it. Only the cache, which holds the starter model, stays."""
    for name in os.environ:
        if name.startswith("CHATPAGED_"):
            monkeypatch.delenv(name)
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path_factory.getbasetemp() / "nobody" / name.lower()))


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The real starter model, fetched and converted once for this user."""
    return starter_directory(lambda _: None)
