"""`ask` with the real starter model, in this process: torch is imported once for all of these tests."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scripted import ScriptedExecutor
from tests.byte_tokenizer import byte_tokenizer
from tests.cli.runner import Result, Stream, run_inside

pytestmark = pytest.mark.starter


def ask(*arguments: str, out: Stream | None = None) -> Result:
    return run_inside("ask", *arguments, out=out)


@pytest.fixture(autouse=True)
def _model(starter_model: Path) -> None:
    """The starter is there."""


# --- refused -------------------------------------------------------------------------------------------------------------


def test_prompt_that_can_never_fit_the_pool() -> None:  # C1
    ask("--kv-blocks", "8", " a" * 1000).failed(
        4, "needs 65 blocks (1030 tokens), pool has 8 (128); use --kv-blocks ≥ 66 or a shorter prompt, or --truncate middle"
    )


def test_prompt_that_is_longer_than_the_context() -> None:  # D1
    prompt = "The secret password is ANANAS-7734." + " filler" * 9000 + " What is the secret password?"
    ask("--json", prompt).failed(4, "9049", "8192")


@pytest.mark.parametrize(("count", "status"), [(8162, 4), (8163, 4)])
def test_context_leaves_room_for_an_answer(count: int, status: int) -> None:
    # 8192 tokens of prompt fill the context to the last; an answer of no token would be no answer.
    ask(" a" * count).failed(status, str(count + 30), "8192")


def test_pool_that_is_larger_than_memory() -> None:  # C15
    result = ask("--kv-memory", "900G", "hi")
    result.failed(5, "needs 900.0 GiB", "are free", "largest that fits")
    largest = re.search(r"--kv-blocks (\d+)", result.err)
    assert largest is not None
    # The advice is good for something: 720 KiB a block, and less than what was asked for.
    assert 0 < int(largest[1]) < 900 * 2**30 // (720 * 2**10)


def test_pool_without_a_block() -> None:
    ask("--kv-memory", "1k", "hi").failed(5, "holds no block")


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ([], "no config.json"),
        (["config.json"], "no safetensors weights"),
        (["config.json", "model.safetensors"], "cut short"),
    ],
)
def test_incomplete_model(tmp_path: Path, starter_model: Path, files: list[str], part: str) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(starter_model / name, tmp_path)
    for name in files:
        with (starter_model / name).open("rb") as source:
            (tmp_path / name).write_bytes(source.read(100_000))
    ask("-m", str(tmp_path), "hi").failed(3, part)


# --- answers -------------------------------------------------------------------------------------------------------------


def test_eight_samples_of_one_prompt() -> None:  # C12
    result = ask("-n", "8", "--seed", "1", "--temperature", "1", "--max-tokens", "24", "--json", "Write a haiku")
    assert (result.status, result.err) == (0, "")
    value = result.json
    answers = value["answers"]
    assert [answer["index"] for answer in answers] == list(range(8))
    assert [answer["seed"] for answer in answers] == list(range(1, 9))
    assert len({answer["text"] for answer in answers}) == 8
    usage, engine = value["usage"], value["engine"]
    assert usage["prompt_tokens"] == usage["prefill_tokens"] == 34
    assert usage["completion_tokens"] == sum(answer["completion_tokens"] for answer in answers)
    # Two full blocks of the prompt are shared, the rest of it is copied for all samples but the last that writes.
    assert engine["cow"] == 7
    assert engine["peak_blocks"] <= 34 // 16 + 8 * (24 // 16 + 1)


def test_json_and_stats_of_an_answer_that_is_cut() -> None:  # E14
    arguments = ("--json", "--stats", "--seed", "7", "--temperature", "1.5", "--max-tokens", "5", "Count to ten.")
    result = ask(*arguments)
    assert result.status == 0
    value = result.json
    assert value.keys() >= {"text", "reasoning", "finish_reason", "usage", "seed", "engine"}
    assert value["finish_reason"] == "length"
    assert value["reasoning"] is None
    assert value["model"] == "SmolLM2-135M-Instruct"
    assert value["seed"] == 7
    assert value["usage"] == {"prompt_tokens": 34, "cached_tokens": 0, "prefill_tokens": 34, "completion_tokens": 5}
    assert value["engine"].items() >= {"preemptions": 0, "swap_out": 0, "swap_in": 0, "cow": 0}.items()
    assert value["answers"][0]["text"] == value["text"]
    assert len(value["answers"][0]["token_ids"]) == 5
    assert result.err.count("\n") == 3
    assert re.search(r"^runs on native [\w-]+ · int4 weights · fp16 KV \(.* 4 bits already: nothing is lost\)$", result.err, re.MULTILINE)
    assert "prompt 34 tokens: 0 cached, 34 read" in result.err
    assert "answer 5 tokens" in result.err
    # The same seed gives the same text, as text too.
    text = ask(*arguments[2:])
    assert (text.status, text.err) == (0, "")
    assert text.out == value["text"].rstrip("\n") + "\n"


def test_greedy_answer_that_ends_by_itself() -> None:
    first, second = (ask("--json", "--temperature", "0", "What is the capital of France?").json for _ in range(2))
    assert "Paris" in first["text"]
    assert first["finish_reason"] == "stop"
    assert "<|im_end|>" not in first["text"]
    assert 2 not in first["answers"][0]["token_ids"]
    assert first["text"] == second["text"]
    # An unseeded request tells the seed that was drawn, so that it can be repeated.
    assert isinstance(first["seed"], int)


def test_stop_text() -> None:
    result = ask("--temperature", "0", "--stop", "Paris", "What is the capital of France?").out
    assert "Paris" not in result
    assert result.endswith("\n")


def test_several_answers_as_text() -> None:
    result = ask("-n", "2", "--seed", "1", "--max-tokens", "4", "hi")
    assert (result.status, result.err) == (0, "")
    assert re.fullmatch(r"--- 1 of 2 ---\n.+\n--- 2 of 2 ---\n.+\n", result.out, re.DOTALL)


def test_drawn_seed_repeats_the_answer() -> None:
    first = ask("--json", "--temperature", "1", "--max-tokens", "8", "Tell me something").json
    again = ask("--json", "--temperature", "1", "--max-tokens", "8", "--seed", str(first["seed"]), "Tell me something").json
    assert again["answers"] == first["answers"]


# --- ended from outside --------------------------------------------------------------------------------------------------


class SignallingStream(Stream):
    """Sends this process a signal once there is something to read, as an impatient reader would."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number: signal.Signals | None = number

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._number is not None and len(self.text()) > 12:
            number, self._number = self._number, None
            os.kill(os.getpid(), number)
        return count


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signal_keeps_the_partial_answer(number: signal.Signals, status: int) -> None:  # G5
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
    try:
        result = ask("--seed", "1", "--max-tokens", "300", "Write a long story.", out=SignallingStream(number))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (result.status, result.err) == (status, "")
    whole = ask("--seed", "1", "--max-tokens", "30", "Write a long story.").out
    assert 12 < len(result.out) < 300
    assert result.out.endswith("\n")
    assert whole.startswith(result.out[:12])


