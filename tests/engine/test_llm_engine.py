from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from chatpaged.chat_template import ChatMessage, ChatTemplate
from chatpaged.engine.block_pool import BlockState
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import NO_TOKEN, StepResult
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import Completion, Delta, FinishReason, RequestOutput, TokenLogprobs, merge_outputs
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.engine.scripted import ScriptedExecutor
from chatpaged.engine.snapshot import EngineSnapshot
from chatpaged.errors import ChatpagedError, InvalidRequestError, ModelError, PromptTooLongError
from tests.byte_tokenizer import END, TEMPLATE, byte_template, byte_tokenizer

HELLO = [*b"Hello!", END]


def engine_of(
    script: list[int] | ScriptedExecutor = HELLO, *, num_blocks: int = 65, with_template: bool = True, **options: object
) -> LLMEngine:
    tokenizer = byte_tokenizer()
    executor = script if isinstance(script, ScriptedExecutor) else ScriptedExecutor(script, num_blocks=num_blocks, vocab_size=258)
    return LLMEngine(
        executor,
        tokenizer,
        EngineConfig(**options),  # type: ignore[arg-type]
        chat_template=byte_template(tokenizer) if with_template else None,
    )


def run(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
        engine.check_invariants()
        check_sums(engine.snapshot())
    return outputs


def check_sums(snapshot: EngineSnapshot) -> None:
    in_use = {i for i, state in enumerate(snapshot.block_states) if state in {BlockState.USED, BlockState.SHARED}}
    assert len(snapshot.block_states) == (1 + snapshot.free_blocks + snapshot.cached_blocks + snapshot.used_blocks + snapshot.shared_blocks)
    assert in_use == {block for sequence in snapshot.sequences for block in sequence.blocks}
    assert snapshot.used_blocks == sum(sequence.own_blocks for sequence in snapshot.sequences)
    references = sum(len(sequence.blocks) for sequence in snapshot.sequences)
    assert snapshot.saved_blocks == references - len(in_use)
    assert snapshot.live_tokens <= len(in_use) * snapshot.block_size


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_text_ids_and_messages_are_prompts() -> None:
    engine = engine_of()
    assert engine.generate("Hi").prompt_token_ids == tuple(b"Hi")
    assert engine.generate([72, 105]).text == "Hello!"
    chat = engine.generate([ChatMessage("user", "Hi")])
    assert bytes(token for token in chat.prompt_token_ids if token < 256) == b"user\nHi\nassistant\n"
    assert chat.completions == (Completion(0, "Hello!", tuple(b"Hello!"), FinishReason.STOP, 7),)


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_an_empty_prompt_is_refused(prompt: str | list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="empty prompt"):
        engine_of().generate(prompt)


@pytest.mark.parametrize("prompt", [[258], [-1, 5], [2**70]])
def test_unknown_token_ids_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="not between 0 and 257"):
        engine_of().add_request(prompt)


def test_prompts_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="a prompt is text"):
        engine_of().generate([1, "a"])  # type: ignore[arg-type]


def test_messages_need_a_chat_template() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        engine_of(with_template=False).generate([ChatMessage("user", "Hi")])


def test_request_ids_are_unique_while_in_use() -> None:
    engine = engine_of()
    assert engine.add_request("a", request_id="request-0") == "request-0"
    assert engine.add_request("b") == "request-1"
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.add_request("c", request_id="request-0")
    run(engine)
    assert engine.add_request("c", request_id="request-0") == "request-0"


def test_a_refused_request_leaves_nothing_behind() -> None:
    engine = engine_of(num_blocks=3)
    with pytest.raises(PromptTooLongError):
        engine.add_request("x" * 100, request_id="long")
    assert not engine.has_unfinished
    assert engine.add_request("x", request_id="long") == "long"


