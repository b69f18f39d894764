"""Checkpoints that are quantised already: read through transformers' quantizers, or refused with the reason."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor import memory
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models import hf, loader, quantizer
from chatpaged.engine.model_executor.models.code_path import CodePath, choose_code
from chatpaged.engine.model_executor.models.few_rows import use_few_rows_linear
from chatpaged.engine.model_executor.models.quantizer import contained_packages, settle_types
from chatpaged.engine.model_executor.models.stored_quantization import (
    StoredQuantization,
    check_packing,
    check_scales,
    packed_bytes,
    stored_quantization,
    unpacked_type,
)
from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.weight_files import WeightFiles, check_directory
from chatpaged.errors import InvalidRequestError, MemoryBudgetError, ModelError
from tests.model_executor import tiny_quantizer
from tests.model_executor.harness import Arrival, greedy, load, make_engine, serve
from tests.model_executor.logits import CPU, TOLERANCE, computed, error, reference, save
from tests.model_executor.packed_checkpoints import SETTINGS, save_packed, save_with
from tests.model_executor.tiny_models import build_tokenizer

Pair = tuple[Path, Path]
CUDA = torch.device("cuda")
PACKAGES = {"gptq": ("gptqmodel", "optimum"), "awq": ("gptqmodel",), "compressed-tensors": ("compressed_tensors",)}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A checkpoint packed by a method, and the same model with the numbers that packing has left."""
    root = tmp_path_factory.mktemp("packed")
    plain = save("llama", SIZES, root / "plain")
    build_tokenizer().save(str(plain / "tokenizer.json"))

    def build(method: str) -> Pair:
        packed, unpacked = root / method, root / f"{method}-unpacked"
        if method in SETTINGS:
            save_packed(method, plain, packed, unpacked)
        else:
            save_with(tiny_quantizer.rows8, tiny_quantizer.SETTINGS, plain, packed, unpacked)
        return packed, unpacked

    return cache(build)


@pytest.fixture
def rows8() -> Iterator[None]:
    with tiny_quantizer.registered():
        yield


def chosen(directory: Path, device: torch.device = CPU, **options: Any) -> CodePath:
    config = EngineConfig(device="cpu", **options)
    files = check_directory(directory)
    return choose_code(directory, files, config, device, choose_dtype(config.dtype, device, stored_dtype(unpacked_type(files))))


