"""Tiny models for all tests of the model executor, each built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from chatpaged.engine.model_executor.models.hf import silence_transformers
from tests.model_executor.tiny_models import save_family


@pytest.fixture(scope="session", autouse=True)
def _quiet_and_small() -> None:
    """No progress bars, and no threads that cost more than these models' sums."""
    silence_transformers()
    torch.set_num_threads(1)


@pytest.fixture(scope="package", autouse=True)
def _packed_weights_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed weights of tiny models do not push those of the user out of the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a family's tiny model, by name."""
    root = tmp_path_factory.mktemp("models")
    return cache(lambda family: save_family(family, root / family))
