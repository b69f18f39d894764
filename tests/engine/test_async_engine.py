from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn

import pytest

from chatpaged.engine.async_engine import AsyncEngine, Progress
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.engine_state import EngineState
from chatpaged.engine.executor import StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import FinishReason, RequestOutput
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.errors import ChatpagedError, EngineDeadError, InvalidRequestError, ModelError
from tests.byte_tokenizer import END, byte_tokenizer

HELLO = [*b"Hello!", END]
FOREVER = SamplingParams(ignore_eos=True)
LIMIT = 120.0  # seconds; only a broken test waits so long


def engine_of(executor: ScriptedExecutor | None = None, **options: Any) -> LLMEngine:
    return LLMEngine(executor or ScriptedExecutor(HELLO, vocab_size=258), byte_tokenizer(), EngineConfig(**options))


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), LIMIT))


async def collect(
    engine: AsyncEngine, prompt: str, params: SamplingParams | None = None, *, into: list[RequestOutput] | None = None, **options: Any
) -> list[RequestOutput]:
    """Reads a whole stream; what came before an error is in `into`."""
    outputs = [] if into is None else into
    async for output in engine.generate(prompt, params, **options):
        outputs.append(output)
    return outputs


async def drain(stream: AsyncIterator[RequestOutput]) -> None:
    async for _ in stream:
        pass


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(delta.text for output in outputs for delta in output.deltas)


class Gate(ScriptedExecutor):
    """Waits before each step until it is let through."""

    def __init__(self, **options: Any) -> None:
        super().__init__(HELLO, vocab_size=258, **options)
        self.permits = threading.Semaphore(0)
        self.waiting = threading.Event()

    def execute(self, output: SchedulerOutput) -> StepResult:
        self.waiting.set()
        assert self.permits.acquire(timeout=LIMIT)
        return super().execute(output)


class Crash(ScriptedExecutor):
    """Fails in its third step."""

    def execute(self, output: SchedulerOutput) -> StepResult:
        if output.step == 2:
            raise ZeroDivisionError("the model has had enough")
        return super().execute(output)


def test_streams_run_together_and_arrive_whole() -> None:
    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of()) as engine:
            streams = await asyncio.gather(*(collect(engine, f"prompt {i}") for i in range(5)))
            assert [text_of(outputs) for outputs in streams] == ["Hello!"] * 5
            assert all(outputs[-1].finished and outputs[-1].metrics is not None for outputs in streams)

    run(main)


def test_loading_happens_on_the_engine_thread_and_requests_wait_for_it() -> None:
    async def main() -> None:
        loaded_by: list[str] = []
        may_load = threading.Event()

        def factory(_: Progress) -> LLMEngine:
            assert may_load.wait(LIMIT)
            loaded_by.append(threading.current_thread().name)
            return engine_of()

        engine = AsyncEngine(factory)
        engine.start()
        early = asyncio.create_task(collect(engine, "x"))
        await asyncio.sleep(0)
        assert not early.done()
        may_load.set()
        await engine.wait_loaded()
        assert text_of(await early) == "Hello!"
        assert loaded_by == ["chatpaged-engine"]
        await engine.close()

    run(main)


def test_a_slow_reader_gets_merged_news() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            stream = engine.generate("x")
            executor.permits.release()
            first = await anext(stream)
            executor.permits.release(10)
            # The engine is idle again when it answers: all outputs have been posted before.
            while (await engine.snapshot()).sequences:
                pass
            rest = [output async for output in stream]
            assert len(rest) == 1
            assert text_of([first, *rest]) == "Hello!"
            assert sum(delta.num_tokens for output in [first, *rest] for delta in output.deltas) == 7

    run(main)


def test_leaving_a_stream_cancels_the_request() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            async with contextlib.aclosing(engine.generate("x", FOREVER)) as stream:
                executor.permits.release()
                await anext(stream)
            executor.permits.release(10)
            snapshot = await engine.snapshot()
            assert (snapshot.sequences, snapshot.used_blocks) == ((), 0)

    run(main)


