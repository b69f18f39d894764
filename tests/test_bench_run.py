"""Workloads through an engine without a model, on a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from chatpaged.bench_run import OurEngine
from chatpaged.bench_workloads import Chat, Workload, w3
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import NO_TOKEN, StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.scheduler_output import SchedulerOutput
from chatpaged.engine.scripted import Script, ScriptedExecutor
from chatpaged.errors import ChatpagedError, PromptTooLongError
from tests.byte_tokenizer import END, byte_tokenizer

STEP = 1.0  # seconds that each step takes


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class SteadyExecutor(ScriptedExecutor):
    """Takes the same time for each step."""

    clock: Clock

    def execute(self, output: SchedulerOutput) -> StepResult:
        self.clock.now += STEP
        return super().execute(output)


class Bench:
    """An engine that draws the next letter after the last token, or what a script says."""

    def __init__(self, script: Script = lambda row, _: (row.token_ids[-1] + 1) % 250, *, num_blocks: int = 1025, **config: Any) -> None:
        self.clock = Clock()
        self.executor = SteadyExecutor(script, num_blocks=num_blocks, vocab_size=258, max_model_len=2048)
        self.executor.clock = self.clock
        self.engine = LLMEngine(self.executor, byte_tokenizer(), EngineConfig(**config))
        self.ours = OurEngine(self.engine, clock=self.clock, sleep=self.clock.sleep)


def one_turn(prompt: bytes, new_tokens: int, arrival: float = 0.0) -> Chat:
    return Chat((tuple(prompt),), new_tokens, arrival)


def test_a_request() -> None:
    figures = Bench().ours.run(Workload("one", "", (one_turn(b"abc", 3),)))
    assert (figures["seconds"], figures["first_token_ms_mean"], figures["gap_ms_max"]) == (3.0, 1000.0, 1000.0)
    assert (figures["steps"], figures["decode_steps"]) == (3, 2)
    assert (figures["prompt_tokens"], figures["cached_tokens"], figures["peak_blocks"], figures["preemptions"]) == (3, 0, 1, 0)


def test_end_tokens_are_ignored() -> None:
    assert Bench(lambda *_: END).ours.run(Workload("one", "", (one_turn(b"abc", 5),)))["output_tokens"] == 5


def test_requests_that_come_later_are_waited_for() -> None:
    chats = (one_turn(b"late", 1, arrival=10.25), one_turn(b"first", 4), one_turn(b"between", 2, arrival=1.5))
    bench = Bench()
    told: list[int] = []
    figures = bench.ours.run(Workload("some", "", chats), told.append)
    # Between two steps nothing is let in: what comes at 1.5 waits until 2.
    assert figures["first_token_ms_p95"] == pytest.approx(1000 + 0.9 * 500)
    assert figures["seconds"] == 11.25
    assert told == [1, 2, 4, 6, 7]


def test_each_pass_begins_with_nothing_cached() -> None:
    bench = Bench()
    workload = Workload("one", "", (one_turn(b"x" * 64, 2),))
    assert [bench.ours.run(workload)["cached_tokens"] for _ in range(2)] == [0, 0]


def test_later_turns_follow_the_reply_and_contain_all_that_was_said() -> None:
    bench = Bench()
    workload = w3().limited(2).fitted(250)
    prompts: list[tuple[float, tuple[int, ...]]] = []
    add = bench.engine.add_request

    def noted(prompt: Any, *arguments: Any, **named: Any) -> str:
        prompts.append((bench.clock.now, tuple(prompt)))
        return add(prompt, *arguments, **named)

    bench.engine.add_request = noted  # type: ignore[method-assign]
    figures = bench.ours.run(workload)
    begin = 100.0
    assert [at for at, _ in prompts[:2]] == [begin, begin]
    assert figures["replies"] == 6
    for chat in workload.chats:
        turns = [(at, prompt) for at, prompt in prompts if prompt[1024:1064] == chat.turns[0]]
        assert len(turns) == 3
        prompt: tuple[int, ...] = workload.system + chat.turns[0]
        for number, (at, asked) in enumerate(turns):
            reply = tuple((prompt[-1] + 1 + i) % 250 for i in range(64))
            assert asked == prompt
            assert number == 0 or at >= turns[number - 1][0] + 64 * STEP
            prompt += reply + (chat.turns[number + 1] if number < 2 else ())
    # The system prompt of the second chat, and for each later turn what was said before it.
    assert (figures["cached_tokens"] or 0) > 1024 + 4 * 1100
    assert (figures["prompt_tokens"] or 0) == 2 * (3 * 1024 + 40 + 144 + 248)


def test_an_engine_that_gives_no_numbers_is_an_error_and_left_as_it_was() -> None:
    bench = Bench(lambda _, sample: NO_TOKEN if sample.position == 2 else 7)
    with pytest.raises(ChatpagedError, match="no numbers"):
        bench.ours.run(Workload("two", "", (one_turn(b"abc", 5), one_turn(b"abcd", 5))))
    assert not bench.engine.has_unfinished
    bench.engine.check_invariants()


def test_what_cannot_fit_is_refused_before() -> None:
    bench = Bench(num_blocks=5)
    workload = Workload("mine", "", (one_turn(b"x" * 60, 10),))
    with pytest.raises(PromptTooLongError, match="mine has a chat of 70 tokens, and context or KV pool hold 65"):
        bench.ours.check_fits(workload)
    bench.ours.check_fits(Workload("mine", "", (one_turn(b"x" * 60, 5),)))
