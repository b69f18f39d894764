"""Numbers, titles and roles in little room."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells, set_cell_size

_ELLIPSIS = "…"
_EXACT = 10_000
_ROLES = {"user": "You", "assistant": "Model", "system": "System", "tool": "Tool"}


def short_count(count: float) -> str:
    """A number in at most six characters: `1,204`, `12.3k`, `4.5M`."""
    value, unit = float(count), ""
    if value < _EXACT:
        return f"{count:,.0f}"
    for unit in ("k", "M", "G", "T"):  # noqa: B007 - the last one stays
        value /= 1000
        if value < 999.95:
            break
    return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"


def short_speed(speed: float) -> str:
    """Tokens a second, without the unit: `0.4`, `14.2`, `128`, `12.3k`."""
    return f"{speed:.1f}" if speed < 99.95 else short_count(speed)


def share(part: float) -> str:
    """A share of a whole, 0 to 1; never 0 % where there is something."""
    return "<1%" if 0 < part < 0.005 else f"{100 * part:.0f}%"


def role_name(role: str) -> str:
    """Who says something, in one word where the role is a known one."""
    return _ROLES.get(role, role)


def one_line(text: str) -> str:
    """Text of users and models on one line: nothing in it moves the cursor or changes colours."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def fitted(text: str, width: int) -> str:
    """Text of exactly this many cells: cut with an ellipsis, or filled up with spaces."""
    if width < 1:
        return ""
    if cell_len(text) > width:
        text = (chop_cells(text, width - 1)[0] if width > 1 else "") + _ELLIPSIS
    return set_cell_size(text, width)
