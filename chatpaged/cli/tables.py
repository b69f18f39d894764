"""Lists as text and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from chatpaged.cli.terminal import printable


def write(text: str) -> None:
    """Writes a line; nothing in it moves a terminal's cursor."""
    click.echo(printable(text) if sys.stdout.isatty() else text)


def write_json(value: object) -> None:
    """Writes a value as one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes rows in columns that are as wide as they have to be."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def iso_time(seconds: float | None) -> str | None:
    """A time as JSON tells it."""
    from datetime import UTC, datetime

    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def time_ago(seconds: float | None) -> str:
    """How long ago a time was: `3 days ago`; `never` if there is none."""
    import time

    if seconds is None:
        return "never"
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if passed >= 2 * length:
            return f"{passed / length:.0f} {unit} ago"
    return "just now"
