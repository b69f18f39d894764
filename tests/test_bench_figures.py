"""The figures of `bench`, from timelines that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatpaged.bench_replies import Figures, Reply, check_replies, middle, percentile, ratios, reply_figures, spread
from chatpaged.bench_report import OURS, Measured, columns, machine_lines
from chatpaged.bench_steps import ModelCost, StepTotals
from chatpaged.bench_workloads import w1
from chatpaged.engine.snapshot import StepTiming
from chatpaged.engine.weight_files import WeightFiles
from chatpaged.errors import ChatpagedError


def test_percentiles() -> None:
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile(list(range(101)), 0.95) == pytest.approx(95)
    assert percentile([0.0, 10.0], 0.25) == 2.5
    assert (percentile([5.0, 1.0], 0), percentile([5.0, 1.0], 1)) == (1.0, 5.0)


def test_figures_of_replies() -> None:
    replies = [Reply(0.0, [1.0, 1.1, 1.3]), Reply(0.5, [2.5, 4.5]), Reply(3.0, [4.0])]
    figures = reply_figures(replies)
    assert figures == pytest.approx(
        {
            "replies": 3,
            "output_tokens": 6,
            "seconds": 4.5,
            "tokens_per_second": 6 / 4.5,
            "first_token_ms_mean": 4000 / 3,
            "first_token_ms_p50": 1000,
            "first_token_ms_p95": 1900,
            "first_token_ms_p99": 1980,
            "gap_ms_p50": 200,
            "gap_ms_p95": 200 + 0.9 * 1800,
            "gap_ms_p99": 200 + 0.98 * 1800,
            "gap_ms_max": 2000,
            "decode_tokens_per_second": (2 / 0.3 + 0.5) / 2,
        }
    )


def test_replies_of_one_token_have_no_gaps() -> None:
    figures = reply_figures([Reply(0.0, [2.0])])
    assert (figures["gap_ms_p50"], figures["gap_ms_max"], figures["decode_tokens_per_second"]) == (None, None, None)
    assert figures["tokens_per_second"] == 0.5


def test_replies_that_are_cut_short_are_no_measurement() -> None:
    check_replies([Reply(0.0, [1.0, 2.0])], 1, 2, "it")
    with pytest.raises(ChatpagedError, match="it gave 1 answers of 2 tokens in all, not 1 of 3"):
        check_replies([Reply(0.0, [1.0, 2.0])], 1, 3, "it")


def test_passes_are_compared_in_pairs() -> None:
    ours: list[Figures] = [{"seconds": 1.0, "a": 2.0}, {"seconds": 4.0, "a": None}, {"seconds": 2.0, "a": 3.0}]
    theirs: list[Figures] = [{"seconds": 2.0, "a": 1.0}, {"seconds": 4.0, "a": 1.0}, {"seconds": 1.0, "a": 0.0}]
    assert ratios(ours, theirs) == {"seconds": 1.0, "a": 2.0}
    assert middle(ours) == {"seconds": 2.0, "a": 2.5}
    assert spread(ours) == 1.5
    assert spread(ours[:1]) is None


# --- steps ---------------------------------------------------------------------------------------------------------------


def step(forward: float, tokens: int, decode: int) -> StepTiming:
    return StepTiming(
        schedule=0.001,
        operations=0.0,
        prepare=0.002,
        forward=forward,
        sample=0.003,
        process=0.004,
        num_seqs=1,
        num_tokens=tokens,
        num_decode_tokens=decode,
    )


def test_figures_of_steps() -> None:
    totals = StepTotals()
    totals.add(step(0.5, 100, 1), sampled=2, kv_tokens=0)
    totals.add(step(0.1, 2, 2), sampled=2, kv_tokens=300)
    totals.add(step(0.3, 1, 1), sampled=1, kv_tokens=100)
    figures = totals.figures(ModelCost(body=10**6, head=10**5, weight_bytes=4_400_000, kv_bytes=1000))
    assert (figures["steps"], figures["decode_steps"]) == (3, 2)
    assert figures["step_ms"] == pytest.approx(310)
    assert figures["forward_ms"] == pytest.approx(300)
    assert figures["forward_percent"] == pytest.approx(100 * 0.9 / 0.93)
    assert figures["decode_gb_per_second"] == pytest.approx((2 * 1.1e6 * 4 + 400 * 1000) / 0.4 / 1e9)
    assert figures["prefill_gflop_per_second"] == pytest.approx(2 * (1e6 * 100 + 1e5 * 2) / 0.5 / 1e9)


def test_without_steps_there_is_nothing_to_tell() -> None:
    figures = StepTotals().figures(ModelCost(1, 1, 4, 4))
    assert (figures["decode_gb_per_second"], figures["prefill_gflop_per_second"], figures["forward_percent"]) == (None, None, None)
    assert StepTotals().figures(None)["steps"] == 0


def weights(**shapes: tuple[int, ...]) -> WeightFiles:
    total = sum(rows * (columns[0] if columns else 1) for rows, *columns in shapes.values())
    return WeightFiles((Path("m"),), total, 0, "BF16", b"", shapes)


def test_an_embedding_is_multiplied_with_only_where_it_is_the_head_too() -> None:
    tied = ModelCost.of(weights(embed=(100, 8), layer=(8, 8), norm=(8,)), {"vocab_size": 100}, weight_bytes=872 * 4, kv_bytes=0)
    assert (tied.body, tied.head, tied.bytes_read(0)) == (72, 800, 872 * 4)
    untied = ModelCost.of(
        weights(embed=(100, 8), head=(100, 8), layer=(8, 8)), {"text_config": {"vocab_size": 100}}, weight_bytes=864 * 2, kv_bytes=3
    )
    assert (untied.body, untied.head, untied.bytes_read(5)) == (64, 800, 864 * 2 + 15)


# --- the report ----------------------------------------------------------------------------------------------------------


def test_a_table_has_ratios_for_others_only() -> None:
    ours = reply_figures([Reply(0.0, [1.0, 2.0])]) | StepTotals().figures(None)
    ours |= dict.fromkeys(("prompt_tokens", "cached_tokens", "prefill_tokens", "peak_blocks", "preemptions"), 1.0)
    ours |= {"decode_gb_per_second": 5.0, "prefill_gflop_per_second": None, "foreign_load_percent": 12.0}
    measured = Measured(w1(), {OURS: [ours, ours], "other": [reply_figures([Reply(0.0, [2.0, 4.0])])] * 2})
    ceilings = {"device": "cpu", "read_gb_per_second": 20.0, "float32_gflop_per_second": 60.0}
    lines = measured.lines(ceilings, 64)
    assert lines[0].startswith("w1: one stream")
    assert "output tokens/s                  1.00     0.50   2.00" in lines
    assert "other programs used up to 12 % of the CPUs meanwhile" in lines
    assert "at most 1 of 64 blocks in use; 1 preemption" in lines
    assert "decode steps read 5.0 GB/s of weights, keys and values; this machine's most is 20.0 (25%)" in lines
    assert not any("prefill steps" in line for line in lines)
    assert "decode steps read 5.0 GB/s of weights, keys and values" in measured.lines(None, 64)
    plain = measured.plain()
    assert [engine["engine"] for engine in plain["engines"]] == [OURS, "other"]
    assert (plain["engines"][0]["ratio"], plain["engines"][1]["ratio"]["seconds"]) == (None, 0.5)
    assert len(plain["engines"][1]["passes"]) == 2


def test_columns_are_aligned() -> None:
    assert columns([["", "a", "bcd"], ["name", "12", ""]]) == ["       a  bcd", "name  12"]


def test_the_machine_in_a_few_words() -> None:
    machine = {"processor": "P", "cpus": 2, "threads": 1, "chatpaged": "0.1.0", "commit": None, "python": "3.11"}
    assert machine_lines(machine, None) == ["P, 2 CPUs, 1 thread; chatpaged 0.1.0, python 3.11"]
