"""Loading a model, and carrying out single steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor import kv_cache, model_runner
from chatpaged.engine.model_executor.forward_context import Logits
from chatpaged.engine.model_executor.model_runner import ModelRunner, choose_device
from chatpaged.engine.model_executor.models import loader
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind, LogitChanges, SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.errors import InvalidRequestError, MemoryBudgetError, ModelError
from tests.model_executor.harness import load_reference
from tests.model_executor.no_waiting import device_like
from tests.model_executor.test_equivalence import PROMPTS
from tests.model_executor.tiny_models import CONTEXT, END, VOCAB_SIZE

GREEDY = SampleRow(0, 0, 0.0, 0, 1.0, 0.0)


@pytest.fixture(scope="module")
def directory(model_directory: Callable[[str], Path]) -> Path:
    return model_directory("llama")


def load(directory: Path, **options: Any) -> ModelRunner:
    return ModelRunner.load(directory, EngineConfig(**{"device": "cpu", "dtype": "float64", "threads": 1, "kv_blocks": 20, **options}))


def row(seq_id: int, token_ids: list[int], blocks: tuple[int, ...], *samples: SampleRow, start: int = 0) -> ScheduledRow:
    return ScheduledRow(seq_id, tuple(token_ids), start, blocks, samples)


# --- devices -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_automatic_device(cuda: bool, mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto").type == chosen
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InvalidRequestError, match=f"^device {name} is not available here; use --device cpu$"):
        choose_device(name)


# --- loading -------------------------------------------------------------------------------------------------------------


def test_what_the_engine_is_told(directory: Path) -> None:
    told: list[str] = []
    config = EngineConfig(device="cpu", threads=2, kv_blocks=20)
    runner = ModelRunner.load(directory, config, progress=told.append)
    assert torch.get_num_threads() == 2
    assert told[0] == "loading weights"
    assert runner.code.name.startswith("native ")
    assert (runner.code.weights, runner.code.kv) == ("int8", "fp16")
    assert (runner.num_blocks, runner.vocab_size, runner.max_model_len) == (21, VOCAB_SIZE, CONTEXT)
    assert runner.block_bytes == 2 * 2 * 16 * 2 * 16 * 2  # layers, keys and values, tokens, heads, dimensions padded to 16, bytes
    assert runner.stop_token_ids == {END}
    assert runner.max_num_batched_tokens == 256


def test_fingerprint_tells_apart_what_changes_keys(directory: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(directory, tmp_path / "model"))
    config = json.loads((changed / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 2
    (changed / "config.json").write_text(json.dumps(config))
    fingerprints = [
        load(directory).fingerprint,
        load(directory, dtype="float32").fingerprint,
        load(directory, max_model_len=64).fingerprint,
        load(changed).fingerprint,
    ]
    assert len(set(fingerprints)) == 4
    assert load(directory, kv_blocks=9, max_num_seqs=2).fingerprint == fingerprints[0]


def test_max_model_len(directory: Path) -> None:
    assert load(directory, max_model_len=40).max_model_len == 40
    with pytest.raises(InvalidRequestError, match=f"max_model_len {CONTEXT + 1} is more than the model's context of {CONTEXT}"):
        load(directory, max_model_len=CONTEXT + 1)


def test_no_directory_and_no_configuration(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json in .*nowhere"):
        load(tmp_path / "nowhere")
    shutil.copy(directory / "model.safetensors", tmp_path)
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(tmp_path)


def test_c15_too_little_memory_for_the_weights(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "free_memory", lambda _: 1000)
    monkeypatch.setattr(model_runner, "load_model", pytest.fail)
    for options, advice in (({}, "use a smaller model or another --dtype"), ({"dtype": "auto"}, "use a smaller model or --quantize int4")):
        with pytest.raises(MemoryBudgetError, match=rf"^the model .* needs [\d.]+ KiB, 1000 B are free; {advice}$"):
            load(directory, **options)


def test_c15_too_little_memory_for_the_pool(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda _: 2**20)
    for pool in ("KVCache", "NativeKVCache"):
        monkeypatch.setattr(loader, pool, pytest.fail)
    for dtype, blocks in (("float64", 127), ("auto", 255)):
        with pytest.raises(MemoryBudgetError, match=rf"needs 900\.0 GiB, 1\.0 MiB are free; .* is --kv-blocks {blocks} ") as refused:
            LLMEngine.from_pretrained(directory, EngineConfig(device="cpu", dtype=dtype, threads=1, kv_memory=900 * 2**30))
        assert refused.value.exit_code == 5


# --- steps ---------------------------------------------------------------------------------------------------------------


def test_tokens_are_aligned_with_rows(directory: Path) -> None:
    runner = load(directory)
    model = load_reference(directory)
    best = {name: model(torch.tensor([prompt]), use_cache=False).logits[0].argmax(-1).tolist() for name, prompt in PROMPTS.items()}
    # A chunk that samples nothing stands between prompts that do, and one of them is asked for three tokens.
    certain = SampleRow(1, 0, 1.0, 1, 1.0, 0.999)  # of one candidate
    first = SchedulerOutput(
        0,
        (
            row(0, PROMPTS["medium"], (3, 7), GREEDY),
            row(1, PROMPTS["long"][:20], (9, 2)),
            row(2, PROMPTS["short"], (5,), GREEDY, certain, GREEDY),
        ),
        (),
    )
    assert runner.execute(first).token_ids == ((best["medium"][-1],), (), (best["short"][-1],) * 3)
    second = SchedulerOutput(1, (row(1, PROMPTS["long"][20:], (9, 2, 11), GREEDY, start=20),), ())
    assert runner.execute(second).token_ids == ((best["long"][-1],),)


def test_a_step_without_samples(directory: Path) -> None:
    runner = load(directory)
    result = runner.execute(SchedulerOutput(0, (row(0, [5, 6], (1,)), row(1, [7], (2,))), ()))
    assert result.token_ids == ((), ())
    assert min(result.operations, result.prepare, result.forward, result.sample) >= 0


def test_operations_come_before_the_forward_pass(directory: Path) -> None:
    runner = load(directory)
    prompt = PROMPTS["medium"]
    expected = load_reference(directory)(torch.tensor([prompt]), use_cache=False).logits[0, -1].argmax().item()
    runner.execute(SchedulerOutput(0, (row(0, prompt[:10], (4,)),), ()))
    # The sequence goes on in copies of its block, made in this order; the block itself is overwritten by another.
    copies = (BlockOperation(BlockOperationKind.COPY, 4, 8), BlockOperation(BlockOperationKind.COPY, 8, 6))
    rows = (row(1, [9] * 16, (4,)), row(2, [9] * 16, (8,)), row(0, prompt[10:], (6, 2), GREEDY, start=10))
    assert runner.execute(SchedulerOutput(1, rows, copies)).token_ids[2] == (expected,)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), MemoryError()])
def test_c15_too_little_memory_for_a_step(directory: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load(directory)

    def forward(*_: object) -> Logits:
        raise error

    monkeypatch.setattr(runner._model, "forward", forward)
    monkeypatch.setattr(model_runner, "free_memory", lambda _: 2**20)
    wanted = (
        r"^no memory for the intermediate results of a step of 3 tokens in 2 sequences: 1\.0 MiB are free beside a KV pool of "
        r"[\d.]+ KiB; use a smaller --kv-memory, --memory-utilization or --max-batched-tokens$"
    )
    with pytest.raises(MemoryBudgetError, match=wanted):
        runner.execute(SchedulerOutput(0, (row(0, [5, 6], (1,)), row(1, [7], (2,), GREEDY)), ()))


def test_other_errors_of_a_step_stay_what_they_are(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load(directory)

    def forward(*_: object) -> Logits:
        raise RuntimeError("a bug")

    monkeypatch.setattr(runner._model, "forward", forward)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        runner.execute(SchedulerOutput(0, (row(0, [5], (1,)),), ()))


def test_a_step_on_a_device_reads_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The model itself has no part in this: what its attention waits for is the attention's own affair.
    runner = load(directory)
    logits = torch.randn(2, VOCAB_SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(runner._model, "forward", lambda batch, _: Logits(logits[: len(batch.logits_rows)]))
    drawn = SampleRow(0, 0, 0.7, 5, 0.9, 0.4, logprobs=3, changes=LogitChanges(presence_penalty=0.5, output_ids=(4, 4)))
    output = SchedulerOutput(0, (row(0, [5, 6, 7], (4,)), row(1, [9] * 20, (4, 5), drawn, GREEDY), row(2, [1], (6,), GREEDY)), ())
    expected = runner.execute(output)
    with device_like() as reads:
        result = runner.execute(output)
    assert (result.token_ids, result.logprobs) == (expected.token_ids, expected.logprobs)
    assert len(reads) == 1


def test_close_gives_memory_back(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the system too: the next engine looks at what that calls free. It lets go of what others have left as well."""
    given_back: list[torch.device] = []
    monkeypatch.setattr(model_runner, "release_unused", given_back.append)
    runner = load(directory)
    assert len(given_back) == 1
    runner.close()
    assert len(given_back) == 2
    with pytest.raises(AttributeError):
        runner.execute(SchedulerOutput(0, (row(0, [5], (1,)),), ()))


def test_block_moves_alone_take_as_long_as_the_device_works_on_them(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load(directory)
    copies = [BlockOperation(BlockOperationKind.COPY, 1, 2)]
    assert 0 < runner.move(copies) < 60

    class Times:
        """Of a device that goes on for long after everything was queued."""

        def __init__(self, device: torch.device) -> None:
            self.marks = 0

        def mark(self) -> None:
            self.marks += 1

        def seconds(self) -> list[float]:
            return [7.0, 0.0][: self.marks + 1]

    monkeypatch.setattr(model_runner, "StepTimes", Times)
    assert runner.move(copies) == 7.0
