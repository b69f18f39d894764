"""What a request asks of the draw of one token, put into plain numbers for the executor."""

from __future__ import annotations

from chatpaged.engine.scheduler_output import LogitChanges, SampleRow
from chatpaged.engine.sequence import Sequence


def sample_row(sequence: Sequence, index: int) -> SampleRow:
    """The draw of the next token for one of the samples; takes a number from its generator, unless it is greedy.

    Args:
        sequence: all of its tokens will have been computed.
        index: which of the request's samples.
    """
    params = sequence.group.params
    uniform = sequence.group.generators[index].random() if params.temperature > 0 else 0.0
    return SampleRow(
        index,
        sequence.num_output_tokens,
        params.temperature,
        max(0, params.top_k),
        params.top_p,
        uniform,
        params.min_p,
        params.logprobs,
        _logit_changes(sequence),
    )


def _logit_changes(sequence: Sequence) -> LogitChanges | None:
    """What the request asks to be done to the logits of a sequence's next token; None for most."""
    group = sequence.group
    params = group.params
    repetition = params.repetition_penalty != 1
    looks_back = repetition or params.presence_penalty != 0 or params.frequency_penalty != 0
    banned = group.end_token_ids if sequence.num_output_tokens < params.min_tokens else ()
    if not (looks_back or params.logit_bias or banned):
        return None
    return LogitChanges(
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        prompt_ids=group.prompt_token_ids if repetition else (),
        output_ids=tuple(sequence.token_ids[group.num_prompt_tokens :]) if looks_back else (),
        bias=tuple(params.logit_bias.items()),
        banned=banned,
    )
