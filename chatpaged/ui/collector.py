"""The garbage collector, made to keep out of the way of frames."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 3_000, 20, 500


def calm_collector() -> None:
    """Looks for garbage rarely, and never again among what is there now.

    A frame makes thousands of small objects that go away by themselves. With Python's own thresholds a third of the UI thread's time
    went into looking through them, and the look at everything stood in the way for 60 ms (200 ms with torch loaded). To be called once
    the window is there, and again when the engine is.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
