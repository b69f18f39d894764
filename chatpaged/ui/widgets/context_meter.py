"""How full the context is, while it is being typed, and what of the conversation is not sent."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

AMBER, RED = 0.80, 0.95
_BAR = 10
_ROOM_FOR_BAR = 44
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class ContextMeter(Static):
    """`▇▇▇   1,234 / 8,192 (15 %)`: amber at 80 %, red at 95 %."""

    DEFAULT_CSS = """
    ContextMeter {
        width: auto;
        height: 1;
        color: $text-muted;
        &.-amber { color: $text-warning; }
        &.-red { color: $text-error; text-style: bold; }
    }
    """

    def __init__(self) -> None:
        super().__init__("")
        self._figures: tuple[int | None, int | None, int] = (None, None, 0)
        self._room = 0

    def show(self, used: int | None, limit: int | None, *, left_out: int = 0) -> None:
        """Shows figures.

        Args:
            used: tokens of the conversation and of what is typed; None is not known yet.
            limit: tokens that the model can take.
            left_out: how many of the oldest messages are not sent.
        """
        share = used / limit if used is not None and limit else 0.0
        self.set_class(AMBER <= share < RED, "-amber")
        self.set_class(share >= RED, "-red")
        self._figures = used, limit, left_out
        self._draw()
        outside = f"; {left_out} oldest messages are not sent any more" if left_out else ""
        self.tooltip = f"Tokens in the model's window, and how many it holds{outside}"

    def set_room(self, columns: int) -> None:
        """There may be room for the bar, or not."""
        self._room = columns
        self._draw()

    def _draw(self) -> None:
        self.update(Content(meter_text(*self._figures, bar=self._room >= _ROOM_FOR_BAR)))


def meter_text(used: int | None, limit: int | None, left_out: int = 0, *, bar: bool = True) -> str:
    """The figures as text; empty while nothing is known."""
    if used is None:
        return ""
    outside = f" · {left_out} oldest not sent" if left_out else ""
    if not limit:
        return f"{used:,} tokens{outside}"
    share = used / limit
    drawn = f"{_bar(min(1.0, share))} " if bar else ""
    return f"{drawn}{used:,} / {limit:,} ({share:.0%})".replace("%)", " %)") + outside


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR, "·")
