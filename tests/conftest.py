"""Fixtures that several parts of the tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatpaged.model_files import starter_directory


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The real starter model, fetched and converted once for this user."""
    return starter_directory(lambda _: None)
