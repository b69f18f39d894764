"""Amounts as they are read at a glance."""

from __future__ import annotations

from collections.abc import Sequence


def memory_size(count: float) -> str:
    """Bytes of memory: `720 KiB`, `1.4 GiB`."""
    return scaled(count, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def disk_size(count: float) -> str:
    """Bytes on disk, in the units in which disks and downloads are measured: `98.4 MB`, `1.52 GB`."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def large_number(count: float) -> str:
    """A number with its unit: `950`, `135M`, `1.5B`."""
    return scaled(count, 1000, ("", "k", "M", "B", "T"))


def scaled(count: float, step: int, units: Sequence[str]) -> str:
    """A number in the unit that makes it short, with two digits at least where that is not the first.

    Args:
        count: how many of the first unit.
        step: how many of a unit make one of the next.
        units: what stands after the number, the smallest first.
    """
    value, place = float(count), 0
    while value >= step - 0.5 and place < len(units) - 1:
        value, place = value / step, place + 1
    return f"{value:.1f}{units[place]}" if place and value < 9.95 else f"{value:.0f}{units[place]}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things: `1 token`, `1,204 tokens`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
