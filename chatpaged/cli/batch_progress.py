"""How far a batch is: a bar on standard error while it runs, a line at its end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from chatpaged.batch_run import BatchCounts

_INTERVAL = 0.2  # seconds between two changes of the bar
_LONGEST = 2**26  # bytes of a line that are held at once


class BatchProgress:
    """A bar with rows, speed, prefix hits and the time that is left. Nothing where nobody looks."""

    def __init__(self, stream: BinaryIO | None, num_done: int, *, shown: bool) -> None:
        """Begins the bar.

        Args:
            stream: the input, if it is a file whose rows can be counted before they are read.
            num_done: rows that are there from an earlier run.
            shown: whether there is to be one at all.
        """
        self._started = self._last = time.monotonic()
        self._num_done = num_done
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread beside the engine
            total = count_rows(stream) if stream is not None else None
            self._bar = tqdm(total=total, initial=num_done, unit=" rows", file=sys.stderr, dynamic_ncols=True, leave=False, mininterval=0)

    def update(self, counts: BatchCounts) -> None:
        """Shows how far it is, if that was not done just now."""
        now = time.monotonic()
        if self._bar is None or now - self._last < _INTERVAL:
            return
        self._last = now
        speed = counts.generated / (now - self._started)
        self._bar.set_postfix_str(f"{speed:.0f} tokens/s, prefix hits {counts.hit_rate:.0%}, {counts.failed} failed", refresh=False)
        self._bar.update(self._num_done + counts.ok + counts.failed - self._bar.n)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()

    def summary(self, counts: BatchCounts) -> str:
        """One line for the end."""
        seconds = time.monotonic() - self._started
        return (
            f"{counts.completion_tokens} tokens in {seconds:.1f} s ({counts.completion_tokens / seconds:.1f} tokens/s); "
            f"prompts {counts.prompt_tokens} tokens, {counts.prefill_tokens} read, prefix hits {counts.hit_rate:.0%}"
        )


def count_rows(stream: BinaryIO) -> int:
    """Lines of a file that are not empty, of whatever has been read; the file is put back to where it was."""
    place = stream.tell()
    stream.seek(0)
    count = sum(bool(line.strip()) for line in iter(lambda: stream.readline(_LONGEST), b""))
    stream.seek(place)
    return count
