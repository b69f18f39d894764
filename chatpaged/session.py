"""One conversation on one engine: send, stop, continue, generate again, edit, branch. Everything said is kept as it is said.

```python
session = ChatSession(SessionModel("my-model", llm.tokenizer, llm.chat_template, context=8192), store=store)
reply = session.start(llm, session.draft("Hello!"), SamplingParams(max_tokens=200))
for output in session.stream(llm, reply):
    print("".join(delta.text for delta in output.deltas), end="")
```

A draft is the prompt of an answer; nothing has happened when it is thrown away. `start` keeps the question and queues the request,
`stream` steps the engine. Who drives the engine otherwise uses `begin` in place of both, and hands each output to `Reply.take`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chatpaged.conversation import Conversation, Node, new_message_id
from chatpaged.engine.outputs import RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, StoreError
from chatpaged.history import Turn
from chatpaged.session_draft import Draft, Drafter
from chatpaged.session_model import SessionModel, SessionOptions
from chatpaged.session_reply import Reply, Reread
from chatpaged.session_store import SessionStore
from chatpaged.session_stream import stream_reply

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.engine.llm_engine import LLMEngine

__all__ = ["ChatSession", "ContextUse", "Draft", "Reply", "Reread", "SessionModel", "SessionOptions"]

_TURNS_KEPT = 64


@dataclass(frozen=True, slots=True)
class ContextUse:
    """How full the context is.

    Attributes:
        used: tokens of the conversation up to the leaf, and of what is being typed.
        limit: tokens that the model can take; None where that is not known.
    """

    used: int
    limit: int | None

    @property
    def share(self) -> float:
        """0 for an empty context, 1 for a full one."""
        return self.used / self.limit if self.limit else 0.0


class ChatSession:
    """A conversation and where it is kept.

    Attributes:
        conversation: the messages.
        model: whom it is held with.
        options: what holds for every prompt.
        store: where everything is kept; None keeps nothing.
    """

    def __init__(
        self,
        model: SessionModel,
        conversation: Conversation | None = None,
        *,
        store: SessionStore | None = None,
        stored: bool = False,
        options: SessionOptions | None = None,
    ) -> None:
        """Begins or takes up a conversation.

        Args:
            model: whom it is held with.
            conversation: None begins one.
            store: where to keep it; None keeps nothing.
            stored: the conversation has come from the store.
            options: what holds for every prompt.
        """
        self.model = model
        self.conversation = conversation if conversation is not None else Conversation(model=model.name)
        self.options = options if options is not None else SessionOptions()
        self.store = store
        self._stored = stored
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._start: str | None = None

    # --- drafts: nothing happens yet -------------------------------------------------------------------------------------

    def draft(self, text: str, *, prefill: str = "", max_tokens: int | None = None) -> Draft:
        """What is sent when the user says something after the leaf.

        Args:
            text: what the user says.
            prefill: the beginning of the answer.
            max_tokens: the length of the answer, if it is known.

        Raises:
            InvalidRequestError: the template refuses the messages.
            PromptTooLongError: the conversation does not fit the context.
        """
        leaf = self.conversation.leaf
        return self._draft(self._question(text, leaf.id if leaf is not None else None), is_new=True, prefill=prefill, max_tokens=max_tokens)

    def draft_edit(self, node_id: str, text: str, *, prefill: str = "", max_tokens: int | None = None) -> Draft:
        """The same with another version of what the user has said. The old one stays, with all that followed it."""
        node = self.conversation.node(node_id)
        if node.role != "user":
            raise InvalidRequestError(f"message {node_id!r} is not one of the user's; only these can be edited and sent again")
        return self._draft(self._question(text, node.parent), is_new=True, prefill=prefill, max_tokens=max_tokens)

    def draft_again(self, node_id: str | None = None, *, prefill: str = "", max_tokens: int | None = None) -> Draft:
        """What is sent for another answer beside one that is there, or for one to a question that has none.

        Args:
            node_id: the answer or the question; None is the leaf.
            prefill: the beginning of the answer.
            max_tokens: the length of the answer, if it is known.
        """
        node = self._node(node_id)
        question = node if node.role == "user" else self.conversation.question_of(node.id)
        return self._draft(question, is_new=False, prefill=prefill, max_tokens=max_tokens)

    def draft_continue(self, node_id: str | None = None, *, max_tokens: int | None = None) -> Draft:
        """What is sent to go on with an answer that was cut off. It grows in its place.

        Args:
            node_id: the answer; None is the leaf.
            max_tokens: the length of what is to come, if it is known.

        Raises:
            InvalidRequestError: it is no answer, or came to its end by itself.
        """
        node = self._node(node_id)
        question = self.conversation.question_of(node.id)
        if not node.can_continue:
            raise InvalidRequestError(f"the answer {node.id!r} came to its end by itself; generate it again, or say what is missing")
        if self.model.template is None:
            raise InvalidRequestError("without a chat template there is no answer to continue")
        drafter = self._drafter()
        node = drafter.trusted(node)
        plain = self._draft(question, is_new=False, max_tokens=max_tokens)
        if node.token_ids is not None and node.fingerprint == self.model.fingerprint:
            return drafter.continued(plain, node)

        def with_prefill(text: str) -> Draft:
            return self._draft(question, is_new=False, prefill=text, max_tokens=max_tokens)

        return drafter.continued_text(plain, node, with_prefill)

    def _draft(self, question: Node, *, is_new: bool, prefill: str = "", max_tokens: int | None = None) -> Draft:
        before = self.conversation.path(question.parent) if question.parent is not None else ()
        return self._drafter().draft(
            (*before, question),
            is_new=is_new,
            previous=self._previous(before),
            start=self._start,
            prefill=prefill,
            max_tokens=max_tokens,
        )

    def _drafter(self) -> Drafter:
        return Drafter(self.model, self.options, self.conversation)

    def _previous(self, path: Sequence[Node]) -> Turn | None:
        """The nearest sequence on a way that this process has computed."""
        return next((self._turns[node.id] for node in reversed(path) if node.id in self._turns), None)

    @staticmethod
    def _question(text: str, parent: str | None) -> Node:
        return Conversation.new_node("user", parent, text)

    def _node(self, node_id: str | None) -> Node:
        node = self.conversation.leaf if node_id is None else self.conversation.node(node_id)
        if node is None:
            raise InvalidRequestError("the conversation is empty")
        return node

    # --- answers -----------------------------------------------------------------------------------------------------------

    def start(self, llm: LLMEngine, draft: Draft, params: SamplingParams, *, interactive: bool = True) -> Reply:
        """Keeps the question and queues the request.

        Raises:
            InvalidRequestError: see `LLMEngine.add_request`; then nothing was kept.
            PromptTooLongError: likewise.
            StoreError: the question cannot be kept; then nothing is generated.
        """
        split = self.model.template is not None
        salt, keep = self.options.salt, self.options.keep
        request_id = llm.add_request(draft.prompt, params, interactive=interactive, salt=salt, keep=keep, split_reasoning=split)
        try:
            return self.begin(draft, params, request_id=request_id, seed=llm.seed_of(request_id) or 0, block_size=llm.config.block_size)
        except BaseException:
            llm.abort(request_id)
            raise

    def begin(self, draft: Draft, params: SamplingParams, *, request_id: str, seed: int, block_size: int) -> Reply:
        """Keeps the question; for who drives the engine otherwise.

        Args:
            draft: what is sent.
            params: how answers are drawn.
            request_id: the engine's name for the request.
            seed: of the first answer.
            block_size: tokens of a block.
        """
        if draft.continued is not None and params.n != 1:
            raise InvalidRequestError("an answer is continued in its place: n must be 1")
        self.conversation.model = self.model.name
        if draft.is_new:
            self._keep_question(draft.question)
        elif draft.continued is not None:
            draft = replace(draft, continued=self._place(draft.continued))
        else:
            self._keep()
        self._start = draft.start
        while len(self._turns) > _TURNS_KEPT:
            self._turns.popitem(last=False)
        return Reply(
            draft=draft,
            params=params,
            seed=seed,
            request_id=request_id,
            conversation=self.conversation,
            model=self.model,
            store=self.store,
            block_size=block_size,
            turns=self._turns,
            arguments=self.options.arguments,
        )

    def stream(self, llm: LLMEngine, reply: Reply) -> Generator[RequestOutput, None, None]:
        """Steps the engine until the answers are there. Closing the iterator, or an interruption, keeps what there is so far.

        Other requests of the engine go on meanwhile, but their outputs are lost.

        Raises:
            ChatpagedError: the request has failed.
            StoreError: the finished answer could not be kept; it was given all the same.
        """
        return stream_reply(llm, reply)

    def answer(self, llm: LLMEngine, draft: Draft, params: SamplingParams) -> Reply:
        """The answers to a draft, once they are there."""
        reply = self.start(llm, draft, params, interactive=False)
        for _ in self.stream(llm, reply):
            pass
        return reply

    @property
    def last_turn(self) -> Turn | None:
        """The sequence of the last answer in view that this process has computed."""
        return self._previous(self.conversation.path())

    def turn_of(self, node_id: str) -> Turn | None:
        """The sequence of an answer, if this process has computed it."""
        return self._turns.get(node_id)

    def history_ids(self) -> tuple[int, ...]:
        """The ids that the next prompt will begin with. Takes as long as a draft, and raises what one does."""
        path = self.conversation.path()
        return self._drafter().history_ids(path, self._start) if path else ()

    # --- moving about ------------------------------------------------------------------------------------------------------

    def branch(self, node_id: str | None) -> None:
        """Goes back: the next message will follow this one; None begins anew."""
        self.conversation.branch(node_id)
        self._keep()

    def switch(self, node_id: str) -> Node:
        """Looks at another version of a message, and at what followed it last. Returns the leaf."""
        leaf = self.conversation.switch(node_id)
        self._keep()
        return leaf

    def set_system(self, text: str) -> None:
        """Changes the system prompt of the whole conversation."""
        self.conversation.system = text
        self._keep()

    def context_use(self, text: str = "") -> ContextUse:
        """How full the context is. Messages that were left out last time do not count.

        Args:
            text: what is being typed.
        """
        path = self.conversation.path()
        leaf = self.conversation.leaf
        if not text and leaf is not None and leaf.id in self._turns:
            return ContextUse(len(self._turns[leaf.id].token_ids), self.model.context)
        if self.options.leave_out:
            path = path[next((i for i, node in enumerate(path) if node.id == self._start), 0) :]
        if text:
            path = (*path, self._question(text, leaf.id if leaf is not None else None))
        return ContextUse(self._drafter().count(path), self.model.context)

    def _keep_question(self, question: Node) -> None:
        self.conversation.add(question)
        try:
            self._keep(question)
        except StoreError:
            self.conversation.discard(question.id)
            raise

    def _place(self, node: Node) -> Node:
        """Where a continued answer grows: in its place, or beside it where something follows it, which was said to the old one."""
        if not self.conversation.children(node.id):
            self.conversation.branch(node.id)
            self._keep()
            return node
        beside = self.conversation.add(replace(node, id=new_message_id(), created=time.time()))
        self._keep(beside)
        return beside

    def _keep(self, node: Node | None = None) -> None:
        """Keeps a new message, and what the conversation looks at."""
        if self.store is None:
            return
        if self._stored and node is not None:
            self.store.add_message(self.conversation, node)
        elif self._stored:
            self.store.update_session(self.conversation)
        elif self.conversation.nodes:
            self.store.add_session(self.conversation)
            self._stored = True
