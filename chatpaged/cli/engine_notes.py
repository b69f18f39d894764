"""What the engine warns of while a command runs, as notes of the command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from chatpaged.cli.terminal import Status


class _Warnings(logging.Handler):
    """Takes the first warning of each kind: what a disk refuses, it refuses for every block."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Takes it. Any thread may warn."""
        self.texts.setdefault(str(record.msg), " ".join(record.getMessage().split()))


@contextmanager
def engine_notes(status: Status) -> Iterator[None]:
    """Keeps warnings until the end, when they are in no answer's way."""
    logger, handler = logging.getLogger("chatpaged"), _Warnings()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for text in handler.texts.values():
            status.note(text)
