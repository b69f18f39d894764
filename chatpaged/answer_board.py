"""The answers to one question side by side, while they are written and afterwards."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from chatpaged.amounts import counted, memory_size
from chatpaged.branch_tree import known_tokens
from chatpaged.chat import Chat, ChatState
from chatpaged.conversation import Node, NodeState
from chatpaged.engine.engine_state import EngineFacts
from chatpaged.engine.outputs import FinishReason
from chatpaged.engine.snapshot import EngineSnapshot, SequenceSnapshot
from chatpaged.session_reply import Reply
from chatpaged.workspace import Workspace
from chatpaged.workspace_events import AnswerEnded, AnswerGrew, ChatChanged, PathChanged, WorkspaceEvent


class AnswerState(enum.Enum):
    """What an answer is doing, or how it ended."""

    WAITING = "waiting"
    WRITING = "writing"
    DONE = "done"
    LIMIT = "stopped at the limit"
    STOPPED = "stopped"
    REPEATED = "repeated itself"
    FAILED = "cut off by an error"


_ENDS = {
    FinishReason.LENGTH.value: AnswerState.LIMIT,
    FinishReason.CANCELLED.value: AnswerState.STOPPED,
    FinishReason.REPETITION.value: AnswerState.REPEATED,
    FinishReason.ERROR.value: AnswerState.FAILED,
}


@dataclass(slots=True)
class Answer:
    """One answer.

    Attributes:
        sample: which of the answers that are being generated it is; None for one that was there.
        node_id: its message; None while nothing of it has come.
        text: as far as it has come.
        reasoning: likewise its thinking.
        state: what it is doing.
        num_tokens: as far as it is known.
        speed: tokens a second while it is written.
    """

    sample: int | None = None
    node_id: str | None = None
    text: str = ""
    reasoning: str = ""
    state: AnswerState = AnswerState.WAITING
    num_tokens: int | None = None
    speed: float = 0.0

    @property
    def is_growing(self) -> bool:
        """Whether more of it will come."""
        return self.state in (AnswerState.WAITING, AnswerState.WRITING)

    @property
    def note(self) -> str:
        """What is said of it in a few words."""
        tokens = counted(self.num_tokens, "token") if self.num_tokens else ""
        speed = f"{self.speed:.0f} tok/s" if self.state is AnswerState.WRITING and self.speed else ""
        return " · ".join(part for part in (speed or tokens, self.state.value) if part)


@dataclass(frozen=True, slots=True)
class Sharing:
    """What answers to one prompt have in common.

    Attributes:
        answers: how many were seen together.
        prompt_tokens: read once for all of them.
        blocks: that all of them hold.
        saved_bytes: what more they would hold if each had blocks of its own.
    """

    answers: int
    prompt_tokens: int
    blocks: int
    saved_bytes: int

    def __str__(self) -> str:
        blocks = f"{counted(self.blocks, 'block')} shared by {counted(self.answers, 'answer')}"
        return f"prompt read once: {counted(self.prompt_tokens, 'token')} · {blocks} · saved {memory_size(self.saved_bytes)}"


def sharing_of(sequences: Sequence[SequenceSnapshot], facts: EngineFacts, ended: int = 0) -> Sharing | None:
    """What answers to one prompt share; None where that cannot be seen.

    Args:
        sequences: those that are being written.
        facts: of the engine.
        ended: how many have ended, which held what all others still hold.
    """
    tables = [frozenset(sequence.blocks) for sequence in sequences if sequence.blocks]
    if len(tables) < 2:
        return None
    answers, prompt_tokens = len(tables) + ended, sequences[0].num_prompt_tokens
    # The last block of the prompt is shared for a moment only, where it is not full.
    blocks = min(len(frozenset.intersection(*tables)), prompt_tokens // facts.block_size)
    return Sharing(answers, prompt_tokens, blocks, (answers - 1) * blocks * facts.block_bytes)


class AnswerBoard:
    """The answers to a question, in places that do not change.

    Attributes:
        question_id: the question; None until it is kept.
        answers: those that were there, then those that are being written, then what was asked for later.
        sharing: what answers were seen to share; None before.
    """

    def __init__(self, workspace: Workspace, chat: Chat, question_id: str | None) -> None:
        """Looks at the answers to a question.

        Args:
            workspace: all chats.
            chat: the conversation.
            question_id: the message that is answered; None is the one that is just being sent.
        """
        self.answers: list[Answer] = []
        self.sharing: Sharing | None = None
        self.question_id = question_id
        self._workspace = workspace
        self._chat = chat
        self._reply: Reply | None = None
        self.sync()

    @property
    def running(self) -> Reply | None:
        """What writes answers to this question now."""
        chat = self._chat
        if chat.reply is None or chat.state in (ChatState.IDLE, ChatState.DRAFTING):
            return None
        return chat.reply if self.question_id in (None, chat.reply.draft.question.id) else None

    @property
    def is_growing(self) -> bool:
        """Whether more of any answer will come, or answers are being prepared."""
        return self.running is not None or self._chat.state is ChatState.DRAFTING

    @property
    def latest_number(self) -> int:
        """How many answers were asked for last."""
        return self._reply.params.n if self._reply is not None else max(1, len(self.answers))

    @property
    def question(self) -> Node | None:
        """The message that is answered."""
        return self._chat.conversation.node(self.question_id) if self.question_id is not None else None

    def position_of(self, node_id: str | None) -> int | None:
        """The place of the answer with this message."""
        return next((place for place, answer in enumerate(self.answers) if node_id is not None and answer.node_id == node_id), None)

    def summary(self) -> str:
        """What was read and shared, in one line."""
        if self.sharing is not None:
            return str(self.sharing)
        nodes = self._chat.conversation.children(self.question_id) if self.question_id is not None else ()
        prompts = [tokens for node in nodes if isinstance(tokens := node.usage.get("prompt_tokens"), int)]
        prompt = f" of {counted(max(prompts), 'token')}" if prompts else ""
        return f"{counted(len(self.answers), 'answer')} to one prompt{prompt}" if self.answers else "the prompt is being prepared"

    # --- news ------------------------------------------------------------------------------------------------------------

    def hear(self, event: WorkspaceEvent) -> bool:
        """Takes in what has happened. Returns whether anything here is different."""
        if not isinstance(event, AnswerGrew | AnswerEnded | PathChanged | ChatChanged) or event.chat_id != self._chat.id:
            return False
        if not isinstance(event, AnswerGrew) or (place := self.position_of(event.node_id)) is None:
            self.sync()
        elif (running := self.running) is not None:
            self._take(running, event.index, self.answers[place])
        return True

    def sync(self) -> None:
        """Takes over what the conversation and the running reply have."""
        running = self.running
        if running is not None:
            self.question_id = running.draft.question.id
            if running is not self._reply:
                self._reply = running
                for answer in self.answers:
                    answer.sample = None
        elif self.question_id is None and self._chat.state is ChatState.IDLE and self._chat.reply is not None:
            self.question_id = self._chat.reply.draft.question.id  # answered before anybody looked
        if self.question_id is None:
            return
        samples = _samples(running) if running is not None else {}
        for node in self._chat.conversation.children(self.question_id):
            if node.role == "assistant":
                self._sync_answer(node, running, samples.get(node.id))
        if running is not None:
            there = {answer.sample for answer in self.answers}
            self.answers += [Answer(sample) for sample in range(running.params.n) if sample not in there]
        else:
            # What never came has no message; nobody will write it any more.
            self.answers = [answer for answer in self.answers if answer.node_id is not None]

    def see(self, snapshot: EngineSnapshot | None, facts: EngineFacts) -> None:
        """Takes over what the engine tells of the answers that are written."""
        running = self.running
        if snapshot is None or running is None:
            return
        sequences = {sequence.index: sequence for sequence in snapshot.sequences if sequence.request_id == running.request_id}
        for answer in self.answers:
            if answer.is_growing and answer.sample in sequences:
                answer.speed = sequences[answer.sample].tokens_per_second
        seen = sharing_of(list(sequences.values()), facts, len(running.completions))
        if seen is not None:
            self.sharing = seen  # and what was seen last stays

    # --- one answer ------------------------------------------------------------------------------------------------------

    def _sync_answer(self, node: Node, running: Reply | None, sample: int | None) -> None:
        answer = self._place(node.id, sample)
        answer.node_id = node.id
        if running is not None and sample is not None:
            answer.sample = sample
            self._take(running, sample, answer)
        else:
            _finish(answer, node)

    def _place(self, node_id: str, sample: int | None) -> Answer:
        """Where an answer is shown: where it is, else where it was waited for, else a new place."""
        for answer in self.answers:
            if answer.node_id == node_id or (sample is not None and answer.node_id is None and answer.sample == sample):
                return answer
        self.answers.append(Answer())
        return self.answers[-1]

    def _take(self, running: Reply, sample: int, answer: Answer) -> None:
        """What there is of an answer that is being written."""
        node = running.node_of(sample)
        if node is not None and any(completion.index == sample for completion in running.completions):
            _finish(answer, node)
            return
        before = running.draft.continued if sample == 0 else None
        text, reasoning, num_tokens = running.written(sample)
        answer.text = before.content + text if before is not None else text
        answer.reasoning = before.reasoning + reasoning if before is not None else reasoning
        answer.num_tokens = num_tokens + (known_tokens(before) or 0 if before is not None else 0)
        answer.state = AnswerState.WRITING


def _finish(answer: Answer, node: Node) -> None:
    answer.text, answer.reasoning = node.content, node.reasoning
    answer.num_tokens, answer.speed = known_tokens(node), 0.0
    answer.state = _ENDS.get(node.finish_reason, AnswerState.DONE)
    if not node.finish_reason and node.state is NodeState.INTERRUPTED:
        answer.state = AnswerState.STOPPED


def _samples(running: Reply) -> dict[str, int]:
    """The messages of answers that are being written, and which of the samples they are."""
    found = ((sample, running.node_of(sample)) for sample in range(running.params.n))
    return {node.id: sample for sample, node in found if node is not None}
