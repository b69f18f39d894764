"""What all benchmark scripts print: the machine, a table, JSON."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, threads, versions and commit: what a figure is worth nothing without."""
    import torch

    root = Path(__file__).parent.parent
    commit = subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "commit": commit.stdout.strip() or "unknown",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def show(rows: Sequence[dict[str, Any]], words: Sequence[str] = ()) -> None:
    """Prints a table with the keys of the first row as its head: numbers to the right; words, and the first column, to the left."""
    if not rows:
        return
    names = list(rows[0])
    cells = [names, *[[_cell(row.get(name)) for name in names] for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    left = [name in words or not column for column, name in enumerate(names)]
    for line in cells:
        padded = (cell.ljust(width) if to_left else cell.rjust(width) for cell, width, to_left in zip(line, widths, left, strict=True))
        print("  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Writes the JSON file, if one is wanted."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n", encoding="utf-8")
