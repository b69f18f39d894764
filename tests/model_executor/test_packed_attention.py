"""Attention of flash-attn and of torch's varlen over stand-ins for the libraries: what reaches them, and what becomes of what they give."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.model_executor.attention import choice, flash_paged, gathered_paged, varlen_paged
from chatpaged.engine.model_executor.attention.base import AttentionBackend, AttentionOptions
from chatpaged.engine.model_executor.attention.choice import attention_problem
from chatpaged.engine.model_executor.attention.gathered_paged import GatheredPagedAttention, PackedLengths, fit
from chatpaged.engine.model_executor.attention.varlen_paged import packed_varlen
from chatpaged.engine.model_executor.describe import describe
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache, KVLayout
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.scheduler_output import ScheduledRow, SchedulerOutput
from chatpaged.errors import InvalidRequestError, ModelError
from tests.model_executor.attention_bench import CASES, CPU, TOLERANCE, Case, largest_error
from tests.model_executor.attention_stubs import FlashStub, Sums, VarlenStub211, VarlenStub213
from tests.model_executor.harness import Arrival, greedy, make_engine, serve

STUBS: dict[str, Callable[[], Any]] = {"flash": FlashStub, "varlen 2.11": VarlenStub211, "varlen 2.13": VarlenStub213}
HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def _fresh_trials() -> Iterator[None]:
    """What a trial of a stand-in has shown is forgotten."""
    yield
    for module in (flash_paged, varlen_paged):
        module._trial.cache_clear()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes a stand-in the library that is found, on a device that its kernels run on."""

    def install(name: str) -> Any:
        stub = STUBS[name]()
        monkeypatch.setattr(flash_paged if name == "flash" else varlen_paged, "_library", lambda: stub)
        monkeypatch.setattr(gathered_paged, "device_problem", lambda _: None)
        return stub

    return install


def backend_of(name: str) -> AttentionBackend:
    return choice.make_attention(name.partition(" ")[0], CPU, HALF, 100)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", STUBS)
def test_equals_torch(name: str, case: str, install: Callable[[str], Any]) -> None:
    install(name)
    if name != "flash" and CASES[case].options.softcap is not None:
        with pytest.raises(ModelError, match="caps its attention scores"):
            largest_error(CASES[case], backend_of(name))
        return
    for block_size in (1, 16):
        assert largest_error(replace(CASES[case], block_size=block_size), backend_of(name)) <= TOLERANCE[HALF]


@pytest.mark.parametrize("case", CASES)
def test_large_blocks_equal_torch(case: str, install: Callable[[str], Any]) -> None:
    stub = install("flash")
    for dtype in (HALF, torch.float16):
        stub.calls.clear()
        large = replace(CASES[case], block_size=256, dtype=dtype)
        assert largest_error(large, backend_of("flash")) <= TOLERANCE[dtype]
        in_place = large.key_dim == large.value_dim and large.key_dim % 8 == 0 and large.wider % 8 == 0
        # Two prompts beside a token that begins, mixed steps, decodes, a chunk alone, a token alone, two tokens.
        mixed = ["kvcache", "varlen in place"]
        assert stub.calls == ([*mixed * 3, "kvcache", "varlen in place", "kvcache", "kvcache"] if in_place else ["varlen"] * 7)


def test_float16(install: Callable[[str], Any]) -> None:
    for name in STUBS:
        install(name)
        assert largest_error(Case(dtype=torch.float16), backend_of(name)) <= TOLERANCE[torch.float16]
        assert not backend_of(name).capturable


