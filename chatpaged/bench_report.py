"""What `bench` tells of its measurements: tables for people, one value for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatpaged.amounts import counted
from chatpaged.bench_replies import Figures, middle, ratios, spread
from chatpaged.bench_steps import PARTS
from chatpaged.bench_workloads import Workload

OURS = "chatpaged"
# Figures that all engines have: name, what it is called, digits after the point.
_ROWS = (
    ("tokens_per_second", "output tokens/s", 2),
    ("decode_tokens_per_second", "decode tokens/s of a reply", 2),
    ("first_token_ms_mean", "first token ms, mean", 0),
    ("first_token_ms_p50", "first token ms, p50", 0),
    ("first_token_ms_p95", "first token ms, p95", 0),
    ("first_token_ms_p99", "first token ms, p99", 0),
    ("gap_ms_p50", "gap between tokens ms, p50", 1),
    ("gap_ms_p95", "gap between tokens ms, p95", 1),
    ("gap_ms_p99", "gap between tokens ms, p99", 1),
    ("gap_ms_max", "gap between tokens ms, max", 1),
    ("seconds", "seconds in all", 2),
)


@dataclass(slots=True)
class Measured:
    """One workload.

    Attributes:
        workload: what was run.
        passes: the figures of each pass, for each engine by its name; ours first.
    """

    workload: Workload
    passes: dict[str, list[Figures]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        ours = self.passes[OURS]
        workload = self.workload
        return {
            "name": workload.name,
            "about": workload.about,
            "chats": len(workload.chats),
            "replies": workload.num_replies,
            "new_tokens": workload.num_new_tokens,
            "engines": [
                {
                    "engine": name,
                    "median": middle(passes),
                    "ratio": ratios(ours, passes) if name != OURS else None,
                    "spread": spread(passes),
                    "passes": passes,
                }
                for name, passes in self.passes.items()
            ],
        }

    def lines(self, ceilings: dict[str, Any] | None, num_blocks: int) -> list[str]:
        """As people read it."""
        ours = middle(self.passes[OURS])
        workload = self.workload
        replies = f"{counted(workload.num_replies, 'reply', 'replies')} of {counted(workload.num_new_tokens, 'token')}"
        head = f"{workload.name}: {workload.about}; {replies}"
        return [head, "", *self._figures(), "", *_steps(ours), "", *_memory(ours, num_blocks), *_use(ours, ceilings)]

    def _figures(self) -> list[str]:
        ours = self.passes[OURS]
        others = [name for name in self.passes if name != OURS]
        table = [["", OURS, *(cell for name in others for cell in (name, "ratio"))]]
        middles = {name: middle(passes) for name, passes in self.passes.items()}
        shares = {name: ratios(ours, self.passes[name]) for name in others}
        for key, title, digits in _ROWS:
            row = [title, _number(middles[OURS][key], digits)]
            for name in others:
                row += [_number(middles[name][key], digits), _number(shares[name][key], 2)]
            table.append(row)
        lines = columns(table)
        if others:
            lines.append("ratio: ours / theirs, the median over pairs of passes")
        return lines + self._trust()

    def _trust(self) -> list[str]:
        """What tells how far the figures can be trusted."""
        lines = []
        count = len(self.passes[OURS])
        if count > 1:
            spreads = ", ".join(f"{name} {spread(passes) or 0.0:.0%}" for name, passes in self.passes.items())
            lines.append(f"medians of {count} passes; (longest - shortest) / median: {spreads}")
        foreign = max((one.get("foreign_load_percent") or 0.0 for passes in self.passes.values() for one in passes), default=0.0)
        lines.append(f"other programs used up to {foreign:.0f} % of the CPUs meanwhile")
        return lines


def _steps(ours: Figures) -> list[str]:
    values = [_number(ours[f"{part}_ms"], 2) for part in PARTS]
    shares = [_number(ours[f"{part}_percent"], 1) for part in PARTS]
    return columns([["a step", *PARTS, "in all"], ["ms", *values, _number(ours["step_ms"], 2)], ["%", *shares, ""]])


def _memory(ours: Figures, num_blocks: int) -> list[str]:
    names = ("steps", "decode_steps", "prompt_tokens", "cached_tokens", "prefill_tokens", "peak_blocks")
    steps, decode, prompt, cached, prefill, peak = (_number(ours[name], 0) for name in names)
    return [
        f"{steps} steps, {decode} of them decode only; of {prompt} prompt tokens {cached} were cached and {prefill} computed",
        f"at most {peak} of {num_blocks:,} blocks in use; {counted(int(ours['preemptions'] or 0), 'preemption')}",
    ]


def _use(ours: Figures, ceilings: dict[str, Any] | None) -> list[str]:
    lines = []
    for name, ceiling, what, most in (
        ("decode_gb_per_second", "read_gb_per_second", "decode steps read {} GB/s of weights, keys and values", ""),
        ("prefill_gflop_per_second", "float32_gflop_per_second", "prefill steps compute {} GFLOP/s", " in float32"),
    ):
        value = ours[name]
        if value is None:
            continue
        line = what.format(_number(value, 1))
        if ceilings is not None:
            line += f"; this machine's most{most} is {ceilings[ceiling]:.1f} ({value / ceilings[ceiling]:.0%})"
        lines.append(line)
    return lines


def machine_lines(machine: dict[str, Any], ceilings: dict[str, Any] | None) -> list[str]:
    """The machine in a few words."""
    names = ("chatpaged", "commit", "python", "torch", "transformers")
    versions = ", ".join(f"{name} {machine[name]}" for name in names if machine.get(name))
    lines = [f"{machine['processor']}, {counted(machine['cpus'], 'CPU')}, {counted(machine['threads'], 'thread')}; {versions}"]
    if ceilings is not None:
        read, compute = ceilings["read_gb_per_second"], ceilings["float32_gflop_per_second"]
        lines.append(f"{ceilings['device']}: reads {read:.1f} GB/s, multiplies float32 matrices with {compute:.1f} GFLOP/s")
    return lines


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [_line(row, widths).rstrip() for row in table]


def _line(row: Sequence[str], widths: Iterable[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