def test_max_model_len_may_not_exceed_the_models() -> None:
    with pytest.raises(InvalidRequestError, match="more than the model's context of 8192"):
        engine_of(max_model_len=9000)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_deltas_join_to_the_answer() -> None:
    engine = engine_of([*"Grüße 😀".encode(), END])
    engine.add_request("x")
    outputs = run(engine)
    assert "".join(delta.text for output in outputs for delta in output.deltas) == "Grüße 😀"
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert sum(delta.num_tokens for output in outputs for delta in output.deltas) == len("Grüße 😀".encode()) + 1


def test_end_ids_are_the_union_of_all_that_name_some() -> None:
    for end in (END, 10, 11):
        executor = ScriptedExecutor([65, end, 66], stop_token_ids=frozenset({10}))
        engine = LLMEngine(executor, byte_tokenizer(), stop_token_ids={11})
        assert engine.generate("x").text == "A"


def test_samples_come_back_in_order_with_their_own_ends() -> None:
    def script(row: ScheduledRow, sample: SampleRow) -> int:
        if sample.position == 0:
            return 65 + sample.index
        return END if sample.position > 2 - row.token_ids[-1] % 2 else row.token_ids[-1]

    engine = engine_of(ScriptedExecutor(script, vocab_size=258))
    result = engine.generate("abcd", SamplingParams(n=3))
    assert [completion.text for completion in result.completions] == ["AA", "BBB", "CC"]
    assert [completion.index for completion in result.completions] == [0, 1, 2]
    assert result.metrics.completion_tokens == 10
    assert (result.metrics.prefill_tokens, result.metrics.peak_blocks) == (4, 3)


def test_many_requests_are_run_together_and_answered_in_order() -> None:
    engine = engine_of()
    results = engine.generate_many([("a", SamplingParams(max_tokens=5)), ("bb", SamplingParams(max_tokens=2)), ([67], None)])
    assert [result.text for result in results] == ["Hello", "He", "Hello!"]
    assert max(step.num_seqs for step in engine.snapshot().steps) == 3


def test_generate_many_runs_none_when_one_is_refused() -> None:
    engine = engine_of()
    with pytest.raises(InvalidRequestError):
        engine.generate_many([("a", None), ("", None)])
    assert not engine.has_unfinished


def test_generate_many_leaves_requests_of_others_running() -> None:
    engine = engine_of()
    engine.add_request("other", SamplingParams(max_tokens=50, ignore_eos=True), request_id="other")
    assert engine.generate("x").text == "Hello!"
    assert engine.has_unfinished


def test_a_stream_that_is_closed_cancels_its_request() -> None:
    engine = engine_of()
    stream = engine.stream("x")
    assert next(stream).deltas[0].text == "H"
    stream.close()
    assert not engine.has_unfinished
    assert engine.snapshot().used_blocks == 0


def test_a_stream_ends_with_metrics() -> None:
    *_, last = engine_of().stream("abc")
    assert last.finished
    assert last.metrics is not None
    assert (last.metrics.prompt_tokens, last.metrics.completion_tokens) == (3, 7)
    assert last.metrics.time_to_first_token is not None
    assert last.metrics.time_to_first_token <= last.metrics.total_time


# --- cancelling ------------------------------------------------------------------------------------------------------


def test_abort_gives_what_there_is() -> None:
    engine = engine_of()
    name = engine.add_request("x", SamplingParams(stop=("llama",)))
    for _ in range(3):
        engine.step()
    output = engine.abort(name)
    assert output is not None
    assert output.finished
    assert output.completions == (Completion(0, "Hel", tuple(b"Hel"), FinishReason.CANCELLED, 3),)
    assert output.deltas[0].text == "l"  # held back until now: it might have become a stop text
    assert engine.abort(name) is None
    assert engine.snapshot().used_blocks == 0


def test_abort_before_the_first_step() -> None:
    engine = engine_of()
    output = engine.abort(engine.add_request("x"))
    assert output is not None
    assert output.metrics is not None
    assert output.metrics.time_to_first_token is None
    assert output.metrics.tokens_per_second is None
    assert engine.step() == []


