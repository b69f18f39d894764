"""Work that goes on beside what a widget does, and ends with the widget."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec

from textual.css.query import NoMatches
from textual.dom import DOMNode, NoScreen
from textual.widget import MountError
from textual.worker import WorkType

P = ParamSpec("P")


def beside(node: DOMNode, group: str, work: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Runs a coroutine as one of Textual's workers.

    The function is handed over, not the coroutine: one that never starts, as the widget is gone already, is then never made.
    Textual takes a widget out of the screen before it gives up the widget's workers: one that is awake in between ends by itself.

    Args:
        node: whose work it is.
        group: the kind of work.
        work: what to run.
        args: its arguments.
        kwargs: likewise.
    """
    called: WorkType[None] = partial(while_attached, node, partial(work, *args, **kwargs))
    node.run_worker(called, group=group, description=group)  # by itself it would spell out all arguments, such as whole texts


def instead(node: DOMNode, group: str, work: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """The same in place of what is still going on in the group, which is given up."""
    node.workers.cancel_group(node, group)
    beside(node, group, work, *args, **kwargs)


async def while_attached(node: DOMNode, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Works on a widget, and ends where the widget is found to have been taken out of the screen.

    Args:
        node: what is worked on.
        work: what to do.

    Raises:
        NoScreen: something else than the widget has no screen.
        MountError: something cannot be put into the widget though it is in the screen.
        NoMatches: likewise, something is not in it.
    """
    try:
        await work()
    except (NoScreen, MountError, NoMatches):
        if node.is_attached:
            raise
