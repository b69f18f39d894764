"""Answers of a session from an engine that is stepped by whoever reads them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from chatpaged.engine.outputs import RequestOutput
from chatpaged.errors import StoreError
from chatpaged.session_reply import Reply

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine


def stream_reply(llm: LLMEngine, reply: Reply) -> Generator[RequestOutput, None, None]:
    """Steps the engine until the answers are there; see `ChatSession.stream`."""
    try:
        while llm.scheduler.group(reply.request_id) is not None:
            outputs = [llm.abort(reply.request_id)] if reply.stopping else llm.step()
            for output in outputs:
                if output is not None and output.request_id == reply.request_id:
                    yield from _given(reply, output)
    finally:
        reply.last = llm.abort(reply.request_id)
        if reply.last is not None:
            reply.take(reply.last)
        reply.end()


def _given(reply: Reply, output: RequestOutput) -> Generator[RequestOutput, None, None]:
    """Keeps an output and gives it; what went wrong is told after it."""
    failure: Exception | None = output.error
    try:
        reply.take(output)
    except StoreError as error:
        failure = failure or error
    yield output
    if failure is not None:
        raise failure