def changed(directory: Path, target: Path, settings: object) -> Path:
    """The same model with another quantization_config."""
    shutil.copytree(directory, target)
    config = json.loads((directory / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return target


def tokens_of(engine: LLMEngine) -> list[list[tuple[int, ...]]]:
    answers = serve(engine, {"one": Arrival([5, 6, 7]), "two": Arrival([9, 8], 2)}, greedy(8))
    return [answer.token_ids for answer in answers.values()]


# What runs.


@pytest.mark.usefixtures("rows8")
@pytest.mark.parametrize(
    ("method", "tolerance"),
    # Kernels of GPTQ and AWQ round to half or bfloat16 on the way.
    [("rows8", TOLERANCE), ("fp8", TOLERANCE), ("compressed-tensors", TOLERANCE), ("gptq", 0.05), ("awq", 0.05)],
)
def test_logits_are_those_of_the_unpacked_weights(pair: Callable[[str], Pair], method: str, tolerance: float) -> None:
    for name in PACKAGES.get(method, ()):
        if not getattr(transformers.utils, f"is_{name}_available")():
            pytest.skip(f"the package {name} is not installed")
    packed, unpacked = pair(method)
    assert error(computed(load(packed, dtype=torch.float32)), reference(unpacked)) < tolerance


# The one computes in bfloat16 on some CPUs, the other rounds activations to 8 bits as well.
@pytest.mark.parametrize(
    ("settings", "tolerance"), [({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 0.05), ({"load_in_8bit": True}, 0.2)]
)
def test_logits_of_bitsandbytes(pair: Callable[[str], Pair], tmp_path: Path, settings: dict[str, Any], tolerance: float) -> None:
    pytest.importorskip("bitsandbytes", reason="the package bitsandbytes is not installed")
    plain = pair("rows8")[1]
    auto: Any = transformers.AutoModelForCausalLM
    quantization: Any = transformers.BitsAndBytesConfig
    model = auto.from_pretrained(plain, quantization_config=quantization(**settings), dtype=torch.float16)
    model.save_pretrained(tmp_path / "packed")
    model.dequantize(torch.float32).save_pretrained(tmp_path / "unpacked")
    found = error(computed(load(tmp_path / "packed", dtype=torch.float32)), reference(tmp_path / "unpacked"))
    assert found < tolerance


@pytest.mark.usefixtures("rows8")
def test_an_engine_answers_as_with_the_unpacked_weights(pair: Callable[[str], Pair]) -> None:
    engines = [make_engine(directory, dtype="float32", quantize="none", kv_blocks=20) for directory in pair("rows8")]
    packed, unpacked = (tokens_of(engine) for engine in engines)
    assert packed == unpacked
    code = engines[0].code
    assert (code.weights, code.kv) == ("rows8 8 bit", "float32")
    assert "its weights are rows8 already, which transformers reads" in code.reason


@pytest.mark.usefixtures("rows8")
def test_packed_weights_count_as_they_are_kept(pair: Callable[[str], Pair]) -> None:
    packed, _ = pair("rows8")
    model = load(packed, dtype=torch.float32)
    files = check_directory(packed)
    table = 4 * model.vocab_size * SIZES["hidden_size"]  # a decode step reads one row of it
    assert model.weight_bytes == pytest.approx(packed_bytes(files, torch.float32) - table, rel=0.01)
    assert packed_bytes(files, torch.float16) < packed_bytes(files, torch.float32) < 4 * files.num_parameters


# What is chosen, and shown.


def test_packed_weights_are_left_to_transformers(pair: Callable[[str], Pair]) -> None:
    path = chosen(pair("gptq")[0])
    assert (path.kind, path.weights, path.reason) == ("universal", "GPTQ 4 bit", "its weights are GPTQ already, which transformers reads")
    assert chosen(pair("awq")[0], CUDA).weights == "AWQ 4 bit"


def test_packed_weights_are_not_quantised_again(pair: Callable[[str], Pair]) -> None:
    requests: tuple[dict[str, Any], ...] = ({"quantize": "int4"}, {"quantize": "int8"}, {"code_path": "native"})
    for request in requests:
        with pytest.raises(InvalidRequestError, match="its weights are GPTQ already, which transformers reads"):
            chosen(pair("gptq")[0], **request)
    with pytest.raises(InvalidRequestError, match="its weights are AWQ already"):
        chosen(pair("awq")[0], CUDA, quantize="fp8")


def test_activations_get_the_type_of_what_is_not_packed(pair: Callable[[str], Pair]) -> None:
    for method in ("gptq", "fp8"):
        assert unpacked_type(check_directory(pair(method)[0])) == "F16"
        assert chosen(pair(method)[0], CUDA).dtype == torch.float16
        assert chosen(pair(method)[0]).dtype == torch.float32


@pytest.mark.usefixtures("rows8")
def test_a_packed_model_is_described(pair: Callable[[str], Pair]) -> None:
    directory = pair("rows8")[0]
    found = describe(directory, EngineConfig(device="cpu"))
    assert found["supported"]
    assert (found["weights"], found["weight_bytes"]) == ("rows8 8 bit", packed_bytes(check_directory(directory), torch.float32))
    assert found["code_reason"] == "its weights are rows8 already, which transformers reads"


def test_weights_that_are_widened_are_counted_so(pair: Callable[[str], Pair]) -> None:
    packed, unpacked = pair("fp8")
    found = describe(packed, EngineConfig(device="cpu"))
    assert (found["weights"], found["weight_bytes"]) == ("float32", 4 * check_directory(unpacked).num_parameters)


def test_a_quantizer_may_want_another_type(pair: Callable[[str], Pair]) -> None:
    directory = pair("rows8")[0]
    with tiny_quantizer.registered(wanted=lambda _: torch.bfloat16):
        runner = ModelRunner.load(directory, EngineConfig(device="cpu", kv_blocks=20))
        assert (runner.path.dtype, runner.path.kv_dtype, runner.code.kv) == (torch.bfloat16, "bf16", "bfloat16")
        assert describe(directory, EngineConfig(device="cpu"))["dtype"] == "bfloat16"
        with pytest.raises(InvalidRequestError, match="--dtype float32 cannot be had with rows8 weights; use --dtype bfloat16"):
            ModelRunner.load(directory, EngineConfig(device="cpu", dtype="float32"))


# What is refused.


@pytest.mark.parametrize(
    ("method", "packages"),
    [("gptq", "packages gptqmodel and optimum: pip install gptqmodel optimum"), ("awq", "package gptqmodel: pip install gptqmodel")],
)
def test_a_missing_package_is_named(pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch, method: str, packages: str) -> None:
    for name in ("gptqmodel", "optimum"):
        monkeypatch.setattr(transformers.utils, f"is_{name}_available", lambda: False)
    with pytest.raises(ModelError, match=f"this model's weights are {method.upper()}, which transformers reads with the {packages}$"):
        load(pair(method)[0])


@pytest.mark.parametrize(
    ("settings", "package"), [({"load_in_4bit": True}, "bitsandbytes"), ({"quant_method": "compressed-tensors"}, "compressed-tensors")]
)
def test_a_missing_package_is_named_by_what_pip_calls_it(
    pair: Callable[[str], Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: object, package: str
) -> None:
    directory = changed(pair("rows8")[0], tmp_path / "model", settings)
    monkeypatch.setattr(transformers.utils, f"is_{package.replace('-', '_')}_available", lambda: False)
    with pytest.raises(
        ModelError, match=f"weights are {package}, which transformers reads with the package {package}: pip install {package}$"
    ):
        load(directory)


def test_packages_of_other_methods_are_named_as_transformers_does(pair: Callable[[str], Pair]) -> None:
    def lacks() -> None:
        raise ImportError("Loading a rows8 model requires rows8 (`pip install rows8>=2`)")

    with tiny_quantizer.registered(lacks), pytest.raises(ModelError, match=r"reads them with is missing: pip install rows8>=2$"):
        load(pair("rows8")[0])


def test_a_device_that_is_not_the_right_one_is_named(pair: Callable[[str], Pair]) -> None:
    def refuses() -> None:
        raise RuntimeError("GPU is required to run this model.")

    expected = r"weights are rows8, which transformers cannot run on cpu here \(RuntimeError: GPU is required to run this model\.\)"
    with tiny_quantizer.registered(refuses):
        with pytest.raises(ModelError, match=expected):
            load(pair("rows8")[0])
        found = describe(pair("rows8")[0], EngineConfig(device="cpu"))
        assert not found["supported"]
        assert "GPU is required" in found["reason"]


def test_an_unknown_method_is_refused(pair: Callable[[str], Pair]) -> None:
    with pytest.raises(ModelError, match=r"weights are rows8, which transformers [0-9.]+ does not know"):  # it is not registered
        load(pair("rows8")[0])


def test_kernels_that_would_be_downloaded_are_refused(pair: Callable[[str], Pair], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="are EETQ, whose kernels transformers downloads"):
        load(changed(pair("rows8")[0], tmp_path / "eetq", {"quant_method": "eetq"}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quantization_config": [4]}, r"is \[4\]; it has to be a table"),
        ({"quantization_config": {"bits": 4}}, "names no quant_method"),
        ({"quantization_config": {"quant_method": 4}}, "names no quant_method"),
        ({"compression_config": {}}, "the old name of quantization_config"),
    ],
)
def test_settings_that_say_nothing_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        stored_quantization(config)


def test_settings_are_read_as_transformers_reads_them() -> None:
    assert stored_quantization({"quantization_config": None, "text_config": None}) is None
    found = {
        "gptq": {"quant_method": "gptq", "bits": 4},
        "awq": {"quant_method": "awq", "w_bit": 4},
        "bitsandbytes_4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False},
        "bitsandbytes_8bit": {"load_in_8bit": True},
    }
    for method, settings in found.items():
        bits = 8 if method.endswith("8bit") else 4
        assert stored_quantization({"text_config": {"quantization_config": settings}}) == StoredQuantization(method, bits)
    assert StoredQuantization("bitsandbytes_4bit", 4).weights == "bitsandbytes 4 bit"
    assert StoredQuantization("fp8", None).weights == "FP8"


@pytest.mark.parametrize(("kind", "name"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8")])
def test_weights_without_their_scales_are_refused(pair: Callable[[str], Pair], tmp_path: Path, kind: torch.dtype, name: str) -> None:
    directory = tmp_path / "model"
    shutil.copytree(pair("rows8")[1], directory)
    tensors = load_file(directory / "model.safetensors")
    cast = {key: tensor.to(kind) if kind == torch.int8 or "down_proj" in key else tensor for key, tensor in tensors.items()}
    save_file(cast, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"stored as {name}, which needs scales, and config.json does not say how"):
        chosen(directory)


@pytest.mark.parametrize("left", ["none", "some"])
def test_fp8_weights_without_their_scales_are_refused(pair: Callable[[str], Pair], tmp_path: Path, left: str) -> None:
    directory = tmp_path / "model"
    shutil.copytree(pair("fp8")[0], directory)
    assert chosen(directory).kind == "universal"
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "scale_inv" not in name or (left == "some" and ".0." in name)}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"^the weights are incomplete: .* is stored as F8_E4M3, and there is no .*weight_scale_inv for it$"
    ):
        chosen(directory)


@pytest.mark.parametrize("options", [{"quantize": "fp8"}, {"kv_dtype": "fp8"}])
def test_nothing_is_advised_that_would_be_refused_next(pair: Callable[[str], Pair], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chosen(pair("fp8")[0], **options)
    assert "int8" not in str(refused.value)


def test_fp8_weights_whose_last_block_is_not_whole_are_refused() -> None:
    def check(rows: int, columns: int, grid: tuple[int, ...], **settings: Any) -> None:
        shapes = {"a.weight": (rows, columns), "a.weight_scale_inv": grid}
        stored = stored_quantization({"quantization_config": {"quant_method": "fp8", **settings}})
        assert stored is not None
        check_scales(stored, WeightFiles((), 1, 0, "F8_E4M3", b"", shapes, types={"a.weight": "F8_E4M3", "a.weight_scale_inv": "F32"}))

    check(256, 128, (2, 1))
    check(100, 256, (1, 2))  # one block, all of it
    check(192, 128, (2, 1), weight_block_size=[96, 128])
    check(192, 128, (192, 1), weight_block_size=None)
    check(192, 128, (), weight_block_size=None)
    with pytest.raises(ModelError, match=r"^a\.weight is stored as FP8 in blocks of 128, and its 192 are no multiple of that"):
        check(192, 128, (2, 1))
    with pytest.raises(ModelError, match="its 960 are no multiple"):
        check(128, 960, (1, 8))


def test_one_matrix_of_integers_is_enough_to_be_refused(pair: Callable[[str], Pair], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(pair("rows8")[1], directory)
    tensors = load_file(directory / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    save_file(tensors | {name: tensors[name].to(torch.int8)}, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="stored as I8, which needs scales"):
        chosen(directory)


def test_masks_among_the_weights_are_no_packed_weights(pair: Callable[[str], Pair], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(pair("rows8")[1], directory)
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "mask": torch.zeros(50, 50, dtype=torch.uint8)}, directory / "model.safetensors", metadata={"format": "pt"})
    check_packing(check_directory(directory))


# Memory.


@pytest.mark.usefixtures("rows8")
def test_memory_of_packed_weights_is_checked_by_their_files(pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    directory = pair("rows8")[0]
    needed = packed_bytes(check_directory(directory), torch.float32)
    for module in ("model_runner", "models.hf"):
        monkeypatch.setattr(f"chatpaged.engine.model_executor.{module}.free_memory", lambda device: needed - 1)
    with pytest.raises(MemoryBudgetError, match=r"needs .*, .* are free; use a smaller model$"):
        ModelRunner.load(directory, EngineConfig(device="cpu", kv_blocks=20))
    load(directory, dtype=torch.float32)  # which looks at the configuration only: at least as much is needed as it says


def test_memory_of_widened_weights_is_checked_as_they_will_be(pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    packed, unpacked = pair("fp8")
    free = 4 * check_directory(unpacked).num_parameters - 1
    monkeypatch.setattr(hf, "free_memory", lambda device: free)
    with pytest.raises(MemoryBudgetError, match=r"with its FP8 weights widened to float32 needs .* use a smaller model or another --dtype"):
        load(packed, dtype=torch.float32)


def without_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("code_path", ["universal", "dense"])
def test_memory_that_runs_out_while_weights_are_moved_is_told(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch, code_path: str
) -> None:
    directory = pair("rows8")[1]
    place: tuple[Any, str] = (nn.Module, "to") if code_path == "universal" else (loader, "load_dense_model")
    monkeypatch.setattr(*place, without_memory)
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 * 2**30)
    options = EngineConfig(device="cpu", code_path=code_path, dtype="bfloat16")
    expected = r"out of memory while the model .* was loaded: it needs about .*iB, 3.0 GiB were free on cpu; use a smaller model"
    with pytest.raises(MemoryBudgetError, match=expected) as caught:
        ModelRunner.load(directory, options)
    assert caught.value.exit_code == 5


def test_memory_that_runs_out_within_transformers_is_told(pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", without_memory)
    with pytest.raises(MemoryBudgetError, match="out of memory while the model"):
        ModelRunner.load(pair("fp8")[0], EngineConfig(device="cpu"))


# Types, and what is kept away.


def test_weights_that_are_not_packed_get_their_type() -> None:
    model = nn.ModuleDict({"norm": nn.LayerNorm(4), "linear": nn.Linear(4, 4), "router": nn.Linear(4, 4), "packed": nn.Linear(4, 4)}).half()
    model.register_buffer("table", torch.zeros(2))
    model._keep_in_fp32_modules, model._keep_in_fp32_modules_strict = {"norm"}, {"router"}  # type: ignore[assignment]
    kinds = {"norm": nn.LayerNorm, "linear": nn.Linear, "router": nn.Linear, "packed": nn.Conv1d}
    for dtype, norm, router in (
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float32, torch.float32),
    ):
        settle_types(model, kinds, dtype)
        found = {name: module.weight.dtype for name, module in model.items()}
        assert found == {"norm": norm, "linear": dtype, "router": router, "packed": torch.float16}


def test_layers_that_compute_in_another_type_are_refused(pair: Callable[[str], Pair]) -> None:
    model = load(pair("rows8")[1], dtype=torch.float32)
    model._model.half()
    with pytest.raises(ModelError, match="keys, values or queries as float16 where float32 was asked for"):
        model.geometry()


def test_linear_layers_of_quantizers_keep_their_own_product() -> None:
    class Packed(torch.Tensor):
        """Stands for the tensors that some quantizers put in a layer's place."""

    plain, packed, hooked = (nn.Linear(4, 4) for _ in range(3))
    packed.weight = nn.Parameter(Packed(torch.zeros(4, 4)), requires_grad=False)
    own = hooked.forward
    hooked.forward = own  # type: ignore[method-assign]
    use_few_rows_linear(nn.ModuleList((plain, packed, hooked)))
    assert "forward" in vars(plain)
    assert "forward" not in vars(packed)
    assert hooked.forward is own


def test_quantizers_can_fetch_no_code_and_print_no_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", sys)
    monkeypatch.setitem(sys.modules, "kernels.utils", sys)
    with contained_packages():
        print("advice")
        for name in ("kernels", "kernels.utils"):
            with pytest.raises(ImportError):
                importlib.import_module(name)
    assert sys.modules["kernels"] is sys.modules["kernels.utils"] is sys
    assert capsys.readouterr() == ("", "advice\n")


def test_packages_that_are_not_what_they_were_are_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "logbar", sys)  # without LogBar
    quantizer._quiet("gptq")
