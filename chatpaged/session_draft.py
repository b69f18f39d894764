"""What a session is about to send: the way through its conversation as a prompt, and how it compares with what was sent before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chatpaged.conversation import Conversation, Node
from chatpaged.engine.limits import check_prompt_fits
from chatpaged.engine.prompts import raw_prompt
from chatpaged.engine.reasoning import split_reasoning
from chatpaged.errors import InvalidRequestError, ModelError, PromptTooLongError
from chatpaged.history import Difference, Turn, common_prefix, next_prompt
from chatpaged.messages import ChatMessage, RenderedPrompt
from chatpaged.session_model import SessionModel, SessionOptions

_ANY_QUESTION = "?"
_ROOM = 512
"""Tokens that are left to an answer whose length nobody has said, where the context is large enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A prompt that nothing has been done with yet.

    Attributes:
        question: the message that will be answered.
        is_new: the question is not in the conversation yet.
        messages: what the prompt was made from.
        prompt: the prompt.
        left_out: how many of the oldest messages are not sent.
        start: the first message that is sent.
        previous: the last sequence on this way that this process knows of.
        kept: how many tokens the prompt has in common with it.
        difference: where and why it leaves it.
        history_tokens: tokens of the prompt that stand for what was said before the question; counted where this process has
            computed none of it with this model.
        model_changed: the last answer came from another model.
        continued: the answer that is taken up again.
        opening: the prompt up to the answer that is taken up again.
    """

    question: Node
    is_new: bool
    messages: tuple[ChatMessage, ...]
    prompt: RenderedPrompt
    left_out: int = 0
    start: str | None = None
    previous: Turn | None = None
    kept: int = 0
    difference: Difference | None = None
    history_tokens: int = 0
    model_changed: bool = False
    continued: Node | None = None
    opening: RenderedPrompt | None = None

    @property
    def left_out_note(self) -> str:
        """What the user is told of messages that are not sent; empty where all are."""
        return f"{self.left_out} oldest message{'' if self.left_out == 1 else 's'} not sent" if self.left_out else ""


class Drafter:
    """Makes drafts for one model."""

    def __init__(self, model: SessionModel, options: SessionOptions, conversation: Conversation) -> None:
        self.model = model
        self.options = options
        self.conversation = conversation

    def draft(
        self,
        path: Sequence[Node],
        *,
        is_new: bool,
        previous: Turn | None,
        start: str | None = None,
        prefill: str = "",
        max_tokens: int | None = None,
    ) -> Draft:
        """Makes the prompt for an answer to the last message of a way.

        Args:
            path: the way.
            is_new: its last message is not in the conversation yet.
            previous: the sequence to compare with.
            start: the first message that was sent last time: what was left out stays so as long as the rest fits.
            prefill: the beginning of the answer.
            max_tokens: the length of the answer, if it is known.

        Raises:
            InvalidRequestError: see `ChatTemplate.render`.
            PromptTooLongError: it does not fit the context.
        """
        if self.model.template is None:
            return self._raw(path, is_new=is_new, prefill=prefill)
        turns = _turns(path)
        skipped = next((i for i, turn in enumerate(turns) if turn[0].id == start), 0) if self.options.leave_out else 0
        skipped = self._skip(turns, skipped, prefill, max_tokens)
        sent = [node for turn in turns[skipped:] for node in turn]
        messages = self._messages(sent)
        following = next_prompt(
            self.model.template,
            messages,
            previous,
            arguments=self.options.arguments,
            prefill=prefill,
            keep_reasoning=self.options.keep_reasoning,
        )
        self._check(following.prompt)
        answers = [node for node in sent[:-1] if node.role == "assistant"]
        changed = bool(answers) and answers[-1].model not in {"", self.model.name}
        return Draft(
            question=path[-1],
            is_new=is_new,
            messages=messages,
            prompt=following.prompt,
            left_out=len(path) - len(sent),
            start=sent[0].id,
            previous=previous,
            kept=following.kept,
            difference=following.difference,
            history_tokens=self._history_tokens(messages, following.prompt) if answers and (changed or previous is None) else 0,
            model_changed=changed,
        )

    def continued(self, draft: Draft, node: Node) -> Draft:
        """Goes on with an answer that was cut off: the prompt ends with its own ids, so there is no second header.

        Args:
            draft: the draft of an answer to the same question, without a prefill.
            node: the answer; its ids are those of this model.
        """
        base = draft.prompt
        own = (*node.reasoning_ids, *(node.token_ids or ()))
        lead = base.lead_ids
        begun = base.token_ids[: len(base.token_ids) - len(lead)]
        # What stands between the header and its own ids is a part of these, unless the template's arguments have changed since.
        rest = own[len(lead) :] if own[: len(lead)] == lead else own
        lead = lead if own[: len(lead)] == lead else ()
        opening = replace(base, token_ids=(*begun, *lead), lead_ids=lead, in_reasoning=base.in_reasoning and bool(lead))
        text = base.text + self.model.tokenizer.transcribe(rest)
        prompt = replace(
            opening,
            text=text,
            token_ids=(*begun, *lead, *rest),
            prefill_ids=rest,
            in_reasoning=self._inside(rest, inside=opening.in_reasoning),
        )
        self._check(prompt)
        return replace(draft, prompt=prompt, opening=opening, continued=node)

    def _messages(self, path: Sequence[Node]) -> tuple[ChatMessage, ...]:
        return self.conversation.messages_of([self.trusted(node) for node in path], self.model.fingerprint)

    def trusted(self, node: Node) -> Node:
        """A message without ids that may be other text than what the user sees: a file may say what it likes."""
        if not node.imported or node.token_ids is None:
            return node
        ids, tokenizer = node.token_ids, self.model.tokenizer
        known = all(token_id < tokenizer.vocab_size for token_id in ids) and not {*ids} & {*tokenizer.control_tokens.values()}
        if known and not node.reasoning_ids and tokenizer.decode(ids).strip() == node.content.strip():
            return node
        return replace(node, token_ids=None, reasoning_ids=())

    def continued_text(self, draft: Draft, node: Node, with_prefill: Callable[[str], Draft]) -> Draft:
        """The same for an answer of which only the text is known. It is encoded as the beginning of an answer would be.

        Raises:
            InvalidRequestError: there is nothing, or its thinking cannot be put back.
        """
        thinking = draft.prompt.in_reasoning
        text = node.content if not thinking else "" if node.content else node.reasoning
        if not text:
            raise InvalidRequestError(f"of the answer {node.id!r} there is nothing to go on with; generate it again")
        prompt = with_prefill(text).prompt
        return replace(draft, prompt=replace(prompt, prefill=""), opening=draft.prompt, continued=node)

    def _inside(self, ids: tuple[int, ...], *, inside: bool) -> bool:
        """Whether an answer of which there are these ids is still in its thinking."""
        markers = self.model.template.markers if self.model.template is not None else None
        if markers is None:
            return False
        split = split_reasoning(ids, markers, self.model.tokenizer, inside=inside)
        thinks = inside or bool(split.reasoning_ids)
        return thinks and not split.token_ids and markers.end not in self.model.tokenizer.transcribe(ids)

    def _raw(self, path: Sequence[Node], *, is_new: bool, prefill: str) -> Draft:
        if len(path) > 1 or self.conversation.system is not None or prefill:
            raise ModelError("no chat template: this model takes single prompts only; use --template FILE")
        prompt = raw_prompt(path[0].content, self.model.tokenizer)
        if not prompt.token_ids:
            raise InvalidRequestError("empty prompt")
        self._check(prompt)
        return Draft(question=path[0], is_new=is_new, messages=(path[0].message(),), prompt=prompt, start=path[0].id)

    def history_ids(self, path: Sequence[Node], start: str | None = None) -> tuple[int, ...]:
        """The ids that a prompt begins with which goes on with a way, whatever will be said; of a question without an answer, all.

        Args:
            path: the way; not empty.
            start: the first message that was sent last time.
        """
        if path[-1].role == "user":
            return self.draft(path, is_new=False, previous=None, start=start).prompt.token_ids
        question = Conversation.new_node("user", path[-1].id, _ANY_QUESTION)
        draft = self.draft((*path, question), is_new=True, previous=None, start=start)
        return draft.prompt.token_ids[: draft.history_tokens]

    # --- what fits ---------------------------------------------------------------------------------------------------------

    def count(self, path: Sequence[Node], prefill: str = "") -> int:
        """Tokens of the prompt for a way."""
        messages = self._messages(path)
        if self.model.template is None or not path:  # templates want more than a system prompt
            return sum(len(self.model.tokenizer.encode(message.content)) for message in messages)
        prompt = self.model.template.render(
            messages, arguments=self.options.arguments, prefill=prefill, keep_reasoning=self.options.keep_reasoning
        )
        return len(prompt.token_ids)

    def _skip(self, turns: Sequence[Sequence[Node]], skipped: int, prefill: str, max_tokens: int | None) -> int:
        """How many of the oldest turns have to be left out.

        When some have to, so many are that the next few turns will fit as well: each change makes the model read anew.
        """
        context = self.model.context
        if context is None or not self.options.leave_out:
            return skipped

        def tokens(number: int) -> int:
            return self.count([node for turn in turns[number:] for node in turn], prefill)

        room = context - min(max_tokens if max_tokens is not None else _ROOM, context // 4)
        if tokens(skipped) <= room:
            return skipped
        low, high = min(skipped + 1, len(turns) - 1), len(turns) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if tokens(middle) <= room * 3 // 4 else (middle + 1, high)
        return low

    def _check(self, prompt: RenderedPrompt) -> None:
        try:
            check_prompt_fits(len(prompt.token_ids), context=self.model.context, num_blocks=None, block_size=1)
        except PromptTooLongError as error:
            hint = "" if self.options.leave_out or len(prompt.replies) == 0 else ", or let the oldest messages be left out"
            raise PromptTooLongError(f"{error}{hint}") from error

    def _history_tokens(self, messages: Sequence[ChatMessage], prompt: RenderedPrompt) -> int:
        if self.model.template is None:
            return 0
        last = max(i for i, message in enumerate(messages) if message.role == "assistant")
        before = self.model.template.render(
            messages[: last + 1],
            arguments=self.options.arguments,
            add_generation_prompt=False,
            keep_reasoning=self.options.keep_reasoning,
        )
        return common_prefix(before.token_ids, prompt.token_ids)


def _turns(path: Sequence[Node]) -> list[list[Node]]:
    """What a user said together with what came back, oldest first. What stands before the first such turn belongs to it."""
    starts = [i + 1 for i, (before, node) in enumerate(pairwise(path)) if node.role == "user" and before.role != "user"]
    if path[0].role != "user":
        starts = starts[1:]
    edges = [0, *starts, len(path)]
    return [list(path[begin:end]) for begin, end in pairwise(edges)]