def test_a_cancelled_answer_goes_on_from_its_ids() -> None:
    """Case B14: what was generated stays in the prompt, and its blocks stay valid."""
    engine = engine_of()
    first = [ChatMessage("user", "who are you, and what can you do for me?")]
    name = engine.add_request(first)
    for _ in range(4):
        engine.step()
    output = engine.abort(name)
    assert output is not None
    partial = output.completions[0]
    turn = [*first, ChatMessage("assistant", partial.text, partial.token_ids), ChatMessage("user", "please continue")]
    result = engine.generate(turn)
    prompt = engine.render(first).token_ids
    assert result.prompt_token_ids[: len(prompt) + 4] == prompt + tuple(b"Hell")
    assert result.prompt_token_ids[len(prompt) + 4 : len(prompt) + 6] == (END, 10)
    # The last id of the partial answer was never computed.
    assert result.metrics.cached_tokens == (len(prompt) + 3) // 16 * 16


def test_history_keeps_the_ids_it_was_generated_as() -> None:
    """Case B1: each turn finds all earlier turns, answers included."""
    engine = engine_of([*b"An answer of some length, so that it fills a block or two.", END])
    messages = []
    previous = 0
    for turn in range(4):
        messages.append(ChatMessage("user", f"Question {turn}: and what about this?"))
        result = engine.generate(messages)
        assert result.metrics.cached_tokens >= previous // 16 * 16 - 16
        previous = result.metrics.prompt_tokens + result.metrics.completion_tokens
        messages.append(ChatMessage("assistant", result.text, result.token_ids))
    assert result.metrics.cached_tokens > 200
    assert result.metrics.prefill_tokens < 80


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_draws_alone_and_in_a_batch() -> None:
    def uniforms(*, mates: int) -> list[float]:
        executor = ScriptedExecutor([65], vocab_size=258)
        engine = engine_of(executor)
        name = engine.add_request("seeded", SamplingParams(seed=11, max_tokens=5))
        for mate in range(mates):
            engine.add_request(f"mate {mate}", SamplingParams(max_tokens=3 + mate))
        assert engine.seed_of(name) == 11
        run(engine)
        return [sample.uniform for output in executor.outputs for row in output.rows if row.seq_id == 0 for sample in row.samples]

    alone = uniforms(mates=0)
    assert len(set(alone)) == 5
    assert uniforms(mates=3) == alone


def test_a_seed_is_drawn_when_none_is_given() -> None:
    engine = engine_of()
    seeds = {engine.seed_of(engine.add_request("x")) for _ in range(3)}
    assert len(seeds) == 3
    assert engine.seed_of("unknown") is None


def test_greedy_rows_draw_nothing() -> None:
    executor = ScriptedExecutor([65], vocab_size=258)
    engine = engine_of(executor)
    engine.add_request("x", SamplingParams(temperature=0, max_tokens=2))
    run(engine)
    assert {sample.uniform for output in executor.outputs for row in output.rows for sample in row.samples} == {0.0}


# --- pressure --------------------------------------------------------------------------------------------------------


def test_answers_do_not_depend_on_preemption() -> None:
    """Case C2: four rows in a pool for fewer; all finish, with the texts of a roomy pool."""

    def texts(num_blocks: int) -> tuple[list[str], int]:
        executor = ScriptedExecutor(lambda row, _: 97 + (row.token_ids[-1] * 7 + row.end) % 26, num_blocks=num_blocks, vocab_size=258)
        engine = engine_of(executor, max_num_seqs=8)
        for row in range(4):
            engine.add_request("a" * (100 + row), SamplingParams(temperature=0, max_tokens=100), request_id=str(row))
        answers = {output.request_id: output.completions[0].text for output in run(engine) if output.finished}
        return [answers[str(row)] for row in range(4)], engine.snapshot().counters["preemptions"]

    tight, preemptions = texts(21)
    roomy, none = texts(1001)
    assert tight == roomy
    assert preemptions > 0
    assert none == 0


