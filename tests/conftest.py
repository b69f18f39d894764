"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from chatpaged.starter_model import starter_directory
from tests.npm_packages import PACKAGES, UnavailableError, fetch

# How long an example takes says how busy the machine is, not whether it holds.
hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any machine")

# Without a GPU, Triton is for processes of its own (`tests/model_executor/triton/`): here its library would say after pytest's last line
# which of its objects the tests have kept.
if "TRITON_INTERPRET" not in os.environ and not Path("/dev/nvidiactl").exists():
    sys.modules["triton"] = None  # type: ignore[assignment]


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test depends on what whoever runs it has set, or changes it. Of the cache only the models are used, never KV blocks.

    For the whole session: what several tests share is made before the first of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("CHATPAGED_"):
                patch.delenv(name)
        for name in ("CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", str(tmp_path_factory.getbasetemp() / "nobody" / name.lower()))
        patch.setenv("CHATPAGED_ENGINE_DISK_CACHE", "0")  # tests of that cache have a directory of their own
        yield


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The real starter model, fetched and converted once for this user."""
    return starter_directory(lambda _: None)


@pytest.fixture(scope="session", params=sorted(PACKAGES))
def real_tokenizer(request: pytest.FixtureRequest) -> Path:
    """Directory with the real tokenizer and chat template of one model family after another."""
    return _real(request.param)


@pytest.fixture(scope="session")
def qwen3() -> Path:
    """Directory with Qwen3's tokenizer and chat template."""
    return _real("qwen3")


@pytest.fixture(scope="session")
def llama3() -> Path:
    """Directory with Llama 3.1's tokenizer and chat template."""
    return _real("llama3_1")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Directory with Gemma 3's tokenizer and chat template."""
    return _real("gemma3")


def _real(name: str) -> Path:
    try:
        return fetch(PACKAGES[name])
    except UnavailableError as error:
        pytest.skip(str(error))
