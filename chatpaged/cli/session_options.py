"""Options that say which conversation a command goes on with, and whether it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chatpaged.cli.answers import Answers
from chatpaged.cli.completion import complete_sessions
from chatpaged.cli.setting_options import add_options
from chatpaged.cli.signals import Interrupted
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from chatpaged.conversation import Conversation
    from chatpaged.engine.llm_engine import LLMEngine
    from chatpaged.engine.outputs import Delta, RequestOutput
    from chatpaged.engine.sampling_params import SamplingParams
    from chatpaged.session import ChatSession, Draft, Reply, SessionModel, SessionOptions
    from chatpaged.store import SessionInfo, Store

F = TypeVar("F", bound=Callable[..., Any])
_CHOICE = (
    click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the last conversation."),
    click.option("--session", metavar="SESSION", shell_complete=complete_sessions, help="Go on with this conversation: its id or name."),
)
_REPLY = click.option("--reply-to", metavar="ID", help="Go on after this message, on a branch of its own.")
_NO_SAVE = click.option("--no-save", is_flag=True, help="Keep nothing of what is said.")
_PRIVATE = click.option(
    "--private", is_flag=True, help="Share no computed blocks with other chats, and keep them off the disk. With --no-save nothing is kept."
)


def chat_session_options(function: F) -> F:
    """Adds those of `session_options` that make sense where messages are chosen on the screen."""
    return add_options(function, (*_CHOICE, _NO_SAVE, _PRIVATE))


def session_options(function: F) -> F:
    """Adds the options that `SessionChoice.take` takes."""
    return add_options(function, (*_CHOICE, _REPLY, _NO_SAVE, _PRIVATE))


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """Which conversation is gone on with, and whether it is kept."""

    go_on: bool
    session: str | None
    reply_to: str | None
    no_save: bool
    private: bool

    @classmethod
    def take(cls, options: dict[str, Any]) -> SessionChoice:
        """Takes them out of a command's parameters.

        Raises:
            InvalidRequestError: they contradict each other.
        """
        taken = cls(**{field.name: options.pop(field.name) for field in fields(cls)})
        given = [name for name, value in (("-c", taken.go_on), ("--session", taken.session), ("--reply-to", taken.reply_to)) if value]
        if len(given) > 1:
            raise InvalidRequestError(f"{given[0]} and {given[1]} each name a conversation; give one of them")
        return taken

    @property
    def is_new(self) -> bool:
        """Whether a conversation is begun."""
        return not (self.go_on or self.session or self.reply_to)

    def with_keeping(self, options: SessionOptions) -> SessionOptions:
        """The same options with what `--private` and `--no-save` say of computed blocks."""
        from chatpaged.engine.sequence import Keep

        if not (self.private or self.no_save):
            return options
        return replace(options, salt=os.urandom(16) if self.private else b"", keep=Keep.MEMORY)

    @contextmanager
    def opened(self, model: SessionModel, *, system: str | None, options: SessionOptions) -> Iterator[ChatSession]:
        """The session. With `--no-save` the store is read where a conversation is gone on with, and never written.

        Args:
            model: whom it is held with.
            system: a system prompt; None leaves one that is there as it is.
            options: what holds for every prompt.

        Raises:
            InvalidRequestError: no conversation is meant, or more than one.
            StoreError: the store cannot be used.
        """
        from chatpaged.session import ChatSession
        from chatpaged.store import Store

        with nullcontext() if self.no_save and self.is_new else Store(create=self.is_new) as store:
            conversation = self._find(store) if store is not None else None
            keeps = None if self.no_save else store
            session = ChatSession(model, conversation, store=keeps, stored=conversation is not None, options=options)
            if system is not None:
                session.conversation.system = system  # kept with the question
            yield session

    def _find(self, store: Store) -> Conversation | None:
        if self.reply_to:
            conversation, node = store.resolve_message(self.reply_to)
            conversation.branch(node.id)
            return conversation
        info = self._info(store)
        return store.load(info.id) if info is not None else None

    def find_id(self) -> str | None:
        """The id of the conversation that `-c` or `--session` means; None begins one.

        Raises:
            InvalidRequestError: none is meant, or more than one.
            StoreError: the store cannot be read.
        """
        from chatpaged.store import Store

        if self.is_new:
            return None
        with Store(create=False) as store:
            info = self._info(store)
        return info.id if info is not None else None

    def _info(self, store: Store) -> SessionInfo | None:
        info = store.resolve(self.session) if self.session else None
        if self.go_on:
            info = store.latest()
            if info is None:
                raise InvalidRequestError("there is no conversation to go on with; nothing has been saved yet")
        return info


def run_draft(llm: LLMEngine, session: ChatSession, draft: Draft, params: SamplingParams, show: Callable[[Delta], None]) -> Answers:
    """Runs a draft of a session; Ctrl-C and a request to end leave what there is so far, in the store as well.

    Raises:
        ChatpagedError: the request was refused, or has failed.
        StoreError: question or answer could not be kept.
    """
    answers = Answers()
    reply = session.start(llm, draft, params)
    answers.seed = reply.seed
    try:
        with closing(session.stream(llm, reply)) as outputs:
            for output in outputs:
                _show(answers, output, show)
    except Interrupted as error:
        answers.interrupted_by = error.status
        if reply.last is not None:
            _show(answers, reply.last, show)
    return _with(answers, reply)


def _show(answers: Answers, output: RequestOutput, show: Callable[[Delta], None]) -> None:
    for delta in output.deltas:
        answers.repeats = max(answers.repeats, delta.repeats)
        show(delta)


def _with(answers: Answers, reply: Reply) -> Answers:
    answers.completions = sorted(reply.completions, key=lambda completion: completion.index)
    answers.metrics = reply.metrics
    answers.message_ids = tuple(node.id for node in reply.nodes)
    answers.rereads = tuple(map(str, reply.rereads))
    return answers
