"""Tests that need an NVIDIA GPU: all of this directory, skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test `gpu`, and skips it without a GPU."""
    missing = None if torch.cuda.is_available() else pytest.mark.skip(reason="needs an NVIDIA GPU, and torch sees none")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if missing is not None:
                item.add_marker(missing)
