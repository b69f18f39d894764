"""Amounts as they are read at a glance."""

from __future__ import annotations


def memory_size(count: float) -> str:
    """Bytes of memory: `720 KiB`, `1.4 GiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"


def disk_size(count: int) -> str:
    """Bytes on disk, in the units in which disks and downloads are measured: `98.4 MB`, `1.52 GB`."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def large_number(count: float) -> str:
    """A number with its unit: `950`, `135M`, `1.5B`."""
    value, unit = float(count), ""
    for larger in ("k", "M", "B", "T"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things: `1 token`, `1,204 tokens`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
