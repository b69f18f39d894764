"""The demo's answers come out of real blocks: whatever is shared, evicted or copied, each one is whole."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatpaged.demo import DEMO_BLOCKS, demo_engine, demo_model, demo_tokenizer
from chatpaged.demo_executor import INSTANT, Pace
from chatpaged.demo_texts import ANSWERS, LOOP
from chatpaged.engine.async_engine import AsyncEngine
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import Completion, FinishReason
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import EngineDeadError
from chatpaged.messages import ChatMessage
from chatpaged.session import ChatSession

GREEDY = SamplingParams(temperature=0)
TOKENIZER = demo_tokenizer()
TEXTS = {answer.text.split("</think>")[-1].strip() for answer in ANSWERS}


def engine_of(**options: int) -> LLMEngine:
    return demo_engine(EngineConfig(**options), pace=INSTANT)  # type: ignore[arg-type]


def answers(engine: LLMEngine, question: str, params: SamplingParams = GREEDY) -> tuple[Completion, ...]:
    completions = engine.generate([ChatMessage("user", question)], params).completions
    engine.check_invariants()
    return completions


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_the_tokenizer_is_the_same_each_time_and_no_byte_counter() -> None:
    assert demo_model().fingerprint == demo_model().fingerprint
    for answer in ANSWERS:
        ids = TOKENIZER.encode(answer.text)
        assert ids == demo_tokenizer().encode(answer.text)
        assert len(ids) < len(answer.text) / 3


def test_answers_are_told_apart_by_their_first_token() -> None:
    firsts = [TOKENIZER.encode_parts(TOKENIZER.split_control(answer.text))[0] for answer in (*ANSWERS, LOOP)]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize(
    ("question", "begin"),
    [
        ("Hi!", "Hello! I am the **demo**"),
        ("Compare some teas", "Four teas"),
        ("Write a Python function, please", "A paged cache"),
        ("a LONG plan", "# A weekend"),
        ("Why is that?", "Short answer"),
        ("explain the engine panel", "## Reading"),
        ("soup", "**Potato soup"),
        ("tell me a story", "The lighthouse keeper"),
        ("?", ""),
    ],
)
def test_each_answer_comes_whole_to_who_asks_for_it(question: str, begin: str) -> None:
    found = answers(engine_of(), question, SamplingParams(temperature=0, n=len(ANSWERS)))
    assert found[0].text.startswith(begin)
    assert {completion.text for completion in found} == TEXTS
    assert {completion.finish_reason for completion in found} == {FinishReason.STOP}


@pytest.mark.parametrize(
    ("question", "begin"),
    [("table", "Four teas"), ("code", "A paged cache"), ("plan", "# A weekend"), ("think", "Short answer"), ("memory", "## Reading")],
)
def test_who_asks_for_an_answer_gets_it_however_it_is_drawn(question: str, begin: str) -> None:
    engine = engine_of()
    for seed in range(8):
        assert answers(engine, question, SamplingParams(temperature=1.0, seed=seed, max_tokens=200))[0].text.startswith(begin)


def test_the_answer_with_thinking_has_it_apart() -> None:
    (completion,) = answers(engine_of(), "why?")
    assert completion.reasoning is not None
    assert completion.reasoning.strip().startswith("The question sounds simple")
    assert completion.text.startswith("Short answer")


def test_the_code_that_is_shown_works() -> None:
    (completion,) = answers(engine_of(), "some python code")
    code = re.findall(r"```python\n(.*?)```", completion.text, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == "[1, 0, 0, 0]\n"


def test_who_asks_in_no_known_words_again_may_get_something_else_and_the_same_with_the_same_seed() -> None:
    engine = engine_of()
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(20)]
    texts = [answers(engine, "?", one)[0].text for one in params]
    assert len(set(texts)) > 3
    assert [answers(engine, "?", one)[0].text for one in params] == texts


def test_a_full_pool_garbles_nothing() -> None:
    engine = engine_of(kv_blocks=70, max_num_seqs=8)
    system = ChatMessage("system", "You are a demo, and you are proud of it. " * 4)
    names = [
        engine.add_request([system, ChatMessage("user", f"question {i}")], SamplingParams(temperature=1.0, seed=i, n=1 + i % 3))
        for i in range(12)
    ]
    found: dict[str, list[str]] = {name: [] for name in names}
    while engine.has_unfinished:
        for output in engine.step():
            found[output.request_id] += [completion.text for completion in output.completions]
        engine.check_invariants()
    assert [len(texts) for texts in found.values()] == [1 + i % 3 for i in range(12)]
    assert all(set(texts) <= TEXTS and len(set(texts)) == len(texts) for texts in found.values())
    counters = engine.snapshot().counters
    for name in ("preemptions", "copies", "evictions", "prefix_hit_tokens"):
        assert counters[name] > 0, name


def test_an_answer_that_was_cut_is_continued_where_it_was() -> None:
    engine, model = engine_of(), demo_model()
    session = ChatSession(model)
    cut = session.answer(engine, session.draft("why?"), SamplingParams(temperature=0, max_tokens=20))
    assert cut.nodes[0].finish_reason == "length"
    more = session.answer(engine, session.draft_continue(), SamplingParams(temperature=0, max_tokens=140))
    whole = session.answer(engine, session.draft_continue(), GREEDY)
    assert more.nodes[0].id == whole.nodes[0].id == cut.nodes[0].id
    assert whole.nodes[0].content == answers(engine, "why?")[0].text
    following = session.answer(engine, session.draft("compare", prefill="Sure:"), GREEDY)
    assert following.nodes[0].content == f"Sure:{ANSWERS[1].text.strip()}"


def test_a_loop_is_noticed() -> None:  # E12
    engine = engine_of()
    repeats = [delta.repeats for output in engine.stream([ChatMessage("user", " Loop ")], GREEDY) for delta in output.deltas]
    assert max(repeats) > 20
    (completion,) = answers(engine, "loop", SamplingParams(temperature=0, stop_on_repeat=True))
    assert completion.finish_reason is FinishReason.REPETITION


def test_a_crash_is_the_death_of_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        told: list[str] = []
        async with AsyncEngine(lambda progress: demo_engine(pace=INSTANT, progress=progress), on_progress=told.append) as engine:
            facts = await engine.wait_loaded()
            assert (facts.num_blocks, facts.block_bytes) == (DEMO_BLOCKS, 720 * 1024)
            with pytest.raises(EngineDeadError, match="the demo was asked to crash"):
                async for _ in engine.generate([ChatMessage("user", "crash")]):
                    pass
        assert told

    asyncio.run(main())
    assert "asked to crash" in caplog.text


def test_steps_take_their_time() -> None:
    engine = demo_engine(pace=Pace(0.002, 0.001, 0.0001))
    begin = time.perf_counter()
    engine.generate([ChatMessage("user", "x" * 100)], SamplingParams(temperature=0, max_tokens=5))
    steps = engine.snapshot().steps
    assert time.perf_counter() - begin >= sum(0.003 + 0.0001 * (step.num_tokens - 1) for step in steps) - 1e-6
    assert all(step.forward > 0 for step in steps)
    assert max(step.num_tokens for step in steps) > 20


def test_text_without_a_template_and_answers_without_an_end() -> None:
    engine = engine_of()
    assert engine.generate("Once upon a time", GREEDY).text in TEXTS
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=400)
    (completion,) = answers(engine, "compare", params)
    assert completion.text.startswith(ANSWERS[1].text.strip())
    assert completion.num_tokens == 400


def test_the_demo_keeps_no_files(tmp_path: Path) -> None:
    engine = demo_engine(EngineConfig(disk_cache=2**30, disk_cache_directory=tmp_path), pace=INSTANT)
    answers(engine, "compare")
    while engine.work_ahead():
        pass
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_blocks_go_down_and_come_back() -> None:
    engine = demo_engine(EngineConfig(kv_blocks=200, block_size=2, swap_space=2**30), pace=INSTANT)
    params = SamplingParams(temperature=0, max_tokens=200)
    questions = ("compare", "poem", "recipe", "compare")
    texts = [answers(engine, question, params)[0].text for question in questions]
    counters = engine.snapshot().counters
    assert texts[0] == texts[3]
    assert counters["swap_out"] > 0
    assert counters["swap_in"] > 0
    engine.close()
