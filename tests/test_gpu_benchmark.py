"""`python -m benchmarks.gpu` without a GPU: its parts in their processes, and the same measurements with tiny shapes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as script
from benchmarks.gpu import card, kernels, many, models, speed
from benchmarks.gpu.families import Family, judge_family
from benchmarks.gpu.graphs import Replay, difference, replay
from benchmarks.gpu.paged_step import LAYER, PADDING, PagedStep, Shape
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.rows import Report, Row, Settings
from benchmarks.gpu.side_by_side import Outcome, outcomes
from benchmarks.gpu.tiny_models import Answer
from benchmarks.random_model import write_model
from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.weight_files import inspect_weights


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models are written."""
    return tmp_path_factory.mktemp("models")


def smoke(directory: Path, seconds: float = 600) -> Settings:
    return Settings(smoke=True, directory=directory, deadline=time.monotonic() + seconds)


def rows_of(part: Callable[[Report], None], settings: Settings) -> dict[str, Row]:
    """What a part finds out, in this process."""
    rows: list[Row] = []
    part(Report("part", settings, rows.append))
    return {row.what: row for row in rows}


# --- parts and their processes -----------------------------------------------------------------------------------------


def fake(name: str, share: float = 1) -> Part:
    return Part(name=name, share=share, function=f"tests.gpu_benchmark_parts:{name}", about=f"a part that {name}")


def test_parts_survive_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(script, "PARTS", (fake("sleeps", 0.2), fake("breaks"), fake("dies"), fake("fine")))
    begin = time.monotonic()
    path = tmp_path / "rows.json"
    assert script.main(["--smoke", "--budget", "20", "--json", str(path), "--directory", str(tmp_path / "models")]) == 1
    assert time.monotonic() - begin < 30
    table = capsys.readouterr().out
    assert "sleeps  the rest" in table
    assert "left out: no time: ended after 1 s" in table
    assert "FAILED: ValueError: half way through" in table
    assert "FAILED: its process ended with -6: segmentation fault, say" in table
    assert "at most 2" in table
    assert "NOT MET" in table
    assert "12,345.6  tokens/s  at least 1000  met; as it should be" in table
    assert "one of many" not in table
    assert "3 rows failed or not met: a smoke test, no figure means anything" in table
    saved = json.loads(path.read_text())
    assert saved["smoke"]
    assert [row["left_out"] for row in saved["rows"] if row["what"] == "what comes last"] == ["no time"]
    assert [row["met"] for row in saved["rows"] if row["what"] == "one of many"] == [True]


def test_a_part_without_time_is_told(tmp_path: Path) -> None:
    kept: list[Any] = []
    rows = script.run_parts([fake("fine")], 0.5, tmp_path, smoke=True, keep=kept.extend)
    assert [row.left_out for row in rows] == [row.left_out for row in kept] == ["no time"]


def test_what_cannot_be_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--parts", "kernels,speeds"]) == 2
    assert capsys.readouterr().err.startswith("benchmarks.gpu: no part speeds; there are models, kernels,")
    for arguments, problem in (
        (["--budget", "nan"], "--budget is a number of seconds above 0, not nan"),
        (["--budget", "-1"], "--budget is a number of seconds above 0, not -1.0"),
        (["--json", str(tmp_path)], f"--json: {tmp_path} is a directory; name a file"),
    ):
        with pytest.raises(SystemExit, match="2"):
            script.main(["--smoke", *arguments])
        assert capsys.readouterr().err.endswith(f"error: {problem}\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no NVIDIA GPU here; --smoke runs the same code on a CPU"):
        card.main()


def test_every_part_can_be_loaded() -> None:
    assert all(callable(part.load()) for part in PARTS)


def test_a_number_that_is_none_keeps_to_no_bound() -> None:
    assert Row(part="a", what="b", value=math.nan, most=1).met is False
    assert Row(part="a", what="b", value=math.nan, least=1).is_bad
    assert Row(part="a", what="b", value=1.0, least=1).met is True
    assert Row(part="a", what="b", left_out="no time", least=1).met is None


def _half(unit: int) -> float:
    return 1 / (unit - 2)


def test_units_survive_each_other(directory: Path) -> None:
    assert list(outcomes(smoke(directory), _half, [1, 2, 3])) == [
        Outcome(1, -1.0),
        Outcome(2, error="ZeroDivisionError: division by zero"),
        Outcome(3, 1.0),
    ]
    assert list(outcomes(smoke(directory, -1), _half, [1])) == [Outcome(1)]
    others = replace(smoke(directory), smoke=False)
    assert sorted(outcomes(others, abs, [-1, -2]), key=lambda outcome: outcome.unit) == [Outcome(-2, 2), Outcome(-1, 1)]


# --- what they compare ---------------------------------------------------------------------------------------------------