def test_only_what_is_attended_to_is_copied(install: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install("varlen 2.13")
    copied: list[int] = []
    gather = KVCache.gather_slots

    def count(self: KVCache, layer: int, slot_index: torch.Tensor) -> torch.Tensor:
        copied.append(slot_index.shape[1])
        gathered = gather(self, layer, slot_index)
        assert bool(gathered.isfinite().all())
        return gathered

    monkeypatch.setattr(KVCache, "gather_slots", count)
    largest_error(Case(), backend_of("varlen"))
    # Nothing of the first step, in which all begin; later everything that is stored of those that compute.
    assert copied == [40 + 6 + 20 + 2, 41 + 7 + 23 + 3, 42 + 8 + 24 + 4, 30, 9, 43 + 31]
    copied.clear()
    largest_error(Case(options=AttentionOptions(window=5)), backend_of("varlen"))
    assert copied == [11 + 5 + 20 + 2, 5 + 5 + 7 + 3, 5 + 5 + 5 + 4, 10, 5, 10]


def test_layers_of_one_step_share_a_plan(install: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install("varlen 2.11")
    made: list[int | None] = []
    make = GatheredPagedAttention._make_plan

    def count(self: GatheredPagedAttention, window: int | None) -> Any:
        made.append(window)
        return make(self, window)

    monkeypatch.setattr(GatheredPagedAttention, "_make_plan", count)
    kv_cache = KVCache(KVLayout(num_layers=4, block_size=16, kv_heads=1, head_dim=8, dtype=HALF), 3, CPU)
    batch = InputBatch.build(SchedulerOutput(0, (ScheduledRow(0, (0, 0), 4, (1,), ()),), ()), 16, CPU)
    kv_cache.pool.fill_(1.0)
    attention = backend_of("varlen").step(batch, kv_cache)
    for layer, window in enumerate((None, 3, None, 3)):
        ones = torch.ones(2, 1, 8, dtype=HALF)
        assert torch.equal(attention.attend(layer, ones, ones, ones, AttentionOptions(window=window)), ones)
    assert made == [None, 3]


def test_what_kernels_cannot_read_is_copied() -> None:
    whole = torch.randn(6, 4, 16).to(HALF)
    assert fit(whole, 16).data_ptr() == whole.data_ptr()
    assert fit(whole.transpose(0, 1), 16).data_ptr() == whole.data_ptr()
    for odd in (whole[..., 1:9], whole[..., ::2], torch.randn(6, 4, 12).to(HALF)[..., :8], whole.flatten()[2:322].view(5, 4, 16)):
        fitted = fit(odd, odd.shape[-1])
        assert fitted.is_contiguous()
        assert fitted.data_ptr() != odd.data_ptr()
        assert torch.equal(fitted, odd)
    assert torch.equal(fit(whole[..., :5], 8), torch.cat((whole[..., :5], torch.zeros(6, 4, 3, dtype=HALF)), dim=-1))


@pytest.mark.parametrize("sinks", [None, torch.zeros(4)])
def test_torchs_own_function_takes_what_it_is_given(sinks: torch.Tensor | None) -> None:
    # Of the installed torch, without values: whether its kernel would be called, and what shapes it gives.
    pytest.importorskip("torch.nn.attention.varlen")
    meta = torch.device("meta")
    query, key = (torch.empty(7, heads, 64, dtype=HALF, device=meta) for heads in (4, 2))
    lengths = PackedLengths(
        cu_q=torch.empty(3, dtype=torch.int32, device=meta), cu_k=torch.empty(3, dtype=torch.int32, device=meta), max_q=4, max_k=5
    )
    attended, sums = packed_varlen()(query, key, key, lengths, AttentionOptions(scale=1.0, window=3, sinks=sinks))
    assert attended.shape == query.shape
    assert (sums.shape if sums is not None else None) == (None if sinks is None else (4, 7))


# --- whether they can be had ----------------------------------------------------------------------------------------------


def problem(name: str, dtype: torch.dtype = HALF, geometry: KVGeometry | None = None, block_size: int = 16) -> str | None:
    return attention_problem(name.partition(" ")[0], CPU, dtype, geometry, block_size=block_size)


@pytest.mark.parametrize("name", STUBS)
def test_a_kernel_that_is_right_is_trusted(name: str, install: Callable[[str], Any]) -> None:
    install(name)
    for geometry in (None, KVGeometry(2, 2, 80)):
        assert problem(name, geometry=geometry) is None
        assert problem(name, torch.float16, geometry, block_size=512) is None


@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("name", STUBS)
@pytest.mark.parametrize("mistake", [Sums(top_left=True), Sums(excess=1), Sums(base_two=True)], ids=str)
def test_a_kernel_that_is_wrong_is_found_out(name: str, mistake: Sums, block_size: int, install: Callable[[str], Any]) -> None:
    install(name).sums = mistake
    assert (problem(name, block_size=block_size) or "").startswith("its kernels are wrong here, by ")


@pytest.mark.parametrize("name", STUBS)
def test_a_kernel_that_does_not_run_is_found_out(name: str, install: Callable[[str], Any]) -> None:
    install(name).sums.dtypes = frozenset({torch.float16})
    assert problem(name) == "its kernels do not run here: FlashAttention only support fp16 and bf16 data type"
    assert problem(name, torch.float16) is None


@pytest.mark.parametrize("name", ["flash", "varlen"])
def test_what_no_kernel_of_the_kind_can_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem(name) == problem(name, torch.float32) == "its kernels run on CUDA, this is cpu"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert attention_problem(name, torch.device("cuda"), HALF) == "its kernels need compute capability 8.0, this is 7.5"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert attention_problem(name, torch.device("cuda"), torch.float32) == "its kernels have no float32"
    assert attention_problem(name, torch.device("cuda"), HALF, KVGeometry(1, 1, 264)) == "heads of 264 dimensions, more than 256"


def test_softcap_is_nothing_for_torchs(install: Callable[[str], Any]) -> None:
    capped = KVGeometry(2, 2, 16, softcap=True)
    install("varlen 2.13")
    assert problem("varlen", geometry=capped) == "this model caps its attention scores (softcap), which it cannot"
    install("flash")
    assert problem("flash", geometry=capped) is None


class _Old:
    """A release in which some parameters are missing."""

    @staticmethod
    def varlen_attn(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, is_causal: bool = False
    ) -> None:
        """That of torch 2.10."""

    @staticmethod
    def flash_attn_varlen_func(q: Any, softmax_scale: Any, causal: Any, window_size: Any, return_attn_probs: Any) -> None:
        """One of flash-attn 2.3."""


def test_a_triton_that_cannot_be_imported_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for name, error, reason in (
        ("triton", ModuleNotFoundError("No module named 'triton'", name="triton"), "triton is not installed"),
        ("knobs", ModuleNotFoundError("No module named 'knobs'", name="knobs"), "triton cannot be imported: No module named 'knobs'"),
        ("lib", ImportError("libtriton.so: undefined symbol: x\nmore"), "triton cannot be imported: libtriton.so: undefined symbol: x"),
    ):

        def fail(module: str, *rest: Any, error: Exception = error, real: Any = builtins.__import__) -> Any:
            if module == "triton" or module.endswith("triton_kernels") or "triton_kernels" in (rest[2] or ()):
                raise error
            return real(module, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(builtins, "__import__", fail)
            assert attention_problem("triton", torch.device("cuda"), HALF) == reason, name


def test_libraries_that_lack_something(install: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(error: Exception) -> Callable[[], Any]:
        def library() -> Any:
            raise error

        return library

    install("flash")
    cases: tuple[tuple[Any, str], ...] = (
        (lacking(ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn")), "flash-attn is not installed"),
        (
            lacking(ModuleNotFoundError("No module named 'einops'", name="einops")),
            "flash-attn cannot be imported: No module named 'einops'",
        ),
        (lacking(ImportError("x.so: undefined symbol: _ZN3c105\nmore")), "flash-attn cannot be imported: x.so: undefined symbol: _ZN3c105"),
        (_Old, "flash_attn_varlen_func of this flash-attn has no softcap and no block_table"),
        (object, "this flash-attn has no flash_attn_varlen_func"),
    )
    for library, reason in cases:
        monkeypatch.setattr(flash_paged, "_library", library)
        assert problem("flash") == reason
    torch_ = f"torch {torch.__version__}"
    for library, reason in (
        (lacking(ModuleNotFoundError("No module named 'torch.nn.attention.varlen'")), f"{torch_} has none"),
        (object, f"{torch_} has none"),
        (_Old, f"that of {torch_} has no return_aux and no scale and no window_size"),
    ):
        monkeypatch.setattr(varlen_paged, "_library", library)
        assert problem("varlen") == reason


# --- whole engines ----------------------------------------------------------------------------------------------------------

ARRIVALS = {
    "short": Arrival(list(range(20, 25))),
    "long": Arrival(list(range(30, 63)), step=1),
    "alike": Arrival([*range(30, 62), 99, 100, 101], step=5),
}


def answers(directory: Path, **options: Any) -> tuple[str, dict[str, list[tuple[int, ...]]]]:
    """What code ran, and what it answered. Two are read in chunks; the last finds blocks of the second, if these are small."""
    with make_engine(directory, dtype="float32", kv_blocks=20, max_num_seqs=4, max_num_batched_tokens=24, **options) as engine:
        done = serve(engine, ARRIVALS, greedy(8))
        assert done["alike"].cached_tokens == (32 if options.get("block_size", 16) == 16 else 0)
        return str(engine.code.with_reason), {name: answer.token_ids for name, answer in done.items()}


@pytest.mark.parametrize(
    ("name", "family", "block_size"),
    [("flash", "gemma2", 16), ("flash", "gpt_oss", 256), ("varlen 2.13", "gpt_oss", 16), ("varlen 2.11", "llama", 16)],
)
def test_same_answers(
    name: str,
    family: str,
    block_size: int,
    install: Callable[[str], Any],
    model_directory: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In float32, which the libraries do not have: no rounding is large enough to change a token.
    stub = install(name)
    stub.sums.dtypes = frozenset({torch.float32})
    monkeypatch.setattr(gathered_paged, "DTYPES", (torch.float32,))
    directory, attention = model_directory(family), name.partition(" ")[0]
    told, ours = answers(directory, attention=attention, block_size=block_size)
    assert f", {attention} attention · float32 (" in told
    assert told.endswith(f"--attention {attention} was asked for)")
    if family == "gpt_oss" and attention == "flash":
        assert {"kvcache", "varlen in place"} <= set(stub.calls)
    _, theirs = answers(directory, attention="torch", block_size=block_size)
    assert ours == theirs


def test_what_is_told_and_stored(install: Callable[[str], Any], model_directory: Callable[[str], Path]) -> None:
    install("flash")
    directory = model_directory("llama")
    told = describe(directory, EngineConfig(attention="flash", dtype="bfloat16"))
    assert (told["attention"], told["attention_reason"]) == ("flash_paged", "--attention flash was asked for")
    fingerprints = {
        ModelRunner.load(directory, EngineConfig(attention=attention, dtype="bfloat16", kv_blocks=4)).fingerprint
        for attention in ("flash", "torch")
    }
    assert len(fingerprints) == 2  # its arithmetic is another, so its keys and values are


def test_a_model_with_softcap_is_refused_by_name(install: Callable[[str], Any], model_directory: Callable[[str], Path]) -> None:
    install("varlen 2.13")
    config = EngineConfig(attention="varlen", dtype="bfloat16", kv_blocks=4)
    reason = "--attention varlen cannot be had: this model caps its attention scores (softcap), which it cannot; use --attention auto"
    for code_path in ("universal", "dense"):
        config = replace(config, code_path=code_path)
        assert describe(model_directory("gemma2"), config)["reason"] == reason
        with pytest.raises(InvalidRequestError) as caught:
            ModelRunner.load(model_directory("gemma2"), config)
        assert str(caught.value) == reason
