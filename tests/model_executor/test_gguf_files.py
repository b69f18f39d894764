"""GGUF files: converted exactly, once, and refused clearly."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from chatpaged import gguf_files
from chatpaged.chat_template import ChatMessage
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor import convert_gguf as converter
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.weight_files import NOTE
from chatpaged.errors import MemoryBudgetError, ModelError
from chatpaged.gguf_files import convert_gguf, converted_directory, gguf_directory
from chatpaged.model_files import resolve_model
from tests.cli.runner import run_process
from tests.fake_hub import FakeHub, Repo, environment, running_hub
from tests.model_executor.tiny_gguf import save_gguf

DEADLINE = 60.0
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as shutil has it


def silent(_: str) -> None:
    """Nobody listens."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/chatpaged/models/gguf"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs the converter in this process, which has imported everything already. Notes its calls."""
    calls: list[str] = []

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        calls.append(arguments[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [name, *arguments])
            errors = io.StringIO()
            patch.setattr("sys.stderr", errors)
            status = converter.main()
        return subprocess.CompletedProcess([name], status, "", errors.getvalue())

    monkeypatch.setattr(gguf_files, "run_module", run)
    return calls


def kept(cache: Path) -> list[str]:
    """What is left in the directory of conversions, but for the lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock") if cache.is_dir() else []


# --- converting ----------------------------------------------------------------------------------------------------------


def test_weights_are_exactly_those_of_the_file(tmp_path: Path, in_process: list[str]) -> None:
    weights = save_gguf(tmp_path / "tiny.gguf")
    made = load_file(gguf_directory(tmp_path / "tiny.gguf", "tiny", silent) / "model.safetensors")
    assert made.keys() == weights.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in weights.items())