def test_priority_of_a_running_request_can_change() -> None:
    engine = engine_of(max_num_seqs=1)
    engine.add_request("a", SamplingParams(max_tokens=3), request_id="a", priority=1)
    engine.step()
    engine.add_request("b", request_id="b", priority=2)
    engine.set_priority("b", 0, interactive=True)
    outputs = run(engine)
    assert next(output.request_id for output in outputs if output.finished) == "b"


# --- looking in ------------------------------------------------------------------------------------------------------


def test_a_snapshot_names_blocks_sequences_and_steps() -> None:
    engine = engine_of(num_blocks=9)
    engine.add_request("x" * 33, SamplingParams(n=2, max_tokens=20), request_id="pair")
    for _ in range(3):
        engine.step()
    snapshot = engine.snapshot()
    check_sums(snapshot)
    assert (snapshot.block_size, snapshot.batch_size, snapshot.step_tokens) == (16, 2, 2)
    first, second = snapshot.sequences
    assert (first.request_id, first.index, second.index, first.state) == ("pair", 0, 1, "running")
    assert (first.own_blocks, first.shared_blocks) == (1, 2)
    assert (first.num_prompt_tokens, first.num_computed_tokens, first.num_tokens) == (33, 35, 36)
    assert first.tokens_per_second > 0
    assert snapshot.saved_blocks == 2
    assert snapshot.live_tokens == 32 + 2 * 3
    assert snapshot.counters["copies"] == 1
    assert snapshot.steps[-1].total > 0
    assert engine.last_step == snapshot.steps[-1]
    run(engine)
    assert engine.snapshot().sequences == ()
    assert engine.snapshot().cached_blocks > 0


def test_waiting_sequences_are_in_the_snapshot() -> None:
    engine = engine_of(max_num_seqs=1)
    engine.add_request("a")
    engine.add_request("b")
    engine.step()
    assert [sequence.state for sequence in engine.snapshot().sequences] == ["running", "waiting"]


def test_the_hit_rate_counts_prompt_tokens() -> None:
    engine = engine_of()
    assert engine.snapshot().prefix_hit_rate == 0
    assert (engine.snapshot().batch_size, engine.snapshot().step_tokens, engine.last_step) == (0, 0, None)
    for _ in range(2):
        engine.generate("x" * 40)
    assert engine.snapshot().prefix_hit_rate == 32 / 80
    assert engine.forget_cached() > 0
    assert engine.snapshot().cached_blocks == 0


def test_closing_closes_the_executor() -> None:
    closed = []

    class Closing(ScriptedExecutor):
        def close(self) -> None:
            closed.append(True)

    with engine_of(Closing(HELLO)) as engine:
        assert engine.generate("x").token_ids == tuple(b"Hello!")
    engine_of().close()
    assert closed == [True]


def test_aborting_before_the_prompt_is_read_ends_every_sample() -> None:
    engine = engine_of()
    name = engine.add_request("x", SamplingParams(n=3))
    output = engine.abort(name)
    assert output is not None
    assert [(completion.index, completion.finish_reason.value) for completion in output.completions] == [
        (0, "cancelled"),
        (1, "cancelled"),
        (2, "cancelled"),
    ]


@pytest.mark.parametrize("wrong", [{"salt": "text"}, {"priority": "high"}])
def test_what_would_fail_in_a_later_step_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="priority is a whole number and salt is bytes"):
        engine_of().add_request("x", **wrong)


def test_a_request_without_numbers_fails_alone() -> None:
    executor = ScriptedExecutor(lambda row, sample: NO_TOKEN if (sample.index, sample.position) == (1, 2) else [*HELLO][sample.position])
    engine = engine_of(executor)
    engine.add_request("bad", SamplingParams(n=2), request_id="bad")
    engine.add_request("good", request_id="good")
    outputs = {output.request_id: output for output in run(engine) if output.finished}
    assert outputs["good"].completions[0].text == "Hello!"
    assert isinstance(outputs["bad"].error, ChatpagedError)
    assert [(c.index, c.text, c.finish_reason) for c in outputs["bad"].completions] == [
        (0, "Hel", FinishReason.ERROR),
        (1, "He", FinishReason.ERROR),
    ]
    assert len(outputs["bad"].deltas) == 2
    with pytest.raises(ChatpagedError, match="no numbers"):
        engine.generate_many([("x", SamplingParams(n=2)), ("y", None)])
    assert not engine.has_unfinished


