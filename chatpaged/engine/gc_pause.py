"""Imports without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switches cyclic garbage collection off for a while.

    Importing torch and transformers makes some hundred thousand objects that stay. The collector goes through them again and again
    and finds nothing, which takes about a quarter of the time of the imports (`benchmarks/startup.py`). Only for imports: while
    weights are loaded, what is garbage may be large.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # All that is there becomes old without being looked at; else the collector would begin with going through it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
