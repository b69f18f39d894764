"""Packed weights on disk: used again, made anew where anything is amiss, never needed, never believed blindly."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from chatpaged import paths
from chatpaged.engine.model_executor.models import native_dense
from chatpaged.engine.model_executor.models.native_dense import NativeDenseModel, NativeOptions
from chatpaged.engine.model_executor.quantized_weights import KEPT_FILES, load_quantized, quantized_file, save_quantized
from chatpaged.engine.weight_files import check_directory, inspect_weights
from chatpaged.errors import ModelError
from tests.model_executor.dense_cases import read_config, save_case, understood
from tests.model_executor.logits import Rows
from tests.model_executor.native.models import native_logits, native_model

SIZES = {"bytes": 100, "numbers": 4 * 7}
TENSORS = {"bytes": torch.arange(100, dtype=torch.uint8), "numbers": torch.arange(7.0)}


@pytest.fixture(autouse=True)
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of packed weights, not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return paths.cache_dir() / "quantized"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny model that a test may change."""
    return save_case("llama-biases-tied", tmp_path)


class Told(list[str]):
    """What loading says."""


def load(directory: Path, quantize: str = "int8") -> tuple[NativeDenseModel, Told]:
    config = understood(read_config(directory))
    options = NativeOptions(quantize=quantize, kv_dtype="fp32", block_size=4, max_model_len=config.context, threads=1)
    told = Told()
    return NativeDenseModel.load(directory, check_directory(directory), config, options, (), told.append), told


def equal(one: Rows, other: Rows) -> bool:
    return all(torch.equal(one[seq].nan_to_num(), other[seq].nan_to_num()) for seq in one)


def check_load(directory: Path, *, packs: bool, quantize: str = "int8") -> None:
    """Loads, and whether it packed, and computes what freshly packed weights do."""
    model, told = load(directory, quantize)
    assert told == ([f"packing weights as {quantize} (once)"] if packs else [])
    assert equal(native_logits(model), native_logits(native_model(directory, quantize)))


def only_file(quantized: Path) -> Path:
    (file,) = quantized.iterdir()
    return file


def is_mapped(file: Path) -> bool:
    return str(file) in Path("/proc/self/maps").read_text()


def test_packed_once(directory: Path, quantized: Path) -> None:
    check_load(directory, packs=True)
    file = only_file(quantized)
    made = file.stat()
    assert stat.S_IMODE(made.st_mode) == 0o600
    assert stat.S_IMODE(quantized.stat().st_mode) == 0o700
    os.utime(file, (1, 1))
    check_load(directory, packs=False)
    assert only_file(quantized).stat().st_ino == made.st_ino
    assert file.stat().st_mtime > 1  # it was used


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux to see what is mapped")
def test_mapped_not_read(directory: Path, quantized: Path) -> None:
    model, _ = load(directory)
    assert is_mapped(only_file(quantized))
    again, _ = load(directory)
    assert again.weight_bytes == model.weight_bytes
    assert all(tensor.data_ptr() % 64 == 0 for tensor in again._kept[1:10])
    del model, again


def test_any_tool_can_read_it(directory: Path, quantized: Path) -> None:
    load(directory)
    tensors = safetensors.torch.load_file(only_file(quantized))
    assert tensors["0.qkv"].dtype == torch.uint8
    assert tensors["final_norm"].dtype == torch.float32


def test_one_file_for_each_kind(directory: Path, quantized: Path) -> None:
    for quantize in ("int8", "int4", "fp16"):
        check_load(directory, packs=True, quantize=quantize)
    for quantize in ("int8", "int4", "fp16"):
        check_load(directory, packs=False, quantize=quantize)
    assert len(list(quantized.iterdir())) == 3


