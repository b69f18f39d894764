"""What `models show` says about running a model is what happens when it runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor import describe as describe_module
from chatpaged.engine.model_executor import kv_cache, model_runner
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models.hf import HFModel
from chatpaged.engine.model_executor.models.step_model import TorchStepModel
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from tests.model_executor.tiny_models import DENSE_FAMILIES, FAMILIES, OTHER_FAMILIES

FREE = 50 * 2**20


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steady memory: 50 MiB are free, whoever asks."""
    for module in (describe_module, kv_cache, model_runner):
        monkeypatch.setattr(module, "free_memory", lambda _: FREE)


ALL = [*FAMILIES, *OTHER_FAMILIES]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((family, {}) for family in ALL),
        *((family, {"code_path": "universal"}) for family in ALL),
        *((family, {"code_path": "dense"}) for family in DENSE_FAMILIES),
        *((family, {"kv_dtype": "int8", "quantize": "int4"}) for family in DENSE_FAMILIES),
        ("llama", {"kv_dtype": "fp32"}),
        ("llama", {"dtype": "float32"}),
        ("llama", {"dtype": "bfloat16"}),
    ],
)
def test_what_is_told_is_what_is_loaded(
    family: str, options: dict[str, Any], model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = model_directory(family)
    config = EngineConfig(block_size=8, **options)
    told = describe(directory, config)
    assert told["supported"] is True
    # When the pool is made the weights have been loaded: less is free.
    monkeypatch.setattr(kv_cache, "free_memory", lambda _: FREE - told["weight_bytes"])
    runner = ModelRunner.load(directory, config)
    code = runner.code
    assert (told["weights"], told["kv_dtype"]) == (code.weights, code.kv)
    if runner.path.kind == "universal":
        assert isinstance(runner._model, TorchStepModel)
        model = runner._model._model
        assert isinstance(model, HFModel)
        assert told["model_class"] == type(model._model).__name__
        assert told["code_path"] == f"{told['model_class']} of transformers, through AttentionInterface"
        assert family not in DENSE_FAMILIES or options == {"code_path": "universal"}
    else:
        assert told["code_path"] == code.name
        assert family in DENSE_FAMILIES
    is_native = runner.path.kind == "native"
    assert told["attention"] == ("native_paged" if isinstance(runner._kv_cache, NativeKVCache) else "torch_paged")
    assert ("native" in code.name) == (told["attention"] == "native_paged")
    # One of the two is told: why it is not native, or why its weights are as they are.
    assert (told["code_reason"], told["weights_reason"]) == (("", runner.path.reason) if is_native else (runner.path.reason, ""))
    assert runner.path.reason
    assert told["kv_measured"]
    assert told["kv_bytes_per_block"] == runner.block_bytes == 8 * told["kv_bytes_per_token"]
    assert told["kv_blocks"] == runner.num_blocks - 1
    assert told["kv_tokens"] == 8 * told["kv_blocks"]


def test_reasons(model_directory: Callable[[str], Path]) -> None:
    told = {family: describe(model_directory(family), EngineConfig()) for family in ("llama", "gpt2")}
    assert told["llama"]["weights_reason"] == "within 1 % of float32's perplexity"
    assert told["gpt2"]["code_reason"] == "GPT2LMHeadModel is none of the dense decoder's"
    asked = describe(model_directory("llama"), EngineConfig(quantize="int4"))
    assert (asked["weights"], asked["weights_reason"]) == ("int4", "asked for")
    assert asked["weight_bytes"] < told["llama"]["weight_bytes"]
    wide = describe(model_directory("llama"), EngineConfig(dtype="float64"))
    assert wide["code_reason"] == "its arithmetic is float32, not float64"
    refused = describe(model_directory("gpt2"), EngineConfig(quantize="int8"))
    assert refused["supported"] is False
    assert refused["reason"].startswith("--quantize int8 needs the native dense decoder, which cannot run this: GPT2LMHeadModel")
    long = describe(model_directory("llama"), EngineConfig(max_model_len=100_000))
    assert "is more than the model's context" in long["reason"]


def test_options_count(model_directory: Callable[[str], Path]) -> None:
    told = describe(model_directory("llama"), EngineConfig(kv_blocks=7, dtype="bfloat16"))
    assert (told["dtype"], told["kv_blocks"], told["kv_tokens"]) == ("bfloat16", 7, 112)
    assert told["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 2  # layers, keys and values, heads, dimensions, bytes


def test_a_model_that_looks_at_values_is_still_described(model_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise NotImplementedError("aten::nonzero on meta")

    config = EngineConfig(code_path="universal")
    measured = describe(model_directory("llama"), config)
    monkeypatch.setattr(HFModel, "geometry", fail)
    told = describe(model_directory("llama"), config)
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
