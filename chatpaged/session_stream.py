"""Answers of a session from an engine that is stepped by whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import RequestOutput
from chatpaged.errors import StoreError
from chatpaged.session_reply import Reply


def stream_reply(llm: LLMEngine, reply: Reply) -> Generator[RequestOutput, None, None]:
    """Steps the engine until the answers are there; see `ChatSession.stream`."""

    def token_ids(index: int) -> Sequence[int]:
        group = llm.scheduler.group(reply.request_id)
        sequences = [sequence for sequence in group.sequences if sequence.index == index] if group is not None else []
        return sequences[0].token_ids[sequences[0].group.num_prompt_tokens :] if sequences else ()

    try:
        while llm.scheduler.group(reply.request_id) is not None:
            outputs = [llm.abort(reply.request_id)] if reply.stopping else llm.step()
            for output in outputs:
                if output is not None and output.request_id == reply.request_id:
                    yield from _given(reply, output, token_ids)
    finally:
        reply.last = llm.abort(reply.request_id)
        if reply.last is not None:
            reply.take(reply.last)
        reply.end()


def _given(reply: Reply, output: RequestOutput, token_ids: Callable[[int], Sequence[int]]) -> Generator[RequestOutput, None, None]:
    """Keeps an output and gives it; what went wrong is told after it."""
    failure: Exception | None = output.error
    try:
        reply.take(output, token_ids)
    except StoreError as error:
        failure = failure or error
    yield output
    if failure is not None:
        raise failure