def test_cancelling_the_task_cancels_the_request() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            task = asyncio.create_task(collect(engine, "x", FOREVER))
            await asyncio.to_thread(executor.waiting.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            executor.permits.release()
            assert (await engine.snapshot()).used_blocks == 0

    run(main)


def test_stop_lets_the_reader_have_what_there_is() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            outputs: list[RequestOutput] = []
            executor.permits.release()
            async for output in engine.generate("x", FOREVER, request_id="mine"):
                outputs.append(output)
                if len(outputs) == 3:
                    engine.stop("mine")
                executor.permits.release()
            assert outputs[-1].finished
            completion = outputs[-1].completions[0]
            assert completion.finish_reason is FinishReason.CANCELLED
            assert completion.text == text_of(outputs)
            engine.stop("mine")  # nothing happens: it is over

    run(main)


def test_a_name_can_be_used_again_at_once_after_a_cancellation() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            async with contextlib.aclosing(engine.generate("x", FOREVER, request_id="chat")) as stream:
                executor.permits.release()
                await anext(stream)
            again = asyncio.create_task(collect(engine, "y", request_id="chat"))
            executor.permits.release(20)
            assert text_of(await again) == "Hello!"

    run(main)


def test_one_name_is_for_one_stream() -> None:
    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of()) as engine:
            stream = engine.generate("x", FOREVER, request_id="chat")
            await anext(stream)
            with pytest.raises(RuntimeError, match="in use"):
                await collect(engine, "y", request_id="chat")
            await stream.aclose()

    run(main)


def test_a_refused_request_harms_no_other() -> None:
    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of()) as engine:
            good = asyncio.create_task(collect(engine, "x"))
            with pytest.raises(InvalidRequestError, match="empty prompt"):
                await collect(engine, "")
            assert text_of(await good) == "Hello!"

    run(main)


def test_commands_are_applied_between_steps() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor, max_num_seqs=1)) as engine:
            first = asyncio.create_task(collect(engine, "a", SamplingParams(max_tokens=3), request_id="a", priority=1))
            await asyncio.to_thread(executor.waiting.wait)
            second = asyncio.create_task(collect(engine, "b", SamplingParams(max_tokens=1), request_id="b", priority=2))
            await asyncio.sleep(0)
            engine.set_priority("b", 0, interactive=True)
            executor.permits.release(2)
            assert text_of(await second) == "H"
            assert not first.done()
            executor.permits.release(10)
            assert text_of(await first) == "Hel"

    run(main)


def test_functions_run_on_the_engine_thread() -> None:
    def refuse(_: LLMEngine) -> None:
        raise InvalidRequestError("no")

    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of()) as engine:
            assert await engine.call(lambda _: threading.current_thread().name) == "chatpaged-engine"
            with pytest.raises(InvalidRequestError, match="no"):
                await engine.call(refuse)
            assert await engine.call(lambda llm: llm.tokenizer.encode("a")) == [97]

    run(main)


def test_a_failing_step_kills_the_engine_and_everybody_hears_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of(Crash(HELLO, vocab_size=258))) as engine:
            streams = [asyncio.create_task(collect(engine, f"{i}", FOREVER)) for i in range(2)]
            for error in await asyncio.gather(*streams, return_exceptions=True):
                assert isinstance(error, EngineDeadError)
                assert isinstance(error.__cause__, ZeroDivisionError)
            with pytest.raises(EngineDeadError, match="ZeroDivisionError: the model has had enough"):
                await collect(engine, "later")
            with pytest.raises(EngineDeadError):
                await engine.snapshot()

    run(main)
    assert "the model has had enough" in caplog.text  # with its traceback, for the log


def test_what_came_before_death_can_still_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of(Crash(HELLO, vocab_size=258))) as engine:
            seen: list[RequestOutput] = []
            with pytest.raises(EngineDeadError):
                await collect(engine, "x", FOREVER, into=seen)
            assert text_of(seen) == "He"

    run(main)
    assert caplog.records


def test_what_fails_outside_a_step_fails_for_its_caller_only() -> None:
    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of()) as engine:
            good = asyncio.create_task(collect(engine, "x"))
            with pytest.raises(IndexError):
                await engine.call(lambda llm: [llm][1:][0])
            with pytest.raises(TypeError):
                await collect(engine, 123)  # type: ignore[arg-type]
            assert text_of(await good) == "Hello!"
            assert text_of(await collect(engine, "y")) == "Hello!"

    run(main)


