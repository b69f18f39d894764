"""Which code runs a model, why, and what cannot be had."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import safetensors.torch
import torch
from gguf import quants

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention import choice
from chatpaged.engine.model_executor.attention.triton_paged import choose_chunk, fp8_device_problem
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVLayout
from chatpaged.engine.model_executor.models import code_path, native_dense, refusals, torch_path
from chatpaged.engine.model_executor.models.code_path import CodePath, choose_code
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.loader import load_model
from chatpaged.engine.model_executor.models.native_dense import NativeDenseModel
from chatpaged.engine.model_executor.models.torch_path import choose_attention, choose_ops, torch_kv_layout
from chatpaged.engine.model_executor.native.library import NativeError, native_problem
from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.weight_files import WeightFiles, check_directory
from chatpaged.errors import InvalidRequestError
from tests.model_executor.dense_cases import save_case
from tests.model_executor.logits import CPU, save

Place = Callable[[str], Path]
CUDA = torch.device("cuda")
MISSING = "the native kernels were not built"
WITHIN = "within 1 % of float32's perplexity"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Directory of a tiny model."""
    root = tmp_path_factory.mktemp("code")
    others: dict[str, tuple[str, dict[str, Any]]] = {"mixtral": ("mixtral", {}), "wide heads": ("llama", {"head_dim": 272})}
    return cache(lambda name: save(*others[name], root / name) if name in others else save_case(name, root))


@pytest.fixture
def native() -> None:
    """For tests that need the library."""
    problem = native_problem()
    if problem is not None:
        pytest.skip(problem)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def files_of(num_parameters: int) -> WeightFiles:
    return WeightFiles((), num_parameters, 0, "F32", b"", {})


def chosen(directory: Path, device: torch.device = CPU, **options: Any) -> CodePath:
    config = EngineConfig(device="cpu", **options)
    files = check_directory(directory)
    return choose_code(directory, files, config, device, choose_dtype(config.dtype, device, stored_dtype(files.stored_type)))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("options", "weights", "kv_dtype", "reason"),
    [
        ({}, "int8", "fp16", WITHIN),
        ({"code_path": "native"}, "int8", "fp16", WITHIN),
        ({"dtype": "float32"}, "fp32", "fp32", "--dtype float32 was asked for"),
        ({"dtype": "float32", "quantize": "int4"}, "int4", "fp16", "asked for"),
        ({"quantize": "none"}, "fp32", "fp32", "asked for"),
        ({"quantize": "fp16"}, "fp16", "fp16", "asked for"),
        ({"quantize": "int8", "kv_dtype": "int8"}, "int8", "int8", "asked for"),
        ({"quantize": "int4", "kv_dtype": "fp32"}, "int4", "fp32", "asked for"),
        ({"kv_dtype": "fp32"}, "int8", "fp32", WITHIN),
    ],
    ids=str,
)
def test_native(options: dict[str, Any], weights: str, kv_dtype: str, reason: str, place: Place) -> None:
    path = chosen(place("llama"), **options)
    assert (path.kind, path.weights, path.kv_dtype, path.reason) == ("native", weights, kv_dtype, reason)
    assert path.dtype == torch.float32
    assert path.config is not None
    bits = {"fp32": 32, "fp16": 16, "int8": 8.5, "int4": 5}[weights]
    assert path.weight_bytes(files_of(1000)) == int(1000 * bits / 8)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_of_four_bits_stay_so(kind: str, place: Place, tmp_path: Path) -> None:
    tensors = safetensors.torch.load_file(place("llama") / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("down_proj.weight"):
            quantization = gguf.GGMLQuantizationType[kind]
            padded = torch.nn.functional.pad(tensor, (0, -tensor.shape[1] % 32)).numpy()
            tensors[name] = torch.from_numpy(quants.dequantize(quants.quantize(padded, quantization), quantization))[:, : tensor.shape[1]]
            tensors[name] = tensors[name].contiguous()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((place("llama") / "config.json").read_text())
    path = chosen(tmp_path)
    expected = ("int8", WITHIN) if kind == "Q8_0" else ("int4", "the weights are of 4 bits already: nothing is lost")
    assert (path.quantize, path.reason) == expected


NOT_NATIVE: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "float64": ("llama", {"dtype": "float64"}, "dense", "its arithmetic is float32, not float64"),
    "bfloat16": ("llama", {"dtype": "bfloat16"}, "dense", "its arithmetic is float32, not bfloat16"),
    "dense": ("llama", {"code_path": "dense"}, "dense", "dense was asked for"),
    "universal": ("llama", {"code_path": "universal"}, "universal", "universal was asked for"),
    "wide heads": ("wide heads", {}, "dense", "heads of 272 dimensions, more than 256"),
    "experts": ("mixtral", {}, "universal", "MixtralForCausalLM is none of the dense decoder's"),
    "cuda": ("llama", {"device": CUDA}, "dense", "the native decoder runs on CPUs only, this is cuda"),
    "mps": ("llama", {"device": torch.device("mps")}, "dense", "the native decoder runs on CPUs only, this is mps"),
    "experts on cuda": ("mixtral", {"device": CUDA}, "universal", "MixtralForCausalLM is none of the dense decoder's"),
}


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", NOT_NATIVE)
def test_not_native(name: str, place: Place) -> None:
    model, options, kind, reason = NOT_NATIVE[name]
    path = chosen(place(model), **options)
    assert path.kind == kind
    assert path.reason.startswith(reason)
    assert (path.quantize, path.weights) == ("none", path.kv_dtype)
    assert (path.config is not None) == (kind == "dense")
    assert path.weight_bytes(files_of(1000)) == 1000 * path.dtype.itemsize


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", NOT_NATIVE)
def test_requests_that_cannot_be_had(name: str, place: Place) -> None:
    model, options, _, reason = NOT_NATIVE[name]
    requests = {"--quantize int8": {"quantize": "int8"}, "--quantize int4": {"quantize": "int4"}, "--kv-dtype int8": {"kv_dtype": "int8"}}
    if "code_path" not in options:
        requests["code path native"] = {"code_path": "native"}
    for text, request in requests.items():
        with pytest.raises(InvalidRequestError) as caught:
            chosen(place(model), **{**options, **request})
        assert str(caught.value).startswith(f"{text} needs the native dense decoder, which cannot run this: {reason}")
    path = chosen(place(model), **{**options, "quantize": "none"})  # which it is
    assert path.kind != "native"