def test_quantization_is_remembered(tmp_path: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf", quantize=True)
    directory = gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert json.loads((directory / NOTE).read_text()) == {"quantization": "Q8_0", "name": "tiny", "source": str(tmp_path / "tiny.gguf")}


def test_it_answers(tmp_path: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    directory = resolve_model(str(tmp_path / "tiny.gguf"), silent)
    with LLMEngine.from_pretrained(directory) as engine:
        result = engine.generate([ChatMessage("user", "the blocks")], SamplingParams(max_tokens=3, temperature=0))
    assert result.completions[0].num_tokens >= 1


def test_converted_once(tmp_path: Path, cache: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    told: list[str] = []
    directory = gguf_directory(tmp_path / "tiny.gguf", "tiny", told.append)
    monkeypatch.chdir(tmp_path)
    assert gguf_directory(Path("tiny.gguf"), "tiny", told.append) == directory, "however the file is named"
    assert told == ["converting tiny.gguf (once)"]
    assert len(in_process) == 1
    assert directory.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_changed_file_is_converted_anew_and_the_old_one_forgotten(tmp_path: Path, cache: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    before = gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    weights = save_gguf(tmp_path / "tiny.gguf", seed=1)
    os.utime(tmp_path / "tiny.gguf", (time.time() + 10,) * 2)
    after = gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert torch.equal(load_file(after / "model.safetensors")["model.norm.weight"], weights["model.norm.weight"])
    assert kept(cache) == [after.name]
    assert not before.exists()


def test_a_config_beside_the_file_plays_no_part(tmp_path: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "other"}')
    directory = gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert json.loads((directory / "config.json").read_text())["model_type"] == "llama"
    assert "other" not in (directory / "chat_template.jinja").read_text()


def test_leftovers_of_a_killed_process_are_cleared(tmp_path: Path, cache: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    for name in (converted_directory(tmp_path / "tiny.gguf").name, "other-12345678"):
        (cache / f".partial-{name}/converted").mkdir(parents=True)
        (cache / f".partial-{name}/converted/model.safetensors").touch()
    directory = gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert kept(cache) == [directory.name]


def test_second_process_waits(tmp_path: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    inner: Any = gguf_files.__dict__["run_module"]
    started, go_on = threading.Event(), threading.Event()

    def slow(*arguments: str) -> subprocess.CompletedProcess[str]:
        started.set()
        assert go_on.wait(DEADLINE)
        done: subprocess.CompletedProcess[str] = inner(*arguments)
        return done

    monkeypatch.setattr(gguf_files, "run_module", slow)
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(gguf_directory(tmp_path / "tiny.gguf", "tiny", silent))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert started.wait(DEADLINE)
    assert results == []
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [converted_directory(tmp_path / "tiny.gguf")] * 2
    assert len(in_process) == 1


# --- refusing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3, 100, 5000, -1])
def test_a_truncated_file(tmp_path: Path, cache: Path, in_process: list[str], keep: int) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(data[:keep])
    with pytest.raises(ModelError, match=r"cannot convert tiny\.gguf: not a whole GGUF file") as info:
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert "\n" not in str(info.value)
    assert kept(cache) == []


def test_one_of_several_parts(tmp_path: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf", parts=3)
    with pytest.raises(ModelError, match="one of 3 parts; join them first"):
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)


def test_an_architecture_that_transformers_does_not_read(tmp_path: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf", arch="novel")
    with pytest.raises(ModelError, match=r"cannot convert tiny\.gguf: .*novel"):
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)


def test_a_tensor_that_is_missing(tmp_path: Path, cache: Path, in_process: list[str]) -> None:
    save_gguf(tmp_path / "tiny.gguf", left_out="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"finds no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert kept(cache) == []


def test_too_little_memory(tmp_path: Path, cache: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(converter, "free_memory", lambda _: 1000)
    with pytest.raises(MemoryBudgetError, match=r"cannot convert tiny\.gguf: converting it needs .* KiB, 1000 B are free"):
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)
    assert kept(cache) == []


def test_too_little_disk(tmp_path: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 1000))
    with pytest.raises(ModelError, match=r"its weights take .* KiB of disk as float32, 1000 B are free in"):
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)


@pytest.mark.parametrize("lacking", ["gguf", "accelerate"])
def test_missing_packages_are_named(tmp_path: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(f"transformers.utils.is_{lacking}_available", lambda: False)
    with pytest.raises(ModelError, match=rf"reading GGUF files needs {lacking}: pip install 'chatpaged\[gguf\]'"):
        gguf_directory(tmp_path / "tiny.gguf", "tiny", silent)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*nothing\.gguf: No such file"):
        gguf_directory(tmp_path / "nothing.gguf", "nothing", silent)


def test_conversion_killed_for_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -9, "", "")

    monkeypatch.setattr("chatpaged.child_process.subprocess.run", killed)
    with pytest.raises(ModelError, match=r"cannot convert x\.gguf: exit status -9"):
        convert_gguf(Path("x.gguf"), tmp_path)


# --- the real processes --------------------------------------------------------------------------------------------------


def test_real_converter_refuses_what_is_no_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    (tmp_path / "transformers.py").write_text("from pathlib import Path; Path('transformers-from-here').touch()")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"cannot convert model\.gguf: not a whole GGUF file") as info:
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    assert "\n" not in str(info.value)
    assert not (tmp_path / "transformers-from-here").exists()
    assert not (tmp_path / "out").exists()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as hub:
        yield hub


def test_what_lies_on_disk_needs_no_network(tmp_path: Path, hub: FakeHub, model_directory: Callable[[str], Path]) -> None:  # K5
    save_gguf(tmp_path / "tiny.gguf")
    env = environment(tmp_path, hub)
    older = Path(shutil.copytree(model_directory("llama"), tmp_path / "older"))
    vocabulary = json.loads((older / "tokenizer.json").read_text())["model"]
    (older / "tokenizer.json").unlink()
    (older / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (older / "merges.txt").write_text("\n".join(" ".join(merge) for merge in vocabulary["merges"]))
    (older / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    for model in (tmp_path / "tiny.gguf", older):
        answer = run_process("ask", "-m", str(model), "--max-tokens", "1", "--json", "hi", env=env)
        assert answer.status == 0, answer
        assert answer.json["model"] == model.stem
    assert hub.requests == []


def test_a_gguf_file_of_the_hub(tmp_path: Path, hub: FakeHub) -> None:
    for name, quantize in (("tiny-F32.gguf", False), ("tiny-Q8_0.gguf", True)):
        save_gguf(tmp_path / name, quantize=quantize)
    hub.repos["org/tiny-GGUF"] = Repo({name: (tmp_path / name).read_bytes() for name in ("tiny-F32.gguf", "tiny-Q8_0.gguf")})
    env = environment(tmp_path, hub)
    ask = ("ask", "-m", "org/tiny-GGUF:q8_0", "--max-tokens", "2", "--temperature", "0", "--json", "hi")
    first = run_process(*ask, env=env)
    assert first.status == 0, first
    assert "fetching org/tiny-GGUF:q8_0" in first.err
    assert "converting tiny-Q8_0.gguf (once)" in first.err
    assert hub.downloads("tiny-F32.gguf") == [], "only the file that was asked for"
    hub.requests.clear()
    again = run_process("ask", "-m", "org/tiny-GGUF/tiny-Q8_0.gguf", *ask[3:], env=env)
    assert (again.status, again.err) == (0, ""), again
    assert again.json["text"] == first.json["text"]
    assert again.json["model"] == "org/tiny-GGUF/tiny-Q8_0.gguf"
    assert hub.requests == []
    (entry,) = (entry for entry in run_process("models", "list", "--json", env=env).json["models"] if entry["source"] == "hub")
    assert (entry["name"], entry["quantization"], entry["stored_type"]) == ("org/tiny-GGUF/tiny-Q8_0.gguf", "Q8_0", "float32")
    assert entry["last_used"] is not None
    assert not (tmp_path / "home").exists(), "nothing lies directly in the home directory"  # K2
    uses = tmp_path / "state/chatpaged/model-usage.json"
    assert (uses.stat().st_mode & 0o777, uses.parent.stat().st_mode & 0o777) == (0o600, 0o700)  # K3
    gone = run_process("models", "rm", "--yes", "org/tiny-GGUF:Q8_0", env=env)
    assert gone.status == 0, gone
    assert [entry["source"] for entry in run_process("models", "list", "--json", env=env).json["models"]] == ["starter"]