# --- what a request may ask for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"logit_bias": {258: 1.0}}, {"stop_token_ids": (-1,)}])
def test_unknown_token_ids_in_parameters_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"token id .* in .* is not between 0 and 257"):
        engine_of().add_request("x", SamplingParams(**params))


def test_reasoning_is_told_from_the_answer() -> None:
    tokenizer = byte_tokenizer()
    template = ChatTemplate(TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"), tokenizer)
    engine = LLMEngine(ScriptedExecutor([*b"plan</think>\n\n42", END]), tokenizer, chat_template=template)
    messages = [ChatMessage("user", "x")]
    answer = engine.generate(messages).completions[0]
    assert (answer.reasoning, answer.text) == ("plan", "42")
    # Ids of a rendered prompt are as good as the messages; plain text, and whoever asks for it, gets the reply as it is.
    assert engine.generate(engine.render(messages).token_ids).completions[0] == answer
    assert engine.generate("x").text == "plan</think>\n\n42"
    engine.add_request(messages, split_reasoning=False)
    outputs = run(engine)
    assert outputs[-1].completions[0].text == "plan</think>\n\n42"
    engine.add_request(messages)
    outputs = run(engine)
    assert "".join(delta.reasoning for output in outputs for delta in output.deltas) == "plan"


def test_log_probabilities_reach_their_sequences() -> None:
    class Reporting(ScriptedExecutor):
        def execute(self, output: SchedulerOutput) -> StepResult:
            result = super().execute(output)
            reports = tuple(tuple(TokenLogprobs(token, -float(token), ()) for token in tokens) for tokens in result.token_ids)
            return replace(result, logprobs=reports)

    executor = Reporting(lambda row, sample: END if sample.position == 2 + sample.index else 65 + sample.index)
    engine = engine_of(executor)
    engine.add_request("x" * 40, SamplingParams(n=2), request_id="long")
    engine.add_request("y", SamplingParams(), request_id="short")
    for output in run(engine):
        for completion in output.completions:
            assert [report.token_id for report in completion.logprobs] == [*completion.token_ids, END]


# --- merging ---------------------------------------------------------------------------------------------------------


def test_merged_outputs_say_what_the_single_ones_say() -> None:
    engine = engine_of(ScriptedExecutor(lambda row, sample: END if sample.position == 4 + row.seq_id else 65 + row.seq_id))
    engine.add_request("x", SamplingParams(n=2), request_id="r")
    outputs = run(engine)
    merged = outputs[0]
    for output in outputs[1:]:
        merged = merge_outputs(merged, output)
    for index in (0, 1):
        texts = [delta.text for output in outputs for delta in output.deltas if delta.index == index]
        assert merged.deltas[index].text == "".join(texts)
        assert merged.deltas[index].num_tokens == len(texts)
    assert merged.finished
    assert merged.metrics == outputs[-1].metrics
    assert len(merged.completions) == 2


def test_a_completion_survives_later_news_of_other_samples() -> None:
    done = Completion(0, "a", (97,), FinishReason.STOP, 1)
    first = RequestOutput(request_id="r", deltas=(Delta(0, "a", (97,), done), Delta(1, "b", (98,))))
    second = RequestOutput(request_id="r", deltas=(Delta(1, "c", (99,)),))
    merged = merge_outputs(first, second)
    assert merged.deltas == (Delta(0, "a", (97,), done), Delta(1, "bc", (98, 99)))
    for earlier, later in pairwise([first, second]):
        assert merge_outputs(earlier, later) == merged
