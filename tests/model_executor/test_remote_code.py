"""Code that comes with a model: refused unless the user says so, and never run where transformers has its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chatpaged.engine.model_executor.models.hf import load_hf_model
from chatpaged.errors import ModelError

CPU = torch.device("cpu")
CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({mark!r}).touch()
class NovelConfig(LlamaConfig):
    model_type = "novel"
class NovelForCausalLM(LlamaForCausalLM):
    config_class = NovelConfig
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Appears when the code runs."""
    return tmp_path / "the-code-was-run"


@pytest.fixture
def novel(model_directory: Callable[[str], Path], tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama under a name that transformers does not know, with its code beside it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    directory = Path(shutil.copytree(model_directory("llama"), tmp_path / "novel-model"))
    (directory / "modeling_novel.py").write_text(CODE.format(mark=str(mark)))
    change_config(
        directory,
        model_type="novel",
        architectures=["NovelForCausalLM"],
        auto_map={"AutoConfig": "modeling_novel.NovelConfig", "AutoModelForCausalLM": "modeling_novel.NovelForCausalLM"},
    )
    return directory


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(directory: Path, *, trust: bool) -> torch.Tensor:
    model = load_hf_model(directory, dtype=torch.float64, device=CPU, max_model_len=None, trust_remote_code=trust)
    assert model.geometry().num_layers == 2
    weights: torch.Tensor = next(model._model.parameters())
    return weights


def test_without_the_flag_it_is_refused(novel: Path, mark: Path) -> None:
    with pytest.raises(ModelError, match=r"novel-model \(novel\) is unknown to transformers .*--trust-remote-code runs it") as info:
        load(novel, trust=False)
    assert "\n" not in str(info.value)
    assert not mark.exists()


def test_with_the_flag_it_runs(novel: Path, mark: Path, model_directory: Callable[[str], Path]) -> None:
    weights = load(novel, trust=True)
    assert mark.exists()
    assert torch.equal(weights, load(model_directory("llama"), trust=False))


def test_code_for_a_model_that_transformers_knows_is_not_run(novel: Path, mark: Path) -> None:
    change_config(novel, model_type="llama", architectures=["LlamaForCausalLM"])
    load(novel, trust=True)
    load(novel, trust=False)
    assert not mark.exists()


def test_code_that_fails_is_one_line(novel: Path) -> None:
    (novel / "modeling_novel.py").write_text("raise RuntimeError('no\\nway')")
    with pytest.raises(ModelError, match=r"cannot use .*no") as info:
        load(novel, trust=True)
    assert "\n" not in str(info.value)


def test_code_without_a_language_model(novel: Path) -> None:
    change_config(novel, auto_map={"AutoConfig": "modeling_novel.NovelConfig"})
    with pytest.raises(ModelError, match="defines no causal language model"):
        load(novel, trust=True)


def test_unknown_model_without_code(novel: Path) -> None:
    config = json.loads((novel / "config.json").read_text())
    del config["auto_map"]
    (novel / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"cannot use .*config\.json"):
        load(novel, trust=True)