class Attended(PagedStep):
    """Attention and KV writes as they have to be, by another way than kernels, and with mistakes."""

    def run(self, *, wrong_slot: bool = False, value: float | None = None) -> tuple[float, int]:
        """The error of attention and the wrong numbers in the pool."""
        out = self.expected().to(self.query.dtype)
        used = self.rows.slots >= 0
        slots = self.rows.slots[used] + (1 if wrong_slot else 0)
        size = self.kv_cache.layout.block_size
        for which, numbers in enumerate((self.key, self.value)):
            self.kv_cache.pool[slots // size, LAYER, which, slots % size, :, : numbers.shape[2]] = numbers[used]
        if value is not None:
            out[0, 0, 0] = value
        self.attend = lambda: out  # type: ignore[method-assign]
        return self.attention_error(), self.wrong_slots()


def test_mistakes_of_kernels_are_seen() -> None:
    def step() -> Attended:
        shape = Shape(kv_heads=2, groups=2, key_dim=16, value_dim=8, window=9, softcap=5.0, sinks=True)
        return Attended(shape, ((1, 40), (5, 3), (2, PADDING), (0, PADDING), (7, 0)), torch.float32, torch.device("cpu"))

    error, wrong = step().run()
    assert error < 1e-6
    assert wrong == 0
    assert step().run(wrong_slot=True)[1] > 0
    assert step().run(value=7.0)[0] > 0.5
    assert math.isnan(step().run(value=math.nan)[0])
    assert kernels.Found("a", math.nan).badness == math.inf
    assert len(kernels.shapes()) * len(kernels.BATCHES) >= 40


def answer(*places: dict[int, float]) -> Answer:
    """An answer whose tokens are the first of each place."""
    return Answer((5,), tuple(TokenLogprobs(next(iter(place)), next(iter(place.values())), tuple(place.items())) for place in places))


def test_answers_are_compared_up_to_where_they_part() -> None:
    one = answer({3: -0.5, 4: -0.6}, {7: -1.0, 8: -1.1})
    assert difference(one, one) == 0
    assert difference(one, answer({3: -0.5, 4: -0.7}, {7: -1.0, 8: -1.1})) == pytest.approx(0.1)
    # Tokens that were as good as equal: what follows has nothing in common.
    assert difference(one, answer({4: -0.5, 3: -0.6}, {9: -9.0, 8: -9.1})) == pytest.approx(0.1)
    assert difference(one, answer({9: -0.5, 3: -0.6}, {7: -1.0, 8: -1.1})) == math.inf
    assert difference(one, answer({3: math.nan, 4: -0.6}, {7: -1.0, 8: -1.1})) == math.inf


def test_engines_are_judged_by_transformers_and_by_each_other(directory: Path) -> None:
    judged = judge_family(Family("gpt_oss", "float32", "cpu", directory))
    assert judged.error < 1e-4
    assert judged.error <= judged.most("float32")
    assert judge_family(Family("gpt_oss", "float32", "cpu", directory, "flash")).refusal.startswith("--attention flash cannot be had")
    replayed = replay(Replay("gpt_oss", "float32", "cpu", directory, batches=2))
    assert replayed.difference == 0
    assert (replayed.steps, replayed.parted) == (0, 0)
    assert replayed.answers > 2


# --- speed ---------------------------------------------------------------------------------------------------------------


def test_models_are_as_large_as_there_is_time_for(tmp_path: Path) -> None:
    config: dict[str, Any] = models.shape("llama3", smoke=True) | {"num_hidden_layers": 5}
    assert write_model(tmp_path, config, seconds=0)["num_hidden_layers"] == 2
    assert "lm_head.weight" in inspect_weights(tmp_path).shapes
    assert models.about(tmp_path, "llama3") == "tiny llama"
    (tmp_path / "config.json").write_text(json.dumps(models.LLAMA3 | {"num_hidden_layers": 20}))
    assert models.about(tmp_path, "llama3") == "Llama-3-8B with 20 of 32 layers"


def test_speed_with_tiny_shapes(directory: Path) -> None:
    rows = rows_of(speed.run_qwen3, smoke(directory))
    assert not [row for row in rows.values() if row.error]
    for what in (
        "tiny qwen3, graphs: 3 at once",
        "tiny qwen3, eager: 1 at once",
        "tiny qwen3: whole decode step, 3 x 32",
        "tiny qwen3: decode of one request, graphs by eager",
        "tiny qwen3, transformers' generate one by one",
        "tiny qwen3, transformers' continuous batching: 3 at once",
    ):
        value = rows[what].value
        assert value is not None
        assert value > 0
    assert rows["tiny qwen3: whole decode step, 3 x 32"].unit == "% of copies"


def test_many_requests_with_tiny_shapes(directory: Path) -> None:
    rows = rows_of(many.run, smoke(directory))
    assert not [row for row in rows.values() if row.error]
    assert rows["tiny qwen3, 6 requests: most at the same time"].value == 6
    assert rows["tiny qwen3, 6 requests: preemptions"].value == 0
    assert 50 < (rows["tiny qwen3, 6 requests: slots of blocks in use that hold tokens"].value or 0) <= 100
    assert (rows["tiny qwen3, 6 requests: by transformers' generate one by one"].value or 0) > 0


def test_what_there_is_no_time_for_is_told(directory: Path) -> None:
    rows = rows_of(speed.run_qwen3, smoke(directory, -1))
    assert rows["tiny qwen3, graphs"].left_out == "no time"
    assert rows["tiny qwen3: decode of one request, graphs by eager"].left_out == "one of the two is missing"
