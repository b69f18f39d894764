"""Log-probabilities of tokens, as JSON tells them: OpenAI's form, and the token's id with it."""

from __future__ import annotations

from typing import Any

from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.token_bytes import token_bytes
from chatpaged.engine.tokenizer import Tokenizer


def token_report(report: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    """What is told about one token of an answer and what else was likely at its place."""
    top = [_named(token_id, logprob, tokenizer) for token_id, logprob in report.top]
    return {**_named(report.token_id, report.logprob, tokenizer), "top_logprobs": top}


def _named(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = token_bytes(token_id, tokenizer)
    return {"token": raw.decode("utf-8", errors="replace"), "token_id": token_id, "logprob": logprob, "bytes": list(raw)}