def test_other_weights_are_packed_anew(directory: Path) -> None:
    check_load(directory, packs=True)
    file = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.norm.weight"] += 1
    safetensors.torch.save_file(tensors, file)
    check_load(directory, packs=True)
    config = directory / "config.json"
    config.write_text(config.read_text() + "\n")
    check_load(directory, packs=True)
    os.utime(file, ns=(1, 1))
    check_load(directory, packs=True)
    check_load(directory, packs=False)


def shorter(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """A valid file all the same: whatever the header says, the data is as long as it says."""

    def changed(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        change(header)
        end = 0
        for entry in (entry for name, entry in header.items() if name != "__metadata__"):
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            entry["data_offsets"] = [end, end + size]
            end += size
        # Only sizes shall be wrong.
        header["__metadata__"] = {
            name: f"{zlib.crc32(bytes(entry['data_offsets'][1] - entry['data_offsets'][0])):08x}"
            for name, entry in header.items()
            if name != "__metadata__"
        }
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + bytes(end)

    return changed


def resize(header: dict[str, Any], name: str, size: int, dtype: str = "U8") -> None:
    header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [0, size * (4 if dtype == "F32" else 1)]}


AMISS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": shorter,
    "one byte lacks": lambda data: data[:-1],
    "header only": lambda data: data[: 8 + struct.unpack("<Q", data[:8])[0]],
    "nonsense": lambda data: b"\xff" * len(data),
    "no JSON": lambda data: data[:8] + b"?" * (len(data) - 8),
    "matrix missing": with_header(lambda header: header.pop("0.down")),
    "bias missing": with_header(lambda header: header.pop("1.qkv_bias")),
    "norm missing": with_header(lambda header: header.pop("final_norm")),
    "head missing": with_header(lambda header: header.pop("lm_head")),
    "nothing in it": with_header(lambda header: header.clear()),
    "small matrix": with_header(lambda header: resize(header, "0.gate_up", 64)),
    "no bytes": with_header(lambda header: resize(header, "1.o", 0)),
    "small norm": with_header(lambda header: resize(header, "0.input_norm", 3, "F32")),
    "large head": with_header(lambda header: resize(header, "lm_head", 1_000_000)),
}


@pytest.mark.parametrize("what", AMISS)
def test_files_that_are_not_right_are_made_anew(what: str, directory: Path, quantized: Path) -> None:
    check_load(directory, packs=True)
    file = only_file(quantized)
    file.write_bytes(AMISS[what](file.read_bytes()))
    check_load(directory, packs=True)
    check_load(directory, packs=False)


def test_something_else_in_its_place(directory: Path, quantized: Path) -> None:
    """It works without; a directory of somebody's is not removed."""
    load(directory)
    file = only_file(quantized)
    file.unlink()
    file.mkdir()
    check_load(directory, packs=True)
    assert file.is_dir()
    assert [entry for entry in quantized.iterdir() if entry != file] == []


@pytest.mark.parametrize("place", ["file", "read-only"])
def test_no_place_to_write(place: str, directory: Path, quantized: Path) -> None:
    quantized.parent.parent.mkdir(parents=True)
    if place == "file":
        quantized.parent.write_text("in the way")
    else:
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        quantized.mkdir(parents=True, mode=0o500)
    for _ in range(2):
        check_load(directory, packs=True)


