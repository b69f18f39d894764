"""Model directories that are incomplete or damaged are refused with the file's name, before anything is loaded."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.weight_files import check_directory, inspect_weights
from chatpaged.errors import ModelError
from tests.model_executor.tiny_models import FAMILIES, save_model

CPU = torch.device("cpu")


@pytest.fixture
def model(model_directory: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a model directory, to damage."""
    return Path(shutil.copytree(model_directory("llama"), tmp_path / "model"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are in several files."""
    directory = save_model(FAMILIES["llama"](), tmp_path_factory.mktemp("sharded"), max_shard_size="100KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return directory


def write_header(path: Path, header: Any, *, length: int | None = None, data: bytes = b"") -> None:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def test_a_whole_model(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    files = inspect_weights(model)
    assert files.paths == (model / "model.safetensors",)
    assert files.num_parameters == sum(tensor.numel() for tensor in tensors.values())
    assert files.num_bytes == (model / "model.safetensors").stat().st_size
    assert files.stored_type == "F64"


def test_shards_add_up(model: Path, sharded: Path) -> None:
    files = inspect_weights(sharded)
    assert len(files.paths) > 2
    assert files.num_parameters == inspect_weights(model).num_parameters


def test_only_the_files_that_the_index_names_count(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    save_file({"adapter": torch.zeros(3)}, directory / "adapter_model.safetensors")
    assert inspect_weights(directory).num_parameters == inspect_weights(sharded).num_parameters


def test_missing_shards_are_named(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    first, second, *_ = sorted(directory.glob("*.safetensors"))
    first.unlink()
    second.unlink()
    with pytest.raises(ModelError, match=f"incomplete: missing {first.name}, {second.name}; download"):
        inspect_weights(directory)


@pytest.mark.parametrize("keep", [-1, 5000, 9])
def test_truncated_file(model: Path, keep: int) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is (cut short: [\d,]+ of [\d,]+ bytes|not a whole safetensors file)"):
        inspect_weights(model)


def test_truncated_by_one_byte_says_so(model: Path) -> None:
    path = model / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=f"model.safetensors is cut short: {size - 1:,} of {size:,} bytes; download the model again"):
        inspect_weights(model)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x10",
        b"\x00" * 8,
        b"\xff" * 200,
        b"<!DOCTYPE html><html>Not found</html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
)
def test_garbage(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole safetensors file"):
        inspect_weights(model)


@pytest.mark.parametrize(
    "header",
    [
        [],
        "text",
        {"w": None},
        {"w": {"dtype": "F32", "shape": [1]}},
        {"w": {"dtype": "F32", "data_offsets": [0, 4]}},
        {"w": {"shape": [1], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        b"\xff\xfe",
    ],
)
def test_headers_that_are_none(model: Path, header: Any) -> None:
    write_header(model / "model.safetensors", header, data=b"\0" * 16)
    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole safetensors file"):
        inspect_weights(model)


def test_a_length_that_lies(model: Path) -> None:
    write_header(model / "model.safetensors", {}, length=2**62)
    with pytest.raises(ModelError, match=r"model\.safetensors is (cut short|not a whole)"):
        inspect_weights(model)


def test_files_without_tensors(model: Path) -> None:
    save_file({}, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="hold no tensors"):
        inspect_weights(model)


def test_no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no safetensors weights in .*model"):
        inspect_weights(model)


def test_pickles_are_not_weights(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no safetensors weights in .*pytorch_model\.bin are never read"):
        inspect_weights(model)


def test_damaged_index(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    (directory / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        inspect_weights(directory)


def test_index_that_names_other_tensors(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.9.mlp.weight"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index\.json does not fit .*safetensors: the file holds no model\.layers\.9\.mlp\.weight;"):
        inspect_weights(directory)


@pytest.mark.parametrize("weight_map", [{}, [], None, {"w": 1}, {"w": "../other/model.safetensors"}, {"w": "/etc/passwd"}])
def test_index_without_files_of_this_directory(model: Path, weight_map: object) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    with pytest.raises(ModelError, match="has no weight_map"):
        inspect_weights(model)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "consolidated.safetensors", "model-00001-of-00002.safetensors"])
def test_other_safetensors_are_not_the_model(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / name)
    with pytest.raises(ModelError, match=f"no model.safetensors and no model.safetensors.index.json in .*, only {name}; download"):
        inspect_weights(model)


def test_other_safetensors_beside_the_model_do_not_count(model: Path) -> None:
    before = inspect_weights(model)
    shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
    assert inspect_weights(model) == before


@pytest.mark.parametrize("left", ["model.safetensors.incomplete", "model.safetensors.part", ".cache/huggingface/download/x.incomplete"])
def test_unfinished_downloads_are_named(model: Path, left: str) -> None:
    (model / left).parent.mkdir(parents=True, exist_ok=True)
    (model / "model.safetensors").rename(model / left)
    with pytest.raises(ModelError, match=rf"no safetensors weights in .* \(an unfinished download: {Path(left).name}\)"):
        inspect_weights(model)
    (model / "config.json").unlink()
    with pytest.raises(ModelError, match=rf"no config\.json in .* \(an unfinished download: {Path(left).name}\)"):
        check_directory(model)


def test_a_link_into_nothing_is_a_missing_shard(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "model"))
    first, *_ = sorted(directory.glob("*.safetensors"))
    first.unlink()
    first.symlink_to(tmp_path / "blobs/gone")
    with pytest.raises(ModelError, match=f"incomplete: missing {first.name}"):
        inspect_weights(directory)


def test_a_pointer_of_git_lfs_is_named(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match="git-lfs pointer; run git lfs pull"):
        inspect_weights(model)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", r"\(it is empty; download"), (b"<html>not found</html>", "it is a web page"), (b"<!DOCTYPE html>\n" * 99, "it is a web page")],
)
def test_what_else_downloads_leave(model: Path, content: bytes, reason: str) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        inspect_weights(model)


def test_directories_and_pipes_are_no_weights(model: Path, sharded: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    weights.unlink()
    weights.mkdir()
    with pytest.raises(ModelError, match=r"model\.safetensors is a directory, not a file of weights"):
        inspect_weights(model)
    weights.rmdir()
    os.mkfifo(weights)
    with pytest.raises(ModelError, match=r"model\.safetensors is a pipe, socket or device, not a file"):
        inspect_weights(model)
    copy = Path(shutil.copytree(sharded, tmp_path / "shards"))
    shard = sorted(copy.glob("*.safetensors"))[1]
    shard.unlink()
    shard.mkdir()
    with pytest.raises(ModelError, match=rf"{re.escape(shard.name)} is a directory, not a file of weights"):
        inspect_weights(copy)


def test_files_that_may_not_be_read_are_not_to_be_downloaded_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:  # the tests may run as root, who may read everything
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelError, match=r"cannot read .*model\.safetensors: Permission denied$"):
        inspect_weights(model)


def test_digest_tells_models_apart(model: Path) -> None:
    digests = {inspect_weights(model).digest}
    assert inspect_weights(model).digest in digests
    tensors = load_file(model / "model.safetensors")
    for change in ("shape", "name", "dtype"):
        changed = dict(tensors)
        norm = changed.pop("model.norm.weight")
        if change == "shape":
            changed["model.norm.weight"] = norm[:-1].clone()
        elif change == "name":
            changed["norm"] = norm
        else:
            changed["model.norm.weight"] = norm.float()
        save_file(changed, model / "model.safetensors")
        digests.add(inspect_weights(model).digest)
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("stored", "found"),
    [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16), (torch.int8, torch.float32)],
)
def test_stored_type_is_that_of_most_elements(model: Path, stored: torch.dtype, found: torch.dtype) -> None:
    tensors = {"large": torch.zeros(100, dtype=stored), "small": torch.zeros(99, dtype=torch.float64), "scale": torch.zeros(()).half()}
    save_file(tensors, model / "model.safetensors")
    files = inspect_weights(model)
    assert stored_dtype(files.stored_type) == found
    assert files.num_parameters == 200


@pytest.mark.parametrize(
    ("name", "device", "stored", "chosen"),
    [
        ("auto", "cpu", torch.bfloat16, torch.float32),
        ("auto", "cpu", torch.float16, torch.float32),
        ("auto", "cuda", torch.bfloat16, torch.bfloat16),
        ("auto", "cuda", torch.float16, torch.float16),
        ("auto", "cuda", torch.float32, torch.float32),
        ("auto", "mps", torch.bfloat16, torch.float16),
        ("bfloat16", "cpu", torch.float32, torch.bfloat16),
        ("float64", "cpu", torch.bfloat16, torch.float64),
        ("float32", "cuda", torch.bfloat16, torch.float32),
    ],
)
def test_choose_dtype(name: str, device: str, stored: torch.dtype, chosen: torch.dtype) -> None:
    assert choose_dtype(name, torch.device(device), stored) == chosen
