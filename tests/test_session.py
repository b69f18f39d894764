"""One conversation on one engine: what is sent, what is kept, and what the user is told about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken

from chatpaged import session_reply
from chatpaged.chat_template import ChatTemplate
from chatpaged.conversation import Conversation, Node, NodeState
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import FinishReason
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow
from chatpaged.engine.scripted import Script, ScriptedExecutor
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.errors import ChatpagedError, InvalidRequestError, ModelError, PromptTooLongError, StoreError
from chatpaged.history import Reason
from chatpaged.session import ChatSession, Reply, SessionModel, SessionOptions
from chatpaged.store import Store
from tests.byte_tokenizer import END, START, TEMPLATE, byte_tokenizer

UNTHINK = 259
THINKING = TEMPLATE.replace("<|start|>assistant\n{% endif %}", "<|start|>assistant\n<think>\n{% endif %}").replace(
    "{{ message.content }}", "{{ message.content.split('</think>')[-1] }}"
)
BLOCK = 16
GREEDY = SamplingParams(temperature=0)


def counted(row: ScheduledRow, sample: SampleRow) -> int:
    """Ten letters and the end."""
    return (*b"abcdefghij", END)[sample.position] if sample.position <= 10 else END


class World:
    """An engine with a script, and a store."""

    def __init__(self, path: Path, *, script: Script = counted, template: str = TEMPLATE, context: int = 8192, blocks: int = 257) -> None:
        inner = tokenizers.Tokenizer.from_str(byte_tokenizer()._tokenizer.to_str())
        inner.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
        self.tokenizer = Tokenizer(inner, {"eos_token": "<|end|>"})
        self.template = ChatTemplate(template, self.tokenizer)
        self.model = SessionModel("scripted", self.tokenizer, self.template, context)
        self.executor = ScriptedExecutor(script, max_model_len=context, num_blocks=blocks)
        self.llm = LLMEngine(self.executor, self.tokenizer, EngineConfig(block_size=BLOCK), chat_template=self.template)
        self.path = path
        self.store = Store(path)

    def session(self, conversation: Conversation | None = None, **options: object) -> ChatSession:
        chosen = SessionOptions(**options)  # type: ignore[arg-type]
        return ChatSession(self.model, conversation, store=self.store, stored=conversation is not None, options=chosen)

    def say(self, session: ChatSession, text: str, params: SamplingParams = GREEDY) -> Reply:
        return session.answer(self.llm, session.draft(text), params)

    def stored(self, session: ChatSession) -> Conversation:
        with Store(self.path) as store:
            return store.load(session.conversation.id)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    world = World(path)
    yield world
    world.llm.check_invariants()
    world.store.close()


def usage(node: Node, name: str) -> int:
    value = node.usage[name]
    assert isinstance(value, int)
    return value


def test_an_answer_is_kept_with_all_about_it(world: World) -> None:
    session = world.session()
    reply = world.say(session, "hi", SamplingParams(temperature=0.5, seed=7, max_tokens=50))
    node = reply.nodes[0]
    assert (node.content, node.token_ids, node.finish_reason, node.state) == (
        "abcdefghij",
        tuple(b"abcdefghij"),
        "stop",
        NodeState.COMPLETE,
    )
    assert (node.model, node.fingerprint) == ("scripted", world.model.fingerprint)
    assert (node.sampling["temperature"], node.sampling["seed"], node.sampling["max_tokens"]) == (0.5, 7, 50)
    assert usage(node, "completion_tokens") == 11
    assert usage(node, "prompt_tokens") == len(reply.draft.prompt.token_ids)
    assert usage(node, "prefill_tokens") + usage(node, "cached_tokens") == usage(node, "prompt_tokens")
    stored = world.stored(session)
    assert stored.path() == session.conversation.path()
    assert [message.role for message in stored.messages()] == ["user", "assistant"]
    assert stored.model == "scripted"


def test_each_alternative_has_its_share_of_the_speed(world: World) -> None:
    one = world.say(world.session(), "hi")
    assert one.metrics is not None
    assert one.nodes[0].usage["tokens_per_second"] == one.metrics.tokens_per_second
    uneven = World(world.path, script=lambda _, sample: 97 if sample.position < 3 + 4 * sample.index else END)
    session = uneven.session()
    reply = uneven.say(session, "hi", SamplingParams(temperature=0, n=3))
    assert reply.metrics is not None
    total = reply.metrics.tokens_per_second
    assert total is not None
    counts = [usage(node, "completion_tokens") for node in reply.nodes]
    assert len(set(counts)) > 1
    speeds = [node.usage["tokens_per_second"] for node in reply.nodes]
    later = [count - 1 for count in counts]
    assert speeds == pytest.approx([total * count / sum(later) for count in later])
    assert [node.usage["tokens_per_second"] for node in uneven.stored(session).nodes[1:]] == speeds
    uneven.store.close()


def test_a_short_alternative_has_no_speed(world: World) -> None:
    reply = world.say(world.session(), "hi", SamplingParams(temperature=0, n=2, max_tokens=1))
    assert [node.usage["tokens_per_second"] for node in reply.nodes] == [None, None]


def test_later_prompts_begin_with_all_that_was_there(world: World) -> None:
    session = world.session()
    session.set_system("S")
    previous = world.say(session, "hi")
    for text in ("more", "and more", "still more"):
        reply = world.say(session, text)
        whole = (*previous.draft.prompt.token_ids, *b"abcdefghij", END)
        assert reply.draft.prompt.token_ids[: len(whole)] == whole
        assert reply.rereads == ()
        assert usage(reply.nodes[0], "cached_tokens") >= len(whole) - BLOCK
        previous = reply
    assert "S" in reply.draft.prompt.text


def test_the_question_is_on_disk_before_the_answer_begins(world: World) -> None:  # J2
    session = world.session()
    reply = session.start(world.llm, session.draft("hi"), GREEDY)
    assert [(node.role, node.content) for node in world.stored(session).path()] == [("user", "hi")]
    assert world.executor.outputs == []
    assert reply.nodes == ()
    for _ in session.stream(world.llm, reply):
        pass
    session.start(world.llm, session.draft("again"), GREEDY)
    assert [node.content for node in world.stored(session).path()] == ["hi", "abcdefghij", "again"]


def test_partial_answers_are_kept_as_interrupted_and_can_be_continued(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_reply, "SAVE_SECONDS", 0.0)
    session = world.session()
    reply = session.start(world.llm, session.draft("hi"), GREEDY)
    with closing(session.stream(world.llm, reply)) as outputs:
        for number, _ in enumerate(outputs, 1):
            node = world.stored(session).path()[-1]
            if number == 4:
                assert (node.content, node.token_ids) == ("abcd", tuple(b"abcd"))
                assert node.state is NodeState.INTERRUPTED
                break
    # Another process finds the store as a kill would have left it.
    other = World(world.path)
    later = other.session(world.store.load(session.conversation.id))
    continued = later.draft_continue()
    assert continued.prompt.token_ids[-5:] == (10, *b"abcd")
    assert continued.prompt.token_ids.count(START) == 2
    answer = later.answer(other.llm, continued, replace(GREEDY, max_tokens=3))
    assert answer.completions[0].text == "abc"
    leaf = world.store.load(session.conversation.id).leaf
    assert leaf is not None
    assert (leaf.content, leaf.token_ids, leaf.finish_reason) == ("abcdabc", tuple(b"abcdabc"), "length")
    assert usage(leaf, "completion_tokens") == 7
    assert len(world.store.load(session.conversation.id).nodes) == 2
    following = other.say(later, "more")
    assert b"abcdabc" in bytes(token_id for token_id in following.draft.prompt.token_ids if token_id < 256)
    assert following.rereads == ()


def test_partial_answers_are_saved_at_most_a_moment_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[float] = []
    now = 100.0

    def clock() -> float:
        return now

    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(Store, "update_message", lambda self, node: saved.append(now))
    session = world.session()
    reply = session.start(world.llm, session.draft("hi"), replace(GREEDY, max_tokens=10))
    for _ in session.stream(world.llm, reply):
        now += 0.2
    # The first token is kept at once, by adding it; then nothing is ever more than 0.5 s and a step late.
    steps = [b - a for a, b in zip([100.0, *saved], saved, strict=False)]
    assert max(steps) <= 0.61
    assert len(saved) < 8


def test_stopping_keeps_what_there_is(world: World) -> None:
    session = world.session()
    reply = session.start(world.llm, session.draft("hi"), GREEDY)
    for number, _ in enumerate(session.stream(world.llm, reply), 1):
        if number == 3:
            reply.stop()
    leaf = world.stored(session).leaf
    assert leaf is not None
    assert (leaf.content, leaf.finish_reason, leaf.state) == ("abc", "cancelled", NodeState.INTERRUPTED)
    assert leaf == session.conversation.leaf
    assert not world.llm.has_unfinished


def test_an_interruption_in_the_middle_of_a_step_keeps_what_there_is(path: Path) -> None:
    def script(row: ScheduledRow, sample: SampleRow) -> int:
        if sample.position == 5:
            raise KeyboardInterrupt
        return counted(row, sample)

    world = World(path, script=script)
    session = world.session()
    with pytest.raises(KeyboardInterrupt):
        world.say(session, "hi")
    leaf = world.stored(session).leaf
    assert leaf is not None
    assert (leaf.content, leaf.state) == ("abcde", NodeState.INTERRUPTED)


def test_stopping_before_the_first_token_leaves_the_question(world: World) -> None:
    session = world.session()
    reply = session.start(world.llm, session.draft("hi"), GREEDY)
    reply.stop()
    assert [output.finished for output in session.stream(world.llm, reply)] == [True]
    assert [node.role for node in world.stored(session).path()] == ["user"]
    again = session.answer(world.llm, session.draft_again(), GREEDY)
    assert [node.content for node in session.conversation.path()] == ["hi", "abcdefghij"]
    assert again.nodes[0].parent == session.conversation.path()[0].id


def test_edit_and_regenerate_keep_the_old_and_read_only_the_new(world: World) -> None:  # B10
    session = world.session()
    for i in range(6):
        world.say(session, f"question {i} with some words in it")
    path = session.conversation.path()
    question, answer = path[8], path[11]
    prompt_6 = world.template.render(session.conversation.messages(path[10].id))
    again = session.answer(world.llm, session.draft_again(answer.id), GREEDY)
    assert usage(again.nodes[0], "cached_tokens") >= len(prompt_6.token_ids) - 1 - BLOCK
    assert [node.id for node in session.conversation.siblings(answer.id)] == [answer.id, again.nodes[0].id]

    four = world.template.render(session.conversation.messages(path[7].id), add_generation_prompt=False)
    edited = session.answer(world.llm, session.draft_edit(question.id, "something else"), GREEDY)
    assert usage(edited.nodes[0], "cached_tokens") >= (len(four.token_ids) - 1) // BLOCK * BLOCK
    assert edited.rereads == ()
    assert [node.content for node in session.conversation.siblings(question.id)] == [question.content, "something else"]
    assert session.switch(question.id).id == again.nodes[0].id
    assert world.stored(session).path()[-1].id == again.nodes[0].id


def test_a_branch_does_not_know_what_was_said_on_another(world: World) -> None:  # J8
    session = world.session()
    world.say(session, "hello, how are you doing today?")
    before = session.conversation.path()[-1]
    world.say(session, "the magic word is pineapple, do not forget it")
    known = world.say(session, "which is the magic word?")
    assert "pineapple" in known.draft.prompt.text
    session.branch(before.id)
    unknown = world.say(session, "which is the magic word?")
    assert "pineapple" not in unknown.draft.prompt.text
    assert (
        usage(unknown.nodes[0], "cached_tokens") >= len(world.template.render(session.conversation.messages(before.id)).token_ids) - BLOCK
    )
    session.switch(known.nodes[0].id)
    back = world.say(session, "and now?")
    assert "pineapple" in back.draft.prompt.text
    assert usage(back.nodes[0], "cached_tokens") >= len(known.draft.prompt.token_ids) + 10 - BLOCK


def test_alternatives_are_siblings(world: World) -> None:
    session = world.session()
    reply = world.say(session, "hi", SamplingParams(n=3, seed=5))
    assert len(reply.nodes) == 3
    assert session.conversation.leaf == reply.nodes[0]
    assert session.conversation.siblings(reply.nodes[1].id) == reply.nodes
    assert [node.sampling["seed"] for node in reply.nodes] == [5, 6, 7]
    assert world.stored(session).nodes == session.conversation.nodes
    short = world.say(session, "more", SamplingParams(max_tokens=2))
    draft = session.draft_continue(short.nodes[0].id)
    with pytest.raises(InvalidRequestError, match="n must be 1"):
        session.answer(world.llm, draft, SamplingParams(n=2))


def test_a_prefill_is_part_of_the_answer(world: World) -> None:
    session = world.session()
    reply = session.answer(world.llm, session.draft("hi", prefill="So: "), GREEDY)
    assert reply.nodes[0].content == "So:abcdefghij"
    assert reply.nodes[0].token_ids == tuple(b"So:abcdefghij")


# --- continuing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_thinking_answer_is_continued_wherever_it_was_cut(path: Path, cut: int) -> None:
    whole: tuple[int, ...] = (*b"hmm", UNTHINK, 10, *b"yes", END)
    begun = 0

    def script(row: ScheduledRow, sample: SampleRow) -> int:
        return whole[begun + sample.position]

    world = World(path, script=script, template=THINKING)
    session = world.session()
    first = world.say(session, "hi", SamplingParams(max_tokens=cut))
    begun = cut
    draft = session.draft_continue()
    assert draft.prompt.in_reasoning == (cut < 4)
    reply = session.answer(world.llm, draft, GREEDY)
    node = reply.nodes[0]
    assert node.id == first.nodes[0].id
    assert (node.content, node.reasoning) == ("yes", "hmm")
    assert (node.reasoning_ids, node.token_ids) == ((258, 10, *b"hmm", UNTHINK, 10), tuple(b"yes"))
    assert world.stored(session).leaf == node
    # The thinking is left out of the next prompt, which is told.
    following = world.say(session, "more")
    assert [(entry.reason, entry.tokens) for entry in following.rereads] == [(Reason.REASONING_DROPPED.value, len(b"yes"))]
    assert "hmm" not in following.draft.prompt.text


def test_an_answer_of_text_alone_can_be_continued(world: World) -> None:
    session = world.session()
    session.conversation.add_user("hi")
    cut = session.conversation.add_assistant("It was cut he")
    reply = session.answer(world.llm, session.draft_continue(), GREEDY)
    assert reply.nodes[0].id == cut.id
    assert reply.nodes[0].content == "It was cut heabcdefghij"
    assert reply.draft.prompt.token_ids[-14:] == (10, *b"It was cut he")
    assert world.stored(session).leaf == reply.nodes[0]


def test_what_follows_a_cut_answer_keeps_it(world: World) -> None:
    session = world.session()
    cut = world.say(session, "hi", SamplingParams(max_tokens=3)).nodes[0]
    world.say(session, "more")
    longer = session.answer(world.llm, session.draft_continue(cut.id), GREEDY).nodes[0]
    assert longer.id != cut.id
    assert longer.content == "abcabcdefghij"
    assert world.stored(session).node(cut.id).content == "abc"
    assert [node.content for node in world.stored(session).path()] == ["hi", "abcabcdefghij"]


def test_what_cannot_be_continued(world: World) -> None:
    session = world.session()
    with pytest.raises(InvalidRequestError, match="empty"):
        session.draft_continue()
    whole = world.say(session, "hi").nodes[0]
    with pytest.raises(InvalidRequestError, match="came to its end by itself"):
        session.draft_continue()
    with pytest.raises(InvalidRequestError, match="no answer"):
        session.draft_continue(whole.parent)
    with pytest.raises(InvalidRequestError, match="only these can be edited"):
        session.draft_edit(whole.id, "x")
    session.conversation.update(replace(whole, state=NodeState.INTERRUPTED, token_ids=None, content=""))
    with pytest.raises(InvalidRequestError, match="nothing to go on with"):
        session.draft_continue()


# --- what had to be read again -----------------------------------------------------------------------------------------------


def test_a_changed_system_prompt_is_told(world: World) -> None:
    session = world.session()
    session.set_system("first")
    world.say(session, "hi")
    session.set_system("second")
    reply = world.say(session, "more")
    assert [entry.reason for entry in reply.rereads] == ["system prompt changed"]
    assert str(reply.rereads[0]).startswith("system prompt changed: re-read ")
    assert reply.nodes[0].usage["rereads"] == [{"reason": "system prompt changed", "tokens": reply.rereads[0].tokens}]


def test_eviction_is_told(world: World) -> None:
    session = world.session()
    first = world.say(session, "a question that takes several blocks of the pool")
    world.llm.forget_cached()
    reply = world.say(session, "more")
    assert [entry.reason for entry in reply.rereads] == ["evicted"]
    assert reply.rereads[0].tokens == len(first.draft.prompt.token_ids) + 10 - 1


def test_a_new_engine_and_another_model_are_told(world: World, path: Path) -> None:
    session = world.session()
    first = world.say(session, "a question that takes several blocks of the pool")
    history = len(first.draft.prompt.token_ids) + 10 + 2
    other = World(path)
    later = other.session(other.store.load(session.conversation.id))
    assert [(entry.reason, entry.tokens) for entry in other.say(later, "more").rereads] == [("engine started anew", history)]

    third = World(path)
    third.model = replace(third.model, name="another")
    changed = third.session(third.store.load(session.conversation.id))
    reply = third.say(changed, "and more")
    assert [entry.reason for entry in reply.rereads] == ["model changed"]
    assert reply.nodes[0].model == third.stored(changed).model == "another"


def test_ids_of_another_vocabulary_are_not_used(world: World, path: Path) -> None:
    session = world.session()
    node = world.say(session, "hi").nodes[0]
    session.conversation.update(replace(node, fingerprint="other", token_ids=(0, 1, 2)))
    reply = world.say(session, "more")
    assert bytes(i for i in reply.draft.prompt.token_ids if i < 256).count(b"abcdefghij") == 1
    smaller = SessionModel("x", byte_tokenizer(), None)
    assert smaller.fingerprint != world.model.fingerprint
    assert smaller.fingerprint == SessionModel("y", byte_tokenizer(), None).fingerprint


# --- longer than the context -----------------------------------------------------------------------------------------------


def test_oldest_whole_turns_are_left_out_where_the_user_allows_it(path: Path) -> None:  # D3
    world = World(path, context=256)
    session = world.session(leave_out=True)
    session.set_system("Answer in German")
    notes = []
    for i in range(12):
        reply = world.say(session, f"question {i:02}", SamplingParams(max_tokens=20))
        draft = reply.draft
        notes.append(draft.left_out_note)
        sent = [message.role for message in draft.messages]
        assert sent == ["system", *["user", "assistant"] * (len(sent) // 2 - 1), "user"]
        assert draft.prompt.text.startswith("<|start|>system\nAnswer in German<|end|>")
        assert len(draft.prompt.token_ids) <= 256 - 20
        assert draft.left_out + len(draft.messages) - 1 == 2 * i + 1
        assert reply.nodes[0].usage["left_out"] == draft.left_out
        assert session.context_use("x").used < 256
    assert notes[0] == ""
    assert notes[-1].endswith(" oldest messages not sent")
    # Several turns at a time, so that most prompts go on where the last one ended.
    changes = [i for i in range(1, 12) if notes[i] != notes[i - 1]]
    assert 1 <= len(changes) <= 5
    assert len(world.stored(session).path()) == 24


def test_without_leave_nothing_is_left_out(path: Path) -> None:
    world = World(path, context=128)
    session = world.session()
    for i in range(3):
        world.say(session, f"question {i}", SamplingParams(max_tokens=4))
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens > 128.*or let the oldest messages be left out"):
        world.say(session, "question 4")
    refused = len(session.conversation.nodes)
    assert len(world.stored(session).nodes) == refused
    leaf = session.conversation.leaf
    assert leaf is not None
    assert leaf.role == "assistant"
    alone = world.session(leave_out=True)
    with pytest.raises(PromptTooLongError, match=r"use a shorter prompt$"):
        alone.draft("x" * 200)


def test_the_context_is_counted(world: World) -> None:
    session = world.session()
    assert (session.context_use().used, session.context_use().limit, session.context_use().share) == (0, 8192, 0.0)
    reply = world.say(session, "hi")
    used = session.context_use().used
    assert used == len(reply.draft.prompt.token_ids) + 10
    assert session.context_use("more").used == len(session.draft("more").prompt.token_ids)
    assert session.context_use().share == used / 8192
    empty = world.session()
    empty.set_system("four")
    assert empty.context_use().used == 4


# --- what goes wrong -------------------------------------------------------------------------------------------------------


def test_a_refused_request_leaves_no_trace(world: World) -> None:
    session = world.session()
    with pytest.raises(InvalidRequestError, match="token id"):
        session.answer(world.llm, session.draft("hi"), SamplingParams(stop_token_ids=(2**40,)))
    assert world.store.sessions() == []
    assert session.conversation.nodes == ()


def test_a_full_store_stops_a_question_and_never_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("no space left")

    session = world.session()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_session", fail)
        with pytest.raises(StoreError, match="no space"):
            world.say(session, "hi")
    assert session.conversation.nodes == ()
    assert not world.llm.has_unfinished
    reply = session.start(world.llm, session.draft("hi"), GREEDY)
    shown = ""
    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_message", fail)
        outputs = session.stream(world.llm, reply)
        with pytest.raises(StoreError, match="no space"):  # noqa: PT012 - told after all has been shown
            for output in outputs:
                shown += "".join(delta.text for delta in output.deltas)
    assert shown == "abcdefghij"
    assert session.conversation.path()[-1].content == shown
    # There is space again: what is missing is kept with the next message.
    world.say(session, "more")
    assert [node.content for node in world.stored(session).path()] == ["hi", "abcdefghij", "more", "abcdefghij"]


def test_a_failed_answer_is_marked(path: Path) -> None:
    world = World(path, script=lambda row, sample: b"abc"[sample.position] if sample.position < 3 else -1)
    session = world.session()
    with pytest.raises(ChatpagedError, match="no numbers"):
        world.say(session, "hi")
    leaf = world.stored(session).leaf
    assert leaf is not None
    assert (leaf.content, leaf.finish_reason, leaf.state) == ("abc", "error", NodeState.INTERRUPTED)
    assert leaf.can_continue


def test_nothing_has_to_be_kept(world: World) -> None:
    session = ChatSession(world.model)
    assert session.answer(world.llm, session.draft("hi"), GREEDY).nodes[0].content == "abcdefghij"
    session.branch(None)
    assert world.store.sessions() == []


def test_a_model_without_a_template_takes_single_prompts(world: World) -> None:
    session = ChatSession(replace(world.model, template=None), store=world.store)
    reply = session.answer(world.llm, session.draft("Once"), GREEDY)
    assert reply.nodes[0].content == "abcdefghij"
    assert reply.draft.prompt.token_ids == tuple(b"Once")
    with pytest.raises(ModelError, match="single prompts only"):
        session.draft("more")


def test_who_drives_the_engine_otherwise_hands_over_outputs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_reply, "SAVE_SECONDS", 0.0)
    session = world.session()
    draft = session.draft("hi", prefill="Oh")
    name = world.llm.add_request(draft.prompt, GREEDY)
    reply = session.begin(draft, GREEDY, request_id=name, seed=1, block_size=BLOCK)
    for _ in range(3):
        for output in world.llm.step():
            reply.take(output)
    leaf = world.stored(session).leaf
    assert leaf is not None
    assert (leaf.content, leaf.token_ids, leaf.state) == ("Ohabc", tuple(b"Ohabc"), NodeState.INTERRUPTED)
    reply.end()
    assert session.conversation.leaf == world.stored(session).leaf
    world.llm.abort(name)
    more = session.draft_continue()
    assert more.prompt.token_ids[-6:] == (10, *b"Ohabc")
    assert time.time() - leaf.created < 60


def test_what_came_since_the_last_save_is_kept_when_the_engine_dies(world: World) -> None:  # J2
    session = world.session()
    params = SamplingParams(temperature=0, n=2)
    draft = session.draft("hi")
    name = world.llm.add_request(draft.prompt, params)
    reply = session.begin(draft, params, request_id=name, seed=1, block_size=BLOCK)
    for _ in range(4):
        for output in world.llm.step():
            reply.take(output)
    assert [node.content for node in world.stored(session).children(draft.question.id)] == ["a", "a"]
    reply.end(FinishReason.ERROR)
    stored = world.stored(session).children(draft.question.id)
    assert stored == reply.nodes == session.conversation.children(draft.question.id)
    for node in stored:
        assert (node.content, node.token_ids, node.finish_reason, node.state) == ("abcd", tuple(b"abcd"), "error", NodeState.INTERRUPTED)
        assert node.can_continue
    world.llm.abort(name)
