"""Conversations with the real starter model: going back, going on, and what is read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chatpaged.conversation import Node
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.session import ChatSession, SessionModel
from chatpaged.store import Store

pytestmark = pytest.mark.starter
BLOCK = 16
GREEDY = SamplingParams(temperature=0, max_tokens=14)


@pytest.fixture(scope="module")
def llm(starter_model: Path) -> Iterator[LLMEngine]:
    config = EngineConfig(kv_blocks=600, block_size=BLOCK, dtype="float32")
    with LLMEngine.from_pretrained(starter_model, config) as engine:
        yield engine


def session_of(llm: LLMEngine, store: Store | None = None) -> ChatSession:
    model = SessionModel("starter", llm.tokenizer, llm.chat_template, 8192)
    return ChatSession(model, store=store)


def say(llm: LLMEngine, session: ChatSession, text: str, params: SamplingParams = GREEDY) -> Node:
    return session.answer(llm, session.draft(text), params).nodes[0]


def cached(node: Node) -> int:
    value = node.usage["cached_tokens"]
    assert isinstance(value, int)
    return value


def test_an_answer_that_was_cut_and_continued_is_the_one_that_was_not_cut(llm: LLMEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=18)
    question = "Name three fruits and say one sentence about each."
    whole = say(llm, session_of(llm), question, params)
    for cut in (1, 9):
        session = session_of(llm)
        say(llm, session, question, SamplingParams(temperature=0, max_tokens=cut))
        draft = session.draft_continue()
        longer = session.answer(llm, draft, SamplingParams(temperature=0, max_tokens=18 - cut)).nodes[0]
        assert (longer.token_ids, longer.content) == (whole.token_ids, whole.content)
        assert draft.prompt.text.count("<|im_start|>assistant") == 1


def test_going_back_and_forth_reads_only_what_is_new(llm: LLMEngine, tmp_path: Path) -> None:  # B10, J8
    with Store(tmp_path / "c.db") as store:
        session = session_of(llm, store)
        session.set_system("You are a helpful assistant with a good memory.")
        say(llm, session, "Hello! I like long walks by the sea.")
        before = session.conversation.path()[-1]
        told = say(llm, session, "The magic word is pineapple. Remember it.")
        knows = say(llm, session, "What is the magic word?")
        assert "pineapple" in knows.content.lower()

        session.branch(before.id)
        other = say(llm, session, "What is the magic word?")
        assert "pineapple" not in other.content.lower()
        shared = session.model.template.render(session.conversation.messages(before.id)) if session.model.template else None
        assert shared is not None
        assert cached(other) >= len(shared.token_ids) - 8 - BLOCK

        session.switch(knows.id)
        again = session.answer(llm, session.draft_again(knows.id), GREEDY)
        assert again.nodes[0].content == knows.content
        assert cached(again.nodes[0]) >= len(again.draft.prompt.token_ids) - 1 - BLOCK
        assert again.rereads == ()
        edited = session.answer(llm, session.draft_edit(told.parent or "", "The magic word is apple."), GREEDY)
        assert [message.content for message in edited.draft.messages][-1] == "The magic word is apple."
        assert edited.rereads == ()
        assert store.load(session.conversation.id).path() == session.conversation.path()
        assert [hit.message for hit in store.search("pineapple remember")] == [told.parent]
