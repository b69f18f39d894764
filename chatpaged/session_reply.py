"""Answers while they grow: kept in the conversation and, at most a moment behind, in the store.

Knows nothing of how the engine is driven: whoever does so hands over its outputs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from chatpaged.conversation import Conversation, Node, NodeState
from chatpaged.engine.outputs import Completion, Delta, FinishReason, RequestMetrics, RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import StoreError
from chatpaged.history import Reason, Turn
from chatpaged.messages import ChatMessage
from chatpaged.session_draft import Draft
from chatpaged.session_model import SessionModel
from chatpaged.session_store import SessionStore

SAVE_SECONDS = 0.5
"""How far the store may be behind."""
_NOT_KEPT = ("n", "logprobs")


@dataclass(frozen=True, slots=True)
class Reread:
    """Tokens that had been read before and had to be read again.

    Attributes:
        reason: why.
        tokens: how many.
    """

    reason: str
    tokens: int

    def __str__(self) -> str:
        return f"{self.reason}: re-read {self.tokens} token{'' if self.tokens == 1 else 's'}"


@dataclass(slots=True)
class _Sample:
    """One answer so far."""

    node: Node | None = None
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    done: bool = False
    stored: bool = False
    saved_at: float = 0.0


@dataclass(slots=True)
class Reply:
    """The answers to one draft.

    Attributes:
        draft: what was sent.
        params: how the answers are drawn.
        seed: of the first answer.
        request_id: the engine's name for it.
        completions: answers that have ended, as the engine gave them.
        metrics: what the engine did, once all have ended.
        rereads: what had to be read again, and why; known at the end.
        stopping: somebody wants it to end.
        last: what came when the answers were cut off by an interruption, which nobody could be given any more.
    """

    draft: Draft
    params: SamplingParams
    seed: int
    request_id: str
    conversation: Conversation
    model: SessionModel
    store: SessionStore | None
    block_size: int
    completions: list[Completion] = field(default_factory=list)
    metrics: RequestMetrics | None = None
    rereads: tuple[Reread, ...] = ()
    stopping: bool = False
    last: RequestOutput | None = None
    turns: dict[str, Turn] = field(default_factory=dict)
    """The sequences of the answers, by the ids of these."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """What the template was given besides the messages."""
    _samples: dict[int, _Sample] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The answers as messages, in the order of samples."""
        nodes = (self._samples[index].node for index in sorted(self._samples))
        return tuple(node for node in nodes if node is not None)

    def node_of(self, index: int) -> Node | None:
        """The message of one sample; None until something of it is there."""
        sample = self._samples.get(index)
        return sample.node if sample is not None else None

    def current(self, index: int) -> Node | None:
        """The message of one sample with all there is of it, also what is not kept yet."""
        sample = self._samples.get(index)
        if sample is None or sample.node is None or sample.done:
            return sample.node if sample is not None else None
        return self._partial(sample.node, sample)

    def written(self, index: int) -> tuple[str, str, int]:
        """Text, reasoning and number of tokens that one sample has gained so far; costs the same however long it is."""
        sample = self._samples.get(index)
        return (sample.text, sample.reasoning, len(sample.token_ids)) if sample is not None else ("", "", 0)

    def stop(self) -> None:
        """Ends the answers; what there is of them is kept."""
        self.stopping = True

    def take(self, output: RequestOutput) -> None:
        """Takes in news.

        Raises:
            StoreError: a finished answer could not be kept. It is in the conversation all the same.
        """
        if output.metrics is not None:
            self.metrics = output.metrics
            self.rereads = rereads(self.draft, output.metrics.cached_tokens, self.block_size)
        for delta in output.deltas:
            self._take(delta)
        if output.finished:
            self._tell_metrics()

    def end(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Keeps what there is, where the engine will say nothing more. What cannot be kept has been told before."""
        for index, sample in self._samples.items():
            if not sample.done and sample.token_ids:
                sample.done = True
                node = self._partial(self._node(sample, index), sample)
                with suppress(StoreError):
                    self._save(sample, replace(node, finish_reason=reason.value))

    # --- one sample -----------------------------------------------------------------------------------------------------

    def _take(self, delta: Delta) -> None:
        sample = self._samples.setdefault(delta.index, _Sample())
        sample.text += delta.text
        sample.reasoning += delta.reasoning
        sample.token_ids += delta.token_ids
        if delta.completion is not None:
            self._complete(sample, delta.completion)
        elif sample.token_ids and time.monotonic() - sample.saved_at >= SAVE_SECONDS:
            node = self._node(sample, delta.index)
            try:
                self._save(sample, self._partial(node, sample))
            except StoreError:
                sample.saved_at = time.monotonic()  # the whole answer will be tried once more, and that will be told

    def _node(self, sample: _Sample, index: int) -> Node:
        """The message of a sample, made when its first token comes."""
        if sample.node is None and self.draft.continued is not None and index == 0:
            sample.node, sample.stored = self.draft.continued, True
        elif sample.node is None:
            sample.node = self.conversation.add_assistant(parent=self.draft.question.id, look_at=index == 0)
            sampling = {**asdict(self.params), "seed": self.seed + index}
            # As they come back from the store.
            sampling |= {name: list(sampling[name]) for name in ("stop", "stop_token_ids")}
            sampling["logit_bias"] = {str(token_id): bias for token_id, bias in self.params.logit_bias.items()}
            sample.node = replace(
                sample.node,
                sampling={name: value for name, value in sampling.items() if name not in _NOT_KEPT},
                model=self.model.name,
                fingerprint=self.model.fingerprint,
            )
            self.conversation.update(sample.node)
        return sample.node

    def _partial(self, node: Node, sample: _Sample) -> Node:
        message = self._message(sample.token_ids, sample.text, sample.reasoning)
        # The last character may want more tokens.
        return replace(_filled(node, message), content=message.content.rstrip("\ufffd"), state=NodeState.INTERRUPTED)

    def _complete(self, sample: _Sample, completion: Completion) -> None:
        self.completions.append(completion)
        if not completion.num_tokens and self.draft.continued is None:
            return  # ended before it began: there is no answer
        node = self._node(sample, completion.index)
        message = self._message(completion.token_ids, completion.text, completion.reasoning or "")
        cut = completion.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR)
        before = node.usage.get("completion_tokens", 0) if self.draft.continued is not None else 0
        usage = {"completion_tokens": completion.num_tokens + (before if isinstance(before, int) else 0)}
        node = replace(
            _filled(node, message),
            finish_reason=completion.finish_reason.value,
            state=NodeState.INTERRUPTED if cut else NodeState.COMPLETE,
            usage=usage,
        )
        self.turns[node.id] = self._turn(completion.token_ids, message)
        self._save(sample, node)
        sample.done = True

    def _message(self, token_ids: Sequence[int], text: str, reasoning: str) -> ChatMessage:
        """The whole answer, from the ids that came and those that the prompt ended with."""
        template = self.model.template
        if template is None:
            return ChatMessage("assistant", text, tuple(token_ids), reasoning)
        opening = self.draft.opening
        if opening is None:
            return template.reply(self.draft.prompt, token_ids)
        return template.reply(opening, (*self.draft.prompt.prefill_ids, *token_ids))

    def _turn(self, token_ids: Sequence[int], message: ChatMessage) -> Turn:
        source = self.model.template.source if self.model.template is not None else ""
        return Turn(self.draft.messages, self.draft.prompt, tuple(token_ids), message, source, self.arguments)

    def _tell_metrics(self) -> None:
        """What the engine did is known when the last sample has ended."""
        if self.metrics is None:
            return
        figures = {name: value for name, value in asdict(self.metrics).items() if name != "completion_tokens"}
        told = figures | {"rereads": [asdict(entry) for entry in self.rereads], "left_out": self.draft.left_out}
        for index, sample in self._samples.items():
            if sample.node is not None:
                own = {"tokens_per_second": self._speed(index, self.metrics.tokens_per_second)}
                self._save(sample, replace(sample.node, usage={**told, **own, **sample.node.usage}))

    def _speed(self, index: int, all_samples: float | None) -> float | None:
        """One sample's share of the tokens a second of all; as there, first tokens do not count."""
        later = {done.index: max(done.num_tokens - 1, 0) for done in self.completions}
        if all_samples is None or not later.get(index):
            return None
        return all_samples * (later[index] / sum(later.values()))

    def _save(self, sample: _Sample, node: Node) -> None:
        sample.node = self.conversation.update(node)
        if self.store is not None and sample.stored:
            self.store.update_message(node)
        elif self.store is not None:
            self.store.add_message(self.conversation, node)
            sample.stored = True
        sample.saved_at = time.monotonic()


def _filled(node: Node, message: ChatMessage) -> Node:
    return replace(
        node,
        content=message.content,
        reasoning=message.reasoning,
        token_ids=message.token_ids,
        reasoning_ids=message.reasoning_ids,
        imported=False,
    )


def rereads(draft: Draft, cached_tokens: int, block_size: int) -> tuple[Reread, ...]:
    """What had been read before and was read again, and why.

    Args:
        draft: what was sent.
        cached_tokens: how many tokens of the prompt were found in the KV pool.
        block_size: only whole blocks are found there.
    """
    if draft.previous is None or draft.model_changed:
        if cached_tokens >= draft.history_tokens - draft.history_tokens % block_size:
            return ()
        reason = Reason.MODEL_CHANGED if draft.model_changed else Reason.ENGINE_STARTED
        return (Reread(reason.value, draft.history_tokens - cached_tokens),)
    found: list[Reread] = []
    # The last token of a sequence is never computed.
    computed = min(draft.kept, len(draft.previous.token_ids) - 1, len(draft.prompt.token_ids) - 1)
    if cached_tokens < computed - computed % block_size:
        found.append(Reread(Reason.EVICTED.value, computed - cached_tokens))
    if draft.difference is not None and draft.difference.reread:
        found.append(Reread(draft.difference.reason.value, draft.difference.reread))
    return tuple(found)