def test_universal_by_name_on_cuda(place: Place) -> None:
    path = chosen(place("llama"), device=CUDA, code_path="universal", dtype="bfloat16")
    assert (path.kind, path.reason) == ("universal", "universal was asked for")


@pytest.mark.parametrize("problem", [None, "they are wrong here, by 3"])
def test_fused_operations(problem: str | None, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.device, torch.dtype, int]] = []

    def stub(device: torch.device, dtype: torch.dtype, hidden_size: int, *, fp8: bool) -> str | None:
        assert not fp8
        asked.append((device, dtype, hidden_size))
        return problem

    monkeypatch.setattr(torch_path, "fused_problem", stub)
    path = replace(chosen(place("llama"), device=CUDA, dtype="bfloat16"), attention="triton")
    code = choose_ops(path, CUDA).code("")
    assert path.config is not None
    assert asked == [(CUDA, torch.bfloat16, path.config.hidden_size)]
    assert (code.name, code.reason) == (
        ("fused torch decoder, Triton attention", "the native decoder runs on CPUs only, this is cuda")
        if problem is None
        else ("torch decoder, Triton attention", f"the native decoder runs on CPUs only, this is cuda; no fused kernels: {problem}")
    )
    # Without Triton's attention, and on the universal path, nobody asks.
    for other in (replace(path, attention="torch"), path.universal("damaged")):
        assert choose_ops(other, CUDA) == other
    assert len(asked) == 1
    assert choose_ops(path, CUDA).universal("damaged").code("").name == "transformers, Triton attention"


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "auto"}, "--kv-dtype fp8 needs CUDA, this is cpu: use --kv-dtype int8"),
        ({}, "--kv-dtype fp8 needs CUDA, this is cpu"),
        ({"device": torch.device("mps")}, "--kv-dtype fp8 needs CUDA, this is mps"),
        ({"device": torch.device("cuda"), "attention": "torch"}, "needs Triton's attention, but --attention torch was asked for"),
        ({"device": torch.device("cuda")}, "--kv-dtype fp8 cannot be had: fp8 needs compute capability 8.9, this card has 8.6"),
    ],
    ids=["cpu", "cpu in bfloat16", "mps", "torch's attention", "old card"],
)
def test_fp8_that_cannot_be_had(options: dict[str, Any], reason: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    monkeypatch.setattr(refusals, "triton_problem", lambda device, *_, fp8: fp8_device_problem(device) if fp8 else None)
    with pytest.raises(InvalidRequestError, match=f"{re.escape(reason)}$"):
        chosen(place("llama"), **{"kv_dtype": "fp8", "dtype": "bfloat16", **options})


@pytest.mark.parametrize(("family", "capability"), [("llama", (8, 9)), ("mixtral", (10, 0))])
def test_fp8_on_cuda(family: str, capability: tuple[int, int], place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(refusals, "triton_problem", lambda device, *_, fp8: fp8_device_problem(device) if fp8 else None)
    path = chosen(place(family), kv_dtype="fp8", dtype="bfloat16", device=torch.device("cuda"))
    assert (path.kv_dtype, path.weights) == ("fp8", "bf16")
    options = EngineConfig(kv_dtype="fp8")
    path = choose_attention(KVGeometry(2, 2, 16), path, options, torch.device("cuda"))
    assert (path.attention, path.code("").kv, path.code("").weights) == ("triton", "fp8", "bfloat16")
    assert path.universal("damaged").kv_dtype == "fp8"
    layout = torch_kv_layout(KVGeometry(2, 2, 16), path, options)
    assert layout == Fp8KVLayout(num_layers=2, block_size=16, kv_heads=2, head_dim=16)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("llama", {"dtype": "auto"}, "--quantize fp8 needs CUDA, this is cpu: use --quantize int8"),
        ("llama", {}, "--quantize fp8 needs CUDA, this is cpu"),
        ("llama", {"device": torch.device("mps")}, "--quantize fp8 needs CUDA, this is mps"),
        ("mixtral", {"device": CUDA}, "--quantize fp8 needs the dense decoder, which cannot run this: MixtralForCausalLM is none of"),
        ("llama", {"device": CUDA, "code_path": "universal"}, "needs the dense decoder, which cannot run this: universal was asked for"),
        ("llama", {"device": CUDA, "dtype": "float64"}, "--quantize fp8 cannot be had: its kernels have no float64"),
        ("llama", {"device": CUDA}, "--quantize fp8 cannot be had: fp8 needs compute capability 8.9, this card has 8.0"),
    ],
)
def test_weights_of_8_bits_that_cannot_be_had(
    family: str, options: dict[str, Any], reason: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    if "dtype" not in options:
        monkeypatch.setattr(refusals, "fp8_matrix_problem", lambda device, _: fp8_device_problem(device))
    with pytest.raises(InvalidRequestError, match=re.escape(reason)):
        chosen(place(family), **{"quantize": "fp8", "dtype": "bfloat16", **options})


def test_weights_of_8_bits_on_cuda(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(refusals, "fp8_matrix_problem", lambda *_: None)
    options: dict[str, Any] = {"dtype": "bfloat16", "device": CUDA}
    path = chosen(place("llama"), quantize="fp8", **options)
    assert (path.kind, path.quantize, path.weights, path.kv_dtype, path.code("").weights) == ("dense", "fp8", "fp8", "bf16", "fp8")
    assert path.advice == "use a smaller model"
    assert path.universal("damaged").quantize == "none"
    exact = chosen(place("llama"), **options)
    assert (exact.quantize, exact.advice) == ("none", "use a smaller model or --quantize fp8")
    assert path.config is not None
    kept = path.config.vocab_size * path.config.hidden_size * (1 if path.config.tied else 2)
    assert path.weight_bytes(files_of(10**9)) == 2 * kept + int((10**9 - kept) * 1.02)
    assert exact.weight_bytes(files_of(10**9)) == 2 * 10**9
    assert chosen(place("mixtral"), **options).advice == "use a smaller model or another --dtype"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert chosen(place("llama"), **options).advice == "use a smaller model or another --dtype"


def test_more_layers_than_tensors_are_not_thought_of_one_by_one(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(place("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**12}))
    path = chosen(directory)
    assert (path.kind, path.reason) == ("universal", "num_hidden_layers is 1,000,000,000,000, more than there are tensors")


def test_dense_by_name(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match=r"the dense decoder was asked for, which cannot run this: MixtralForCausalLM"):
        chosen(place("mixtral"), code_path="dense")


def test_without_the_library(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_path, "native_problem", lambda: MISSING)
    path = chosen(place("llama"))
    assert (path.kind, path.reason, path.weights, path.kv_dtype) == ("dense", MISSING, "fp32", "fp32")
    assert chosen(place("llama"), kv_dtype="fp32").kind == "dense"
    with pytest.raises(InvalidRequestError, match=f"--quantize int8 needs the native dense decoder, which cannot run this: {MISSING}"):
        chosen(place("llama"), quantize="int8")


@pytest.mark.usefixtures("native")
def test_attention_by_name(place: Place) -> None:
    path = load_with(place("llama"), attention="torch")
    assert (path.kind, path.attention) == ("dense", "torch")
    assert str(path.code("").with_reason) == "torch decoder · float32 (--attention torch was asked for)"
    # Found before anything is loaded. What cannot be changed is named first, whatever else is missing.
    for name in ("triton", "flash", "varlen"):
        for dtype in ("auto", "bfloat16", "float64"):
            with pytest.raises(InvalidRequestError) as refused:
                chosen(place("llama"), attention=name, dtype=dtype)
            problem = "its kernels run on CUDA, this is cpu"
            assert str(refused.value) == f"--attention {name} cannot be had: {problem}; use --attention auto"
    with pytest.raises(InvalidRequestError, match=r"^unknown attention 'paged'; one of auto, torch, triton, flash, varlen$"):
        EngineConfig(attention="paged")


ON_CUDA = CodePath("universal", "this is cuda", torch.bfloat16, "none", "bf16")


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Problems of attentions, by name; without one they can be had."""
    found: dict[str, str] = {}
    for name in choice.KERNELS:
        monkeypatch.setattr(choice, f"{name}_problem", lambda *_, name=name, **__: found.get(name))
    return found


def test_attention_on_cuda(problems: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    geometry = KVGeometry(num_layers=2, kv_heads=2, head_dim=96)

    def told(**options: Any) -> tuple[str, str, str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            path = choose_attention(geometry, ON_CUDA, EngineConfig(**options), CUDA)
        code = path.code("")
        return path.attention, code.name, code.reason

    assert told() == (
        "triton",
        "transformers, Triton attention",
        "this is cuda; Triton's attention reads keys and values where they lie",
    )
    assert not caplog.records
    problems["triton"] = "triton is not installed"
    first = "this is cuda; no Triton attention: triton is not installed"
    copies = f"{first}; flash-attn's attention gets copies of keys and values"
    assert told() == ("flash", "transformers, flash attention", copies)
    assert told(block_size=512)[2] == f"{first}; flash-attn's attention reads keys and values where they lie"
    problems["flash"] = "flash-attn is not installed"
    second = f"{first}; no flash attention: flash-attn is not installed"
    copies = f"{second}; torch's varlen attention gets copies of keys and values"
    assert told() == ("varlen", "transformers, varlen attention", copies)
    assert "no flash attention: flash-attn is not installed" in caplog.messages
    problems["varlen"] = "torch 2.9.0 has none"
    assert told() == ("torch", "transformers", f"{second}; no varlen attention: torch 2.9.0 has none")
    assert told(attention="torch")[:2] == ("torch", "transformers")
    for name, problem in problems.items():
        with pytest.raises(InvalidRequestError, match=f"^--attention {name} cannot be had: {problem}; use --attention auto$"):
            told(attention=name)


def test_what_attentions_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def note(name: str, *args: Any, **more: Any) -> str:
        asked.append((name, args, more))
        return "no"

    for name in choice.KERNELS:
        monkeypatch.setattr(choice, f"{name}_problem", partial(note, name))
    choose_attention(KVGeometry(2, 2, 96, softcap=True), ON_CUDA, EngineConfig(block_size=256), CUDA)
    known = (CUDA, torch.bfloat16, 96)
    assert asked == [("triton", known, {}), ("flash", known, {"block_size": 256}), ("varlen", known, {"softcap": True})]


def load_with(directory: Path, **options: Any) -> CodePath:
    config = EngineConfig(device="cpu", threads=1, **options)
    loaded = load_model(directory, check_directory(directory), chosen(directory, **options), config, CPU, lambda _: None)
    loaded.model.close()
    return loaded.path


@pytest.mark.usefixtures("native")
def test_what_turns_out_only_when_it_is_loaded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_with(place("llama")).kind == "native"

    def refuse(*_: Any) -> None:
        raise NativeError("4096 threads with any instructions cannot be had here")

    monkeypatch.setattr(NativeDenseModel, "load", refuse)
    path = load_with(place("llama"))
    assert (path.kind, path.weights, path.kv_dtype) == ("universal", "fp32", "fp32")
    assert path.reason == "4096 threads with any instructions cannot be had here"
    for request in ({"quantize": "int8"}, {"kv_dtype": "fp16"}, {"code_path": "native"}):
        with pytest.raises(InvalidRequestError, match="which cannot run this: 4096 threads"):
            load_with(place("llama"), **request)


def test_limits_agree() -> None:
    assert code_path.MAX_NATIVE_HEAD_DIM == 256
    assert native_dense.FORMATS.keys() == code_path.BYTES_PER_WEIGHT.keys()
    assert torch_path.num_threads(EngineConfig(threads=3)) == 3


def test_chunks_of_long_contexts_are_longer_and_never_too_many() -> None:
    assert [choose_chunk(context) for context in (20, 8192, 40_960, 65_536, 131_072, 1_010_000)] == [256, 256, 256, 256, 512, 4096]
