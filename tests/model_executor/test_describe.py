"""What `models show` says about running a model is what happens when it runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor import describe as describe_module
from chatpaged.engine.model_executor import kv_cache, model_runner
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models.hf import HFModel
from tests.model_executor.tiny_models import FAMILIES, OTHER_FAMILIES

FREE = 50 * 2**20


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steady memory: 50 MiB are free, whoever asks."""
    for module in (describe_module, kv_cache, model_runner):
        monkeypatch.setattr(module, "free_memory", lambda _: FREE)


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
def test_what_is_told_is_what_is_loaded(family: str, model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model_directory(family)
    told = describe(directory, EngineConfig(block_size=8))
    assert told["supported"] is True
    assert told["attention"] == "torch_paged"
    # When the pool is made the weights have been loaded: less is free.
    monkeypatch.setattr(kv_cache, "free_memory", lambda _: FREE - told["weight_bytes"])
    runner = ModelRunner.load(directory, EngineConfig(block_size=8))
    assert told["model_class"] == type(runner._model._model).__name__
    assert told["kv_measured"]
    assert told["kv_bytes_per_block"] == runner.block_bytes == 8 * told["kv_bytes_per_token"]
    assert told["kv_blocks"] == runner.num_blocks - 1
    assert told["kv_tokens"] == 8 * told["kv_blocks"]


def test_options_count(model_directory: Callable[[str], Path]) -> None:
    told = describe(model_directory("llama"), EngineConfig(kv_blocks=7, dtype="bfloat16"))
    assert (told["dtype"], told["kv_blocks"], told["kv_tokens"]) == ("bfloat16", 7, 112)
    assert told["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 2  # layers, keys and values, heads, dimensions, bytes


def test_a_model_that_looks_at_values_is_still_described(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise NotImplementedError("aten::nonzero on meta")

    measured = describe(model_directory("llama"), EngineConfig())
    monkeypatch.setattr(HFModel, "geometry", fail)
    told = describe(model_directory("llama"), EngineConfig())
    assert (measured["kv_measured"], told["kv_measured"]) == (True, False)
    assert told["kv_bytes_per_block"] == measured["kv_bytes_per_block"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layers of type chunked_attention"),
        ({"model_type": "novel", "auto_map": {"AutoConfig": "a.B"}}, "--trust-remote-code"),
        ({"model_type": "novel"}, "cannot use"),
    ],
)
def test_refusals_are_those_of_the_engine(
    tmp_path: Path, model_directory: Callable[[str], Path], change: dict[str, object], reason: str
) -> None:
    directory = Path(shutil.copytree(model_directory("llama"), tmp_path / "model"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    told = describe(directory, EngineConfig())
    assert told["supported"] is False
    assert reason in told["reason"]
    assert told["dtype"] == "float32"


def test_no_room(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_module, "free_memory", lambda _: 1000)
    told = describe(model_directory("llama"), EngineConfig())
    assert (told["supported"], "1000 B are free" in told["reason"]) == (False, True)
    assert told["kv_bytes_per_token"] > 0


def test_the_command(model_directory: Callable[[str], Path]) -> None:
    command = [sys.executable, "-m", "chatpaged.engine.model_executor.describe", str(model_directory("llama"))]
    done = subprocess.run([*command, json.dumps(asdict(EngineConfig(kv_blocks=3)))], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["kv_tokens"] == 48


def test_weights_of_another_shape(tmp_path: Path, model_directory: Callable[[str], Path]) -> None:
    directory = Path(shutil.copytree(model_directory("llama"), tmp_path / "model"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 10_000_000}))
    told = describe(directory, EngineConfig())
    assert told["supported"] is False
    assert "model.embed_tokens.weight has the shape" in told["reason"]