def test_a_model_that_cannot_be_loaded() -> None:
    def factory(_: Progress) -> LLMEngine:
        raise ModelError("no such model")

    async def main() -> None:
        engine = AsyncEngine(factory)
        engine.start()
        waiting = asyncio.create_task(collect(engine, "x"))
        with pytest.raises(ModelError, match="no such model"):
            await engine.wait_loaded()
        with pytest.raises(ModelError, match="no such model"):
            await waiting
        with pytest.raises(ModelError, match="no such model"):
            await collect(engine, "y")
        await engine.close()

    run(main)


@pytest.mark.parametrize("kind", [ModelError, ZeroDivisionError])
def test_whoever_keeps_the_error_keeps_no_weights(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    def load(weights: Weights) -> NoReturn:
        held.append(weakref.ref(weights))
        try:
            number = int("no number")
        except ValueError as error:
            raise kind("the second half did not fit") from error
        raise AssertionError(number)

    async def main() -> None:
        engine = AsyncEngine(lambda _: load(Weights()))
        engine.start()
        with pytest.raises(ChatpagedError, match="the second half did not fit") as caught:
            await engine.wait_loaded()
        assert caught.value is engine.death
        await engine.close()
        assert held[0]() is None

    run(main)
    assert ("could not be loaded" in caplog.text) == (kind is ZeroDivisionError)


def test_closing_ends_open_streams() -> None:
    async def main() -> None:
        executor = Gate()
        engine = AsyncEngine(lambda _: engine_of(executor))
        await engine.close()  # not started: nothing to do
        engine.start()
        stream = engine.generate("x", FOREVER)
        executor.permits.release()
        await anext(stream)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        executor.permits.release(10)
        await closing
        with pytest.raises(EngineDeadError, match="closed"):
            await drain(stream)
        with pytest.raises(EngineDeadError):
            await collect(engine, "y")

    run(main)


def test_misuse_is_an_error_of_the_caller() -> None:
    async def main() -> None:
        engine = AsyncEngine(lambda _: engine_of())
        with pytest.raises(RuntimeError, match="not been started"):
            await collect(engine, "x")
        with pytest.raises(RuntimeError, match="not been started"):
            await engine.wait_loaded()
        engine.start()
        with pytest.raises(RuntimeError, match="started before"):
            engine.start()
        await engine.close()

    run(main)


def test_the_thread_survives_the_end_of_the_loop() -> None:
    engines = []

    async def main() -> None:
        engine = AsyncEngine(lambda _: engine_of())
        engine.start()
        await engine.wait_loaded()
        engines.append(engine)

    run(main)
    engine = engines[0]
    engine._commands.put(lambda llm: llm.add_request("x"))
    engine._commands.put(lambda _: engine._post(lambda: None))
    engine._commands.put(None)
    engine._thread.join(LIMIT)
    assert not engine._thread.is_alive()


# --- loading ----------------------------------------------------------------------------------------------------------------


def test_progress_of_loading_is_told_on_the_event_loop() -> None:
    async def main() -> None:
        told: list[tuple[str, str]] = []

        def factory(progress: Progress) -> LLMEngine:
            progress("reading weights")
            progress("making the pool")
            return engine_of()

        engine = AsyncEngine(factory, on_progress=lambda text: told.append((text, threading.current_thread().name)))
        engine.start()
        states = [engine.state]
        facts = await engine.wait_loaded()
        here = threading.current_thread().name
        assert told == [("reading weights", here), ("making the pool", here)]
        states.append(engine.state)
        assert (engine.has_loaded, engine.death) == (True, None)
        assert (facts.block_size, facts.num_blocks, facts.block_bytes, facts.max_model_len, facts.max_num_seqs) == (16, 256, 1, 8192, 32)
        await engine.close()
        states.append(engine.state)
        assert states == [EngineState.LOADING, EngineState.READY, EngineState.DEAD]
        assert engine.has_loaded
        engine._show_progress("too late")
        assert len(told) == 2

    run(main)


def test_closing_ends_loading_where_it_tells_how_far_it_is() -> None:
    async def main() -> None:
        may_go_on = threading.Event()
        came_far: list[str] = []

        def factory(progress: Progress) -> LLMEngine:
            progress("first")
            assert may_go_on.wait(LIMIT)
            progress("second")
            came_far.append("third")
            return engine_of()

        engine = AsyncEngine(factory)
        engine.start()
        await engine.close(0.001)  # does not wait for what takes long
        with pytest.raises(EngineDeadError, match="closed"):
            await engine.wait_loaded()
        may_go_on.set()
        await asyncio.to_thread(engine._thread.join, LIMIT)
        assert not engine._thread.is_alive()
        assert came_far == []
        assert "has been closed" in str(await engine.wait_dead())

    run(main)


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), SystemExit("oh")])
def test_death_while_loading_is_told_from_death_at_work(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def factory(_: Progress) -> LLMEngine:
        raise error

    async def main() -> None:
        engine = AsyncEngine(factory)
        engine.start()
        death = await engine.wait_dead()
        assert isinstance(death, EngineDeadError)
        assert str(death) == f"the model could not be loaded: {type(error).__name__}: oh"
        assert (engine.state, engine.has_loaded, engine.death) == (EngineState.DEAD, False, death)
        with pytest.raises(EngineDeadError, match="could not be loaded"):
            await engine.wait_loaded()
        await engine.close()
        assert engine.death is death

        crashing = AsyncEngine(lambda _: engine_of(Crash(HELLO, vocab_size=258)))
        crashing.start()
        stream = asyncio.create_task(collect(crashing, "x", FOREVER))
        assert str(await crashing.wait_dead()).startswith("the engine has stopped: ZeroDivisionError")
        assert (crashing.state, crashing.has_loaded) == (EngineState.DEAD, True)
        with pytest.raises(EngineDeadError):
            await stream
        await crashing.close()

    run(main)
    assert caplog.records


def test_a_refusal_inside_a_step_is_death_at_work(caplog: pytest.LogCaptureFixture) -> None:
    class Refuse(ScriptedExecutor):
        def execute(self, output: SchedulerOutput) -> StepResult:
            raise ModelError("no")

    async def main() -> None:
        async with AsyncEngine(lambda _: engine_of(Refuse(HELLO, vocab_size=258))) as engine:
            with pytest.raises(EngineDeadError, match="the engine has stopped: ModelError: no"):
                await collect(engine, "x")

    run(main)
    assert caplog.records


# --- what the application needs -------------------------------------------------------------------------------------------------


def test_outputs_carry_the_ids_of_what_is_new() -> None:
    async def main() -> None:
        executor = Gate()
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            executor.permits.release()
            stream = engine.generate("x")
            first = await anext(stream)
            assert first.deltas[0].token_ids == (ord("H"),)
            executor.permits.release(10)
            while (await engine.snapshot()).sequences:
                pass
            (rest,) = [output async for output in stream]
            assert rest.deltas[0].token_ids == (*b"ello!", END)

    run(main)


@pytest.mark.parametrize("leave", [False, True])
def test_stopping_while_a_long_prompt_is_read_frees_its_blocks_within_a_step(leave: bool) -> None:  # C9
    prompt = "a long prompt of which each character is a token; " * 80

    async def main() -> None:
        executor = Gate(max_num_batched_tokens=64)
        async with AsyncEngine(lambda _: engine_of(executor)) as engine:
            other = asyncio.create_task(collect(engine, "y", FOREVER, request_id="other"))
            await asyncio.to_thread(executor.waiting.wait, LIMIT)
            stream = asyncio.create_task(collect(engine, prompt, request_id="long"))
            await asyncio.sleep(0)
            executor.permits.release(10)
            while len(executor.outputs) < 10:  # noqa: ASYNC110 - the engine thread sets no event
                await asyncio.sleep(0)
            steps = len(executor.outputs)
            assert max(row.end for row in executor.outputs[-1].rows) < len(prompt)
            if leave:
                stream.cancel()
                await asyncio.wait([stream])
            else:
                engine.stop("long")
            executor.permits.release()  # the step that was being computed
            asking = asyncio.create_task(engine.snapshot())
            await asyncio.sleep(0)
            executor.permits.release(3)
            snapshot = await asking
            assert all(len(output.rows) == 1 for output in executor.outputs[steps + 1 :])
            assert [sequence.request_id for sequence in snapshot.sequences] == ["other"]
            assert snapshot.used_blocks == len(snapshot.sequences[0].blocks)
            if not leave:
                outputs = await stream
                assert outputs[-1].completions[0].finish_reason is FinishReason.CANCELLED
                assert outputs[-1].completions[0].num_tokens == 0
            engine.stop("other")
            executor.permits.release(10)
            await other

    run(main)