def test_interrupted_json_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(4))
    step = LLMEngine.step

    def interrupted(self: LLMEngine) -> list[RequestOutput]:
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    monkeypatch.setattr(LLMEngine, "step", interrupted)
    result = ask("--json", "-n", "2", "--seed", "1", "--temperature", "1", "hi")
    assert result.status == 143
    value = result.json
    assert value["finish_reason"] == "cancelled"
    assert [answer["finish_reason"] for answer in value["answers"]] == ["cancelled", "cancelled"]
    assert value["usage"]["completion_tokens"] == sum(answer["completion_tokens"] for answer in value["answers"]) > 0


class FullStream(Stream):
    """A disk that is full from the second write on."""

    num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        if self.num_writes > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_disk_that_fills_up_while_answering() -> None:
    result = ask("--max-tokens", "8", "hi", out=FullStream())
    assert result.status == 1
    assert result.err == "chatpaged: cannot write the output: No space left on device\n"


# --- copy on write, without a model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "copies"), [(31, 1), (32, 0), (33, 1), (16, 0), (1, 1)])
def test_only_a_partial_block_is_copied(length: int, copies: int) -> None:  # C13
    engine = LLMEngine(ScriptedExecutor([65, 66, 67]), byte_tokenizer())
    result = engine.generate(list(range(length)), SamplingParams(n=2, max_tokens=4))
    assert result.metrics.cow == copies
    assert [completion.text for completion in result.completions] == ["ABCA", "ABCA"]
    engine.check_invariants()
