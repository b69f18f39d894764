"""`bench` with a scripted model, in this process and in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatpaged import bench_machine, bench_peers
from chatpaged.bench_machine import LoadMeter, describe_machine, measure_ceilings, num_threads
from chatpaged.bench_workloads import w1, w3
from chatpaged.cli import bench as bench_command
from chatpaged.cli.terminal import Status, configure_streams
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.errors import ChatpagedError
from tests.cli.runner import REPOSITORY, Result, Stream, killed_when_stuck, run_inside
from tests.cli.scripted_model import DELAY, make_model, scripted_engine
from tests.test_bench_peers import FAKE

CEILINGS = {"device": "cpu", "threads": 1, "read_gb_per_second": 20.0, "float32_gflop_per_second": 60.0}


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLMEngine, "from_pretrained", scripted_engine)
    monkeypatch.setattr(bench_machine, "measure_ceilings", lambda *_: CEILINGS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "tiny")


def bench(model: Path, *arguments: object) -> Result:
    return run_inside("bench", "-m", str(model), *map(str, arguments))


def requests(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_without_arguments_all_three_are_run(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = bench(model, "--json", out, "--kv-blocks", 4000, "--repeat", 2, "--limit", 3)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:2] == ["model tiny", "runs on scripted"]
    assert lines[3] == "cpu: reads 20.0 GB/s, multiplies float32 matrices with 60.0 GFLOP/s"
    assert [line[:3] for line in lines if line[:3] in {"w1:", "w2:", "w3:"}] == ["w1:", "w2:", "w3:"]
    assert any(line.startswith("medians of 2 passes; ") for line in lines)
    assert "\x1b" not in result.out
    told = json.loads(out.read_text())
    assert sorted(told) == ["ceilings", "code", "machine", "model", "options", "peers", "workloads"]
    assert told["code"] == {"name": "scripted", "weights": "", "kv": "", "weight_bytes": 0, "reason": ""}
    assert (told["ceilings"], told["options"]["limit"], told["options"]["engine"]["kv_blocks"]) == (CEILINGS, 3, 4000)
    assert [(one["name"], one["chats"], one["replies"]) for one in told["workloads"]] == [("w1", 1, 1), ("w2", 3, 3), ("w3", 3, 9)]
    (engine,) = told["workloads"][2]["engines"]
    assert (engine["engine"], len(engine["passes"])) == ("chatpaged", 2)
    assert engine["passes"][0]["output_tokens"] == 9 * 64
    # Each pass begins with nothing cached: the second finds what the first has found.
    assert engine["passes"][0]["cached_tokens"] == engine["passes"][1]["cached_tokens"] > 2 * 1008


def test_a_file_of_ones_own(model: Path, tmp_path: Path) -> None:
    path = requests(
        tmp_path,
        {"prompt": "Why?", "max_tokens": 3},
        {"prompt": [1, 2, 700], "max_tokens": 4, "arrival": 0.01},
        {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5},
    )
    result = bench(model, path)
    assert result.status == 0, result
    assert f"mine.jsonl: 3 requests from {path}; 3 replies of 12 tokens" in result.out
    # A text is a question, as for `batch`: both have the same template around them.
    asked = len("_user\nWhy?_\n_assistant\n")
    assert f"of {2 * asked + 3} prompt tokens" in result.out


def test_mistakes_are_told_in_a_line(model: Path, tmp_path: Path) -> None:
    bench(model, "w4").failed(2, "no workload and no file 'w4'; workloads are w1, w2, w3")
    bad = requests(tmp_path, {"prompt": "a", "max_tokens": 1}, {"prompt": "a"})
    bench(model, bad).failed(2, f"{bad}, line 2: max_tokens")
    bench(model, tmp_path).failed(2, "cannot read")
    bench(model, "w1", "--json", tmp_path / "none" / "out.json").failed(2, "no directory for")
    bench(model, "w1", "--llama-python", "x").failed(2, "--llama-python needs --vs llama.cpp")
    bench(model, "w1", "--llama-model", "x").failed(2, "--llama-model needs --vs llama.cpp")
    bench(model, "w1", "--vs", "vllm").failed(2, "'vllm' is not one of 'transformers', 'llama.cpp'")
    bench(model, "w1", "--vs", "llama.cpp").failed(2, "--llama-model FILE.gguf")
    bench(model, "w1", "--repeat", 0).failed(2, "--repeat")
    bench(model, "w1", "w3", "--kv-blocks", 50).failed(4, "w3 has a chat of 1336 tokens")
    bench(tmp_path / "nowhere", "w1").failed(3)


def test_llama_cpp_without_its_package(model: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "x.gguf").touch()
    result = bench(model, "w1", "--vs", "llama.cpp", "--llama-model", tmp_path / "x.gguf", "--llama-python", python)
    result.failed(2, "--vs llama.cpp needs the package llama-cpp-python (pip install llama-cpp-python)")


def test_beside_others(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").touch()

    def start(name: str) -> bench_peers.Peer:
        return bench_peers.Peer(name, [sys.executable, "-c", FAKE])

    monkeypatch.setattr(bench_peers, "start_transformers", lambda *_: start("transformers"))
    monkeypatch.setattr(bench_peers, "start_llama_cpp", lambda *_: start("llama.cpp"))
    path = requests(tmp_path, *[{"prompt": "a", "max_tokens": 2}] * 2)
    peers = ("--vs", "transformers", "--vs", "llama.cpp", "--llama-model", tmp_path / "x.gguf")
    result = bench(model, path, *peers, "--repeat", 2, "--json", tmp_path / "out.json")
    assert (result.status, result.err) == (0, "")
    assert "beside llama.cpp: fake 1\nbeside transformers: fake 1\n" in result.out
    head = next(line for line in result.out.splitlines() if line.strip().startswith("chatpaged"))
    names = "chatpaged  llama.cpp  ratio  transformers one by one  ratio  transformers batches of 16  ratio"
    assert head.split() == names.split()
    assert "ratio: ours / theirs, the median over pairs of passes" in result.out
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["peers"] == {"llama.cpp": {"version": "fake 1"}, "transformers": {"version": "fake 1"}}
    engines = told["workloads"][0]["engines"]
    assert [len(engine["passes"]) for engine in engines] == [2] * 4
    assert engines[1]["median"]["seconds"] == 2
    assert engines[1]["ratio"]["output_tokens"] == 1
    # One that fails ends all.
    failed = bench(model, requests(tmp_path, {"prompt": "a", "max_tokens": 13}), "--vs", "transformers")
    assert (failed.status, failed.err) == (1, "chatpaged: transformers ended: ValueError: thirteen\n")


def test_ceilings_that_cannot_be_measured_are_done_without(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ChatpagedError("cannot be measured")

    monkeypatch.setattr(bench_machine, "measure_ceilings", fail)
    result = bench(model, requests(tmp_path, {"prompt": "a", "max_tokens": 2}))
    assert (result.status, result.err) == (0, "chatpaged: cannot be measured\n")
    assert "this machine's most" not in result.out


def test_an_interruption_ends_it_cleanly(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.cli.scripted_model", "bench", "-m", str(model), "w1", "w2", "--json", str(out)]
    environment = os.environ | {DELAY: "0.01", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, env=environment)
    with process, killed_when_stuck(process):
        assert process.stdout is not None
        while b"w1: " not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err.decode()) == (130, "")
    assert not out.exists()


def test_a_terminal_is_told_how_far_a_pass_is(monkeypatch: pytest.MonkeyPatch) -> None:
    err = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(bench_command, "_INTERVAL", 0.0)
    configure_streams()
    progress = bench_command._Progress(Status(), "w3, pass 1 of 2: chatpaged", w3())
    progress.update(1000)
    assert err.text().replace("?", "").split("\r\x1b[K")[1:] == [
        "w3, pass 1 of 2: chatpaged ",
        "w3, pass 1 of 2: chatpaged, 1,000 of 3,072 tokens ",
    ]


# --- the machine -----------------------------------------------------------------------------------------------------


def test_the_machine_is_described() -> None:
    machine = describe_machine(3)
    assert (machine["threads"], machine["chatpaged"]) == (3, "0.1.0")
    assert machine["processor"]
    assert machine["cpus"] >= 1
    assert num_threads(EngineConfig(threads=5)) == 5
    assert num_threads(EngineConfig()) >= 1


def test_load_of_others_is_a_share() -> None:
    meter = LoadMeter()
    sum(range(10**6))
    assert 0 <= meter.foreign_percent() <= 110


def test_why_ceilings_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: no torch\n")
    monkeypatch.setattr(bench_machine, "run_module", lambda *_: done)
    with pytest.raises(ChatpagedError, match="cannot be measured: ImportError: no torch"):
        measure_ceilings(1, "cpu")
    monkeypatch.setattr(bench_machine, "run_module", lambda *_: subprocess.CompletedProcess([], 0, json.dumps(CEILINGS), ""))
    assert measure_ceilings(1, "cpu") == CEILINGS


def test_workloads_are_what_is_run(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[int, ...]] = []
    add = LLMEngine.add_request

    def noted(engine: LLMEngine, prompt: Any, *arguments: Any, **named: Any) -> str:
        asked.append(tuple(prompt))
        return add(engine, prompt, *arguments, **named)

    monkeypatch.setattr(LLMEngine, "add_request", noted)
    assert bench(model, "w1", "w3", "w1", "--limit", 1).status == 0
    vocab = 258
    first = [w1().fitted(vocab).chats[0].turns[0], w3().fitted(vocab).system + w3().fitted(vocab).chats[0].turns[0]]
    assert len(asked) == 1 + 1 + 3  # the warm-up comes first, and w1 is run once
    assert [asked[1], asked[2]] == first