def test_full_disk(directory: Path, quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(2):
        check_load(directory, packs=True)
    assert list(quantized.iterdir()) == []


def test_a_file_of_somebody_else_is_used(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(directory)

    def denied(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", denied)
    check_load(directory, packs=False)


def test_the_files_used_last_are_kept(quantized: Path) -> None:
    files = [quantized / f"{i}.safetensors" for i in range(KEPT_FILES + 3)]
    now = time.time()
    for i, file in enumerate(files):
        assert save_quantized(file, TENSORS)
        os.utime(file, (now - 1000 + i, now - 1000 + i))
        if i == 2:
            assert load_quantized(files[0], SIZES) is not None  # used again
    kept = {entry.name for entry in quantized.iterdir()}
    assert len(kept) == KEPT_FILES
    assert kept == {files[0].name, *(file.name for file in files[-(KEPT_FILES - 1) :])}
    assert save_quantized(files[0], TENSORS)  # written again: nothing has to give way
    assert {entry.name for entry in quantized.iterdir()} == kept


def test_what_killed_processes_left_is_removed(quantized: Path) -> None:
    quantized.mkdir(parents=True)
    old, new, other = (quantized / name for name in ("unfinished-old", "unfinished-new", "notes.txt"))
    for path in (old, new, other):
        path.write_text("")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    assert save_quantized(quantized / "a.safetensors", TENSORS)
    assert {entry.name for entry in quantized.iterdir()} == {"unfinished-new", "notes.txt", "a.safetensors"}


def test_tensors_come_back(quantized: Path) -> None:
    file = quantized / "a.safetensors"
    assert load_quantized(file, SIZES) is None
    assert save_quantized(file, TENSORS)
    loaded = load_quantized(file, SIZES)
    assert loaded is not None
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    assert load_quantized(file, {"bytes": 100}) is not None
    for other in ({**SIZES, "more": 4}, {**SIZES, "bytes": 101}, {**SIZES, "numbers": 7}):
        assert load_quantized(file, other) is None


def test_a_mapped_file_may_be_replaced(directory: Path, quantized: Path) -> None:
    model, _ = load(directory)
    before = native_logits(model)
    file = only_file(quantized)
    shutil.copy(file, file.with_suffix(".copy"))
    file.with_suffix(".copy").replace(file)
    file.unlink()
    assert equal(native_logits(model), before)


AT_ONCE = """
import sys
from pathlib import Path
import torch
from chatpaged.engine.model_executor.models.dense_config import dense_config
from chatpaged.engine.model_executor.models.native_dense import NativeDenseModel, NativeOptions
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import check_directory, inspect_weights
from chatpaged.errors import ModelError
torch.set_num_threads(1)
directory = Path(sys.argv[1])
options = NativeOptions(quantize="int8", kv_dtype="fp32", block_size=4, max_model_len=32, threads=1)
config = dense_config(read_json(directory / "config.json"))
print("ready", flush=True)
sys.stdin.readline()
model = NativeDenseModel.load(directory, check_directory(directory), config, options, ())
model.check_numbers()
print(model._logits.sum().item())
"""


def test_two_processes_at_once(directory: Path, quantized: Path) -> None:
    command = [sys.executable, "-c", AT_ONCE, str(directory)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    results = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert len(set(results)) == 1
    assert only_file(quantized).suffix == ".safetensors"
    check_load(directory, packs=False)


def test_damaged_weights_are_not_kept(directory: Path, quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any) -> dict[str, torch.Tensor]:
        raise ModelError("damaged")

    monkeypatch.setattr(native_dense, "pack_model", damaged)
    with pytest.raises(ModelError):
        load(directory)
    assert not quantized.exists()


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "packed.safetensors"
    tensors = {"a": torch.arange(100, dtype=torch.uint8), "b": torch.ones(7)}
    sizes = {"a": 100, "b": 28}
    assert save_quantized(path, tensors)
    assert load_quantized(path, sizes) is not None
    data = bytearray(path.read_bytes())
    data[-64] ^= 1  # of b; the last bytes are filling
    path.write_bytes(data)
    assert load_quantized(path, sizes) is None


def test_a_pipe_in_its_place_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "packed.safetensors")
    assert load_quantized(tmp_path / "packed.safetensors", {}) is None


def test_contents_that_changed_without_a_trace_of_time_have_another_place(model_directory: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(model_directory("llama"), tmp_path / "model"))
    weights = directory / "model.safetensors"
    before = quantized_file(inspect_weights(directory), directory, "int8")
    times = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as cp -p and rsync -t do
    assert quantized_file(inspect_weights(directory), directory, "int8") != before
